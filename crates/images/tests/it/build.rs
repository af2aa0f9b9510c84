//! One build, and everything that must be true of its image.

use std::path::Path;
use std::process::Command;

use wakeful_images::{DebianSpec, build};

use crate::{Kept, Site, entries};

/// Asks the image itself; it is never mounted.
fn debugfs(image: &Path, request: &str) -> String {
    let output = Command::new("/usr/sbin/debugfs").args(["-R", request]).arg(image).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `stat` of debugfs, reduced to words that can be looked for.
fn stat(image: &Path, path: &str) -> String {
    debugfs(image, &format!("stat {path}")).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn an_image_has_its_user_and_nothing_of_the_host() {
    let site = Site::new();
    let (work, bases) = (site.work(), site.bases());
    let log = Kept::default();
    let spec = DebianSpec::new("bookworm", &["netbase"]);
    let base =
        build(&spec, &site.places(&work, &bases), &log).await.unwrap_or_else(|error| panic!("{error}\n{}", log.text()));

    // where it is and what it says of itself
    assert_eq!(base.path, bases.join(&base.digest).join("base.ext4"));
    site.work_is_empty_soon().await;
    assert_eq!(entries(&bases), 1);
    let image = base.path.as_path();
    let mut hasher = blake3::Hasher::new();
    std::io::copy(&mut std::fs::File::open(image).unwrap(), &mut hasher).unwrap();
    assert_eq!(hasher.finalize().to_hex().to_string(), base.digest);
    assert!((20 << 20..400 << 20).contains(&base.bytes), "{} bytes", base.bytes);
    assert_eq!((spec.user.as_str(), spec.workdir().as_str()), ("user", "/home/user"));
    assert!(debugfs(image, "ls -p /").lines().all(|line| !line.contains("lost+found")));

    // sound, and without a journal, since nobody writes to it
    let check = Command::new("/usr/sbin/e2fsck").args(["-f", "-n"]).arg(image).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    assert!(!debugfs(image, "features").contains("has_journal"));

    // the user
    let passwd = debugfs(image, "cat /etc/passwd");
    assert!(passwd.contains("user:x:1000:1000::/home/user:/bin/bash\n"), "{passwd}");
    let home = stat(image, "/home/user");
    assert!(home.contains("Type: directory") && home.contains("User: 1000 Group: 1000"), "{home}");
    let sudoers = stat(image, "/etc/sudoers.d/wakeful");
    assert!(sudoers.contains("Mode: 0440") && sudoers.contains("User: 0 Group: 0"), "{sudoers}");
    assert_eq!(debugfs(image, "cat /etc/sudoers.d/wakeful"), "user ALL=(ALL:ALL) NOPASSWD: ALL\n");
    let sudo = stat(image, "/usr/bin/sudo");
    assert!(sudo.contains("Mode: 04755"), "{sudo}");

    // files that would otherwise be the host's
    assert_eq!(debugfs(image, "cat /etc/hostname"), "wakeful\n");
    assert!(debugfs(image, "cat /etc/hosts").contains("127.0.0.1\tlocalhost\n"));
    for empty in ["/etc/resolv.conf", "/etc/machine-id"] {
        let stat = stat(image, empty);
        assert!(stat.contains("Type: regular") && stat.contains("Size: 0"), "{empty}: {stat}");
    }
    for dir in ["/var/cache/apt/archives", "/var/lib/apt/lists", "/etc/apt/apt.conf.d", "/etc/apt/preferences.d"] {
        let listing = debugfs(image, &format!("ls -p {dir}"));
        for unwanted in [".deb/", "_Packages", "_InRelease", "mmdebstrap", "wakeful"] {
            assert!(!listing.contains(unwanted), "{dir}: {listing}");
        }
    }

    // what was asked for is there, and links are where programs look
    assert!(stat(image, "/etc/protocols").contains("Type: regular"));
    assert!(stat(image, "/bin").contains("Type: symlink"));
    assert!(stat(image, "/usr/bin/bash").contains("Type: regular"));

    // it told where it was
    assert!(log.contains("Setting up netbase"));
    let fractions = log.fractions.into_inner().unwrap();
    assert!(fractions.is_sorted() && fractions.last() == Some(&1.0), "{fractions:?}");

    // and the packages stay for the next one
    assert!(std::fs::read_dir(site.cache.join("archives")).unwrap().count() > 50);
}

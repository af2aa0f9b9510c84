//! Packages as files: what a meta package stands for, and a package unpacked without being installed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock::{self, Access, Lock};
use crate::{Error, Program, check_name, install};

/// The first dependency of `package` whose name begins with `prefix`: what a meta package stands for today.
///
/// # Errors
/// [`Error::InvalidName`]; [`Error::NoPackage`] when the package or the dependency does not exist, also after the
/// lists were refreshed; otherwise why `apt-cache` failed.
pub async fn latest_dependency(package: &str, prefix: &str) -> Result<String, Error> {
    check_name(package)?;
    for attempt in 0..2 {
        let lock = lock::take(Access::Shared).await?;
        let output = Program::new("apt-cache").args(["depends", "--", package]).output().await?;
        drop(lock);
        if let Some(name) = dependency(&output.stdout, prefix) {
            check_name(name)?;
            return Ok(name.to_owned());
        }
        if attempt == 0 {
            refresh().await?;
        }
    }
    Err(Error::NoPackage { name: format!("{prefix}… that {package} depends on") })
}

/// Names of all packages that begin with `prefix`.
///
/// # Errors
/// Why `apt-cache` failed.
pub async fn packages(prefix: &str) -> Result<Vec<String>, Error> {
    let _lock = lock::take(Access::Shared).await?;
    let output = Program::new("apt-cache").args(["pkgnames", "--", prefix]).text().await?;
    Ok(output.lines().map(|line| line.trim().to_owned()).filter(|name| check_name(name).is_ok()).collect())
}

/// Checks that `packages` could be installed together on an empty system, without installing anything: so a misspelt
/// name is known at once and not after a long build.
///
/// # Errors
/// [`Error::InvalidName`]; [`Error::NoPackage`] when one does not exist, also after the lists were refreshed;
/// [`Error::Failed`] when they exclude each other, with apt's account of it.
pub async fn check_installable(packages: &[&str]) -> Result<(), Error> {
    for name in packages {
        check_name(name)?;
    }
    if packages.is_empty() {
        return Ok(());
    }
    match simulate(packages).await {
        Err(Error::NoPackage { .. }) => {
            refresh().await?;
            simulate(packages).await
        }
        other => other,
    }
}

async fn simulate(packages: &[&str]) -> Result<(), Error> {
    let _lock = lock::take(Access::Shared).await?;
    let output = Program::new("apt-get")
        .args(["-q", "--simulate", "--no-install-recommends", "-o", "Dir::State::status=/dev/null", "install", "--"])
        .args(packages)
        .output()
        .await?;
    if output.status.success() {
        return Ok(());
    }
    if let Some(name) = unlocated(&output.stderr) {
        return Err(Error::NoPackage { name });
    }
    // apt explains conflicts on its standard output
    let mut tail = crate::Tail::default();
    output.stdout.lines().chain(output.stderr.lines()).for_each(|line| tail.push(line));
    Err(Error::Failed { program: "apt-get".to_owned(), status: output.status.to_string(), output: tail.text() })
}

/// The packages that `package` itself depends on; of alternatives the first.
///
/// # Errors
/// [`Error::InvalidName`]; why `apt-cache` failed.
pub async fn dependencies(package: &str) -> Result<Vec<String>, Error> {
    check_name(package)?;
    let _lock = lock::take(Access::Shared).await?;
    let output = Program::new("apt-cache").args(["depends", "--", package]).text().await?;
    Ok(depends(&output).filter(|name| check_name(name).is_ok()).map(str::to_owned).collect())
}

/// Downloads `packages` and unpacks them together to the directory `into`, whole or not at all. An `into` that exists is
/// left as it is.
///
/// # Errors
/// [`Error::InvalidName`]; [`Error::NoPackage`]; otherwise what failed, after the lists were refreshed and it was tried
/// again (an old list names files that the archive has replaced).
///
/// # Cancel safety
/// Dropping the future kills what runs and removes the temporary directory.
pub async fn fetch_unpacked(packages: &[&str], into: &Path) -> Result<(), Error> {
    for name in packages {
        check_name(name)?;
    }
    if into.is_dir() {
        return Ok(());
    }
    let parent = into.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(Error::io("make", parent))?;
    let parent = parent.canonicalize().map_err(Error::io("find", parent))?;
    let temporary = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&parent)
        .map_err(Error::io("make a directory in", &parent))?;

    let root = temporary.path().join("root");
    for package in packages {
        let debs = temporary.path().join(package);
        std::fs::create_dir(&debs).map_err(Error::io("make", &debs))?;
        let lock = lock::take(Access::Shared).await?;
        let first = download(package, &debs, &lock).await;
        drop(lock);
        let deb = match first {
            Ok(deb) => deb,
            Err(_) => {
                refresh().await?;
                let lock = lock::take(Access::Shared).await?;
                download(package, &debs, &lock).await?
            }
        };
        Program::new("dpkg-deb").arg("-x").arg(&deb).arg(&root).deadline(Duration::from_secs(180)).text().await?;
    }
    place_unpacked(&root, into).await
}

/// [`place`], on a thread that may block.
pub(crate) async fn place_unpacked(root: &Path, into: &Path) -> Result<(), Error> {
    let (root, target) = (root.to_owned(), into.to_owned());
    let placed = tokio::task::spawn_blocking(move || place(&root, &target)).await;
    placed.unwrap_or_else(|_| Err(Error::io("unpack to", into)(std::io::Error::other("the task was stopped"))))
}

/// Writes what was unpacked to the disk, then gives it its name: whoever sees the name sees all of it.
fn place(root: &Path, into: &Path) -> Result<(), Error> {
    let dir = std::fs::File::open(root).map_err(Error::io("open", root))?;
    rustix::fs::syncfs(&dir).map_err(|errno| Error::io("sync", root)(errno.into()))?;
    match std::fs::rename(root, into) {
        Ok(()) => {}
        // another process was quicker; its files are the same
        Err(_) if into.is_dir() => {}
        Err(source) => return Err(Error::io("rename to", into)(source)),
    }
    Ok(())
}

/// Downloads into `dir`, and tells which file came. The lock only has to be held.
async fn download(package: &str, dir: &Path, _: &Lock) -> Result<PathBuf, Error> {
    // apt would download as user _apt, who may not write to a directory of root's
    let output = Program::new("apt-get")
        .args(["-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", "--", package])
        .current_dir(dir)
        .deadline(Duration::from_secs(600))
        .output()
        .await?;
    if !output.status.success() {
        if unlocated(&output.stderr).is_some() || output.stderr.contains("No packages found") {
            return Err(Error::NoPackage { name: package.to_owned() });
        }
        return Err(Error::Failed {
            program: "apt-get download".to_owned(),
            status: output.status.to_string(),
            output: output.stderr,
        });
    }
    let entries = std::fs::read_dir(dir).map_err(Error::io("read", dir))?;
    let deb = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "deb"));
    deb.ok_or_else(|| Error::NoPackage { name: package.to_owned() })
}

async fn refresh() -> Result<(), Error> {
    let lock = lock::take(Access::Exclusive).await?;
    install::update(&lock, &|_| {}).await
}

/// Reads `apt-cache depends`: lines of `  Depends: name`, alternatives marked by `|`, virtual ones in `<>`.
fn dependency<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let mut marked = text.lines().filter_map(|line| line.trim_start_matches([' ', '|']).strip_prefix("Depends: "));
    marked.find(|name| name.starts_with(prefix))
}

/// The same text: each dependency once, an alternative's later names left out.
fn depends(text: &str) -> impl Iterator<Item = &str> {
    let mut alternative = false;
    text.lines().filter_map(move |line| {
        let name = line.trim_start_matches([' ', '|']).strip_prefix("Depends: ")?;
        let later = std::mem::replace(&mut alternative, line.starts_with(" |"));
        (!later).then_some(name)
    })
}

/// Reads apt's complaint about a name that it does not have, or that only others provide.
pub(crate) fn unlocated(output: &str) -> Option<String> {
    output.lines().find_map(|line| {
        let missing = line.split_once("Unable to locate package ").map(|(_, name)| name.trim());
        let nobody =
            || line.split_once("Package '")?.1.split_once("' has no installation candidate").map(|(name, _)| name);
        missing.or_else(nobody).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::{dependency, depends, unlocated};
    use crate::Error;

    #[test]
    fn unknown_packages_are_named() {
        assert_eq!(unlocated("Reading…\nE: Unable to locate package nosuch\n").as_deref(), Some("nosuch"));
        assert_eq!(unlocated("E: Package 'awk' has no installation candidate\n").as_deref(), Some("awk"));
        assert_eq!(unlocated("E: broken"), None);
    }

    #[tokio::test]
    async fn the_archive_knows_what_it_has() {
        super::check_installable(&["bash", "curl"]).await.unwrap();
        let error = super::check_installable(&["bash", "wakeful-has-no-such-package"]).await.unwrap_err();
        assert!(matches!(error, Error::NoPackage { name } if name == "wakeful-has-no-such-package"));
        let error = super::check_installable(&["postfix", "exim4-daemon-light"]).await.unwrap_err();
        assert!(matches!(error, Error::Failed { output, .. } if output.contains("Conflicts")));
        let kernel = super::latest_dependency("linux-image-cloud-amd64", "linux-image-").await.unwrap();
        assert!(kernel.ends_with("-cloud-amd64"), "{kernel}");
    }

    #[tokio::test]
    async fn a_package_is_unpacked_whole_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("a/hostname");
        super::fetch_unpacked(&["hostname"], &into).await.unwrap();
        assert!(into.join("bin/hostname").is_file() || into.join("usr/bin/hostname").is_file());
        super::fetch_unpacked(&["hostname"], &into).await.unwrap();
        let left: Vec<_> = std::fs::read_dir(dir.path().join("a")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["hostname"]);
        let error = super::fetch_unpacked(&["wakeful-has-no-such-package"], &dir.path().join("b/x")).await.unwrap_err();
        assert!(matches!(error, Error::NoPackage { name } if name == "wakeful-has-no-such-package"));
        assert_eq!(std::fs::read_dir(dir.path().join("b")).unwrap().count(), 0);
    }

    const TEXT: &str = "linux-image-cloud-amd64\n  Depends: <virtual-thing>\n |Depends: linux-base\n  Depends: linux-image-6.1.0-54-cloud-amd64\n  Suggests: linux-image-other\n";

    #[test]
    fn the_dependency_is_found() {
        assert_eq!(dependency(TEXT, "linux-image-"), Some("linux-image-6.1.0-54-cloud-amd64"));
        assert_eq!(dependency(TEXT, "linux-headers-"), None);
        assert_eq!(dependency("", "linux-image-"), None);
        let alternatives = "x\n  Depends: a\n |Depends: b\n  Depends: c\n  Depends: d\n  Breaks: e\n";
        assert_eq!(depends(alternatives).collect::<Vec<_>>(), ["a", "b", "d"]);
    }
}

//! A build that is no longer wanted.

use std::path::Path;
use std::time::Duration;

use wakeful_images::{DebianSpec, build};

use crate::{Kept, Site, entries};

/// Processes that name `dir` in their command line or have their root in it.
fn processes(dir: &Path) -> Vec<String> {
    let text = dir.to_str().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let inside = std::fs::read_link(entry.path().join("root")).is_ok_and(|root| root.starts_with(dir));
        if inside || command.contains(text) {
            found.push(command);
        }
    }
    found
}

#[tokio::test]
async fn a_dropped_build_leaves_nothing() {
    let site = Site::new();
    let (work, bases) = (site.work(), site.bases());
    let log = Kept::default();
    let spec = DebianSpec::new("bookworm", &[]);
    {
        let places = site.places(&work, &bases);
        let mut building = std::pin::pin!(build(&spec, &places, &log));
        // until dpkg runs in the chroot, with everything mounted
        let begun = async {
            while !log.contains("Setting up") {
                log.seen.notified().await;
            }
        };
        tokio::select! {
            ended = &mut building => panic!("it ended before it was cancelled: {ended:?}\n{}", log.text()),
            () = begun => {}
            () = tokio::time::sleep(Duration::from_secs(120)) => panic!("nothing was set up\n{}", log.text()),
        }
        assert!(site.left_in_work() > 0);
        assert!(!processes(&work).is_empty());
    }
    site.work_is_empty_soon().await;
    assert_eq!(entries(&bases), 0);
    assert_eq!(processes(&work), Vec::<String>::new());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(work.to_str().unwrap()), "{mounts}");
}

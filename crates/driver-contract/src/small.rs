//! A disk that is soon full.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A disk of one megabyte, unmounted whatever happens.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Makes the directory and mounts it there.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).expect("can be made");
        mount("small", &at, "tmpfs", MountFlags::empty(), Some(c"size=1m")).expect("tests run as root");
        Self(at)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

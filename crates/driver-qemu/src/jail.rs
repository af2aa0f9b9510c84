//! Who an engine is, and what it may open.
//!
//! An engine has an unprivileged uid derived from its sandbox's name, the group that all engines share, no capability,
//! and no path: it gets descriptors. Three kinds of file it opens itself, through `/proc/self/fd`, where only the file's
//! own mode counts: its own program, the kernel, and the memory file. The group is what lets it open the last one:
//! before 8.2, QEMU opens a memory file for writing even if it maps it privately, so there every engine could write to a
//! golden file that it was given ("degraded"); newer ones get it read-only, and the file is nobody's to write.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, fchown};

use wakeful_sys::spawn::Identity;

use crate::engines::Pinned;

/// Engines get uids from the configured one on, this many.
const UIDS: u32 = 1000;

/// Which ids engines get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jail {
    /// First uid, and the group; `None` if engines run as whoever we are.
    first: Option<u32>,
}

impl Jail {
    /// Without root there is only one uid to have; and 0 asks for engines that run as root, without its capabilities.
    pub(crate) fn new(engine_uid: u32) -> Self {
        let switches = rustix::process::geteuid().is_root() && engine_uid != 0;
        Self { first: switches.then_some(engine_uid) }
    }

    /// Who the engine of this sandbox is. `groups` are further ones it needs (for `/dev/kvm`).
    pub(crate) fn identity(self, name: &str, groups: &[u32]) -> Option<Identity> {
        let first = self.first?;
        let digest = blake3::hash(name.as_bytes());
        let number = u32::from_le_bytes(digest.as_bytes()[..4].try_into().expect("four bytes"));
        Some(Identity { uid: first + number % UIDS, gid: first, groups: groups.to_vec() })
    }

    /// Lets engines write to a file that they open themselves: the memory of a golden snapshot in the making.
    pub(crate) fn allow_writing(self, file: &File) -> io::Result<()> {
        match self.first {
            Some(group) => {
                fchown(file, Some(0), Some(group))?;
                file.set_permissions(Permissions::from_mode(0o660))
            }
            None => file.set_permissions(Permissions::from_mode(0o600)),
        }
    }

    /// Lets engines map a base file privately, with the least that this version needs.
    pub(crate) fn allow_mapping(self, file: &File, engine: &Pinned) -> io::Result<()> {
        if !engine.maps_read_only() {
            return self.allow_writing(file);
        }
        if self.first.is_some() {
            fchown(file, Some(0), Some(0))?;
        }
        file.set_permissions(Permissions::from_mode(0o444))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_stable_and_bounded() {
        let jail = Jail { first: Some(64100) };
        let of = |name: &str| jail.identity(name, &[]).expect("it switches");
        assert_eq!(of("sbx_a"), of("sbx_a"));
        assert_ne!(of("sbx_a").uid, of("sbx_b").uid);
        for number in 0..200 {
            let identity = of(&number.to_string());
            assert!((64100..65100).contains(&identity.uid) && identity.gid == 64100);
        }
        assert_eq!(Jail { first: None }.identity("sbx_a", &[]), None);
    }
}

//! How trees are unpacked, and what came of it.

use std::ffi::OsString;
use std::path::PathBuf;

/// How an archive is unpacked. The default is safe for archives of strangers: entries replace what is there, owners and
/// modes are those of the archive, whiteouts are plain files.
#[derive(Debug, Clone, Default)]
pub struct Unpack {
    /// What it may take.
    pub limits: Limits,
    /// What `.wh.` files mean.
    pub whiteouts: Whiteouts,
    /// Who gets the files.
    pub owner: Owner,
    /// The mode of every file and directory, instead of its own.
    pub mode: Option<u32>,
    /// Where below the root the entries go. Symlinks in it are resolved inside the root; what is missing of it is made,
    /// 0755 and root's.
    pub prefix: PathBuf,
    /// Whether a whole tree is expected or one file.
    pub shape: Shape,
    /// Leave mode, owner and time of the directory that everything goes into as they are, whatever `./` says.
    pub keep_top: bool,
    /// A directory over a symlink to a directory goes into that one instead of replacing the symlink: for trees that are
    /// copied over a system whose `/lib` is a symlink.
    pub keep_directory_links: bool,
    /// The stream may end without the blocks of zeros that end an archive: for who knows by a digest that it is whole.
    pub open_end: bool,
}

/// What an archive may take; more ends the unpacking before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All files together, holes included.
    pub bytes: u64,
    /// Entries, and directories that they imply.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 32 << 30, entries: 2_000_000 }
    }
}

/// What `.wh.NAME` and `.wh..wh..opq` mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Whiteouts {
    /// What OCI says: NAME of lower layers goes, or all that lower layers have in the directory.
    Apply,
    /// Files like others.
    #[default]
    Keep,
}

/// Whose the files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Owner {
    /// What the archive, or the tree, says.
    #[default]
    Archived,
    /// One for all.
    Fixed {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
}

/// What the archive should hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Shape {
    /// Anything.
    #[default]
    Tree,
    /// Exactly one entry that is not a directory (directories are passed over). It is put into the prefix under this
    /// name, or under the last part of its own.
    Single {
        /// The name.
        name: Option<OsString>,
    },
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Files, directories, links and fifos.
    pub entries: u64,
    /// Bytes of files, holes included.
    pub bytes: u64,
    /// Device nodes, sockets and entries of unknown kinds that were left out.
    pub skipped: u64,
    /// Whiteouts that were applied.
    pub whiteouts: u64,
    /// Files that became shorter while they were packed and were filled with zeros.
    pub changed: u64,
}

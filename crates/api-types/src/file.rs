//! Files in a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Instant;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// An ordinary file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a pipe, a socket.
    Other,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Its last name.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Last change of its content.
    pub modified: Option<Instant>,
    /// Permission bits in octal, as `0644`.
    pub mode: String,
    /// Its owner's name, or number where there is no name.
    pub owner: String,
    /// Where a symbolic link points.
    pub target: Option<String>,
}

/// `GET …/files/{path}?list=true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// By name, without `.` and `..`.
    pub entries: Vec<FileEntry>,
}

/// A line of `GET …/files/{path}?watch=true`. Paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileEvent {
    /// It is there now: made, or moved here.
    Create {
        /// Which.
        path: String,
    },
    /// Its content changed.
    Write {
        /// Which.
        path: String,
    },
    /// It is gone.
    Remove {
        /// Which.
        path: String,
    },
    /// It has moved away from here.
    Rename {
        /// Which.
        path: String,
    },
    /// Its mode, owner or times changed.
    Chmod {
        /// Which.
        path: String,
    },
    /// There was more than could be told.
    Overflow,
    /// Nothing, for a while.
    Keepalive,
    /// The sandbox was put to sleep; the last line.
    Suspended,
    /// The watch ended otherwise; the last line.
    Error {
        /// Stable code of the problem.
        code: String,
        /// For people.
        detail: String,
    },
}

/// The answer to `PUT …/files/{path}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrittenFile {
    /// Where it is.
    pub path: String,
    /// Its last name.
    pub name: String,
    /// A file.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// In bytes.
    pub size: u64,
    /// When it was written.
    pub modified: Option<Instant>,
}

//! What can go wrong with a tree.

use std::io;
use std::path::PathBuf;

/// Why a tree was not packed or unpacked. Names are made fit to print and are cut.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory that everything happens in cannot be used.
    #[error("could not open the directory {}", path.display())]
    Root {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// What was to be packed is not there.
    #[error("there is no {}", path.display())]
    Missing {
        /// Which.
        path: PathBuf,
    },
    /// Whoever delivers the archive failed.
    #[error("could not read the archive")]
    Read {
        /// Its reason.
        source: io::Error,
    },
    /// Whoever takes the archive failed.
    #[error("could not write the archive")]
    Write {
        /// Its reason.
        source: io::Error,
    },
    /// The archive ends too early.
    #[error("the archive is cut off after {at} bytes")]
    Truncated {
        /// Where it ends.
        at: u64,
    },
    /// Not a tar archive, or not any more.
    #[error("the archive is damaged at byte {at}: {why}")]
    Damaged {
        /// Where, about.
        at: u64,
        /// In which way.
        why: &'static str,
    },
    /// An entry that no honest tree has.
    #[error("the entry {entry} is refused: {why}")]
    Refused {
        /// Its name.
        entry: String,
        /// In which way.
        why: &'static str,
    },
    /// A hard link to something that is not there or cannot be linked to.
    #[error("the hard link {entry} is refused: {target} {why}")]
    Link {
        /// Its name.
        entry: String,
        /// What it names.
        target: String,
        /// What is wrong with that.
        why: &'static str,
    },
    /// An entry below a symlink of the same archive that leads out of the tree.
    #[error("the entry {entry} is refused: it leads through the symlink {link}, which leads out of the tree")]
    Escape {
        /// Its name.
        entry: String,
        /// The symlink's name.
        link: String,
    },
    /// It would take more space than it may.
    #[error("the archive takes more than {limit} bytes unpacked")]
    TooLarge {
        /// What is allowed.
        limit: u64,
    },
    /// It has more entries than it may, or names more than can be kept in mind.
    #[error("the archive has more than {limit} entries")]
    TooMany {
        /// What is allowed.
        limit: u64,
    },
    /// The archive should have had exactly one entry beside directories.
    #[error("the archive holds {found} instead of exactly one file")]
    NotSingle {
        /// What it has.
        found: &'static str,
    },
    /// The system refused something to one entry.
    #[error("could not {attempted} {entry}")]
    Entry {
        /// Its name.
        entry: String,
        /// What was under way.
        attempted: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Whose fault it is, for callers who answer with codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The archive is wrong and stays wrong.
    Archive,
    /// The archive is above a limit.
    Limit,
    /// There is nothing to pack.
    Missing,
    /// No space left, or no quota.
    Space,
    /// Whoever delivers or takes the archive.
    Stream,
    /// Something else in the system.
    System,
}

impl Error {
    /// Whose fault it is. This crate goes into guests too, so it does not know the host's `model::Kind`.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Missing { .. } => Fault::Missing,
            Self::Read { .. } | Self::Write { .. } => Fault::Stream,
            Self::Truncated { .. }
            | Self::Damaged { .. }
            | Self::Refused { .. }
            | Self::Link { .. }
            | Self::Escape { .. }
            | Self::NotSingle { .. } => Fault::Archive,
            Self::TooLarge { .. } | Self::TooMany { .. } => Fault::Limit,
            Self::Root { source, .. } | Self::Entry { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Fault::Space,
                _ => Fault::System,
            },
        }
    }

    pub(crate) fn refused(entry: &[u8], why: &'static str) -> Self {
        Self::Refused { entry: shown(entry), why }
    }

    pub(crate) fn entry(entry: &[u8], attempted: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Entry { entry: shown(entry), attempted, source: source.into() }
    }
}

/// A name of a stranger, fit for a terminal and a log.
pub(crate) fn shown(name: &[u8]) -> String {
    const MOST: usize = 300;
    let text = String::from_utf8_lossy(name);
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        match c {
            _ if count == MOST => {
                out.push('…');
                break;
            }
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    if out.is_empty() { "(no name)".to_owned() } else { out }
}

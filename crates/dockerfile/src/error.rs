//! How reading a Dockerfile or its context fails.

use std::io;
use std::path::{Path, PathBuf};

use wakeful_model::Kind;

/// Why a Dockerfile, its context or its template file cannot be used. A line of 0 is one that is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a Dockerfile.
    #[error("{}{detail}", prefix(*line))]
    Syntax {
        /// Where the instruction begins.
        line: u32,
        /// What is wrong.
        detail: String,
    },
    /// Docker would do it; here it cannot be done.
    #[error("{}{detail}", prefix(*line))]
    Unsupported {
        /// Where the instruction begins.
        line: u32,
        /// What, and what to do instead.
        detail: String,
    },
    /// A bound is passed.
    #[error("{}{detail}", prefix(*line))]
    Limit {
        /// Where the instruction begins.
        line: u32,
        /// Which bound.
        detail: String,
    },
    /// A source of COPY or ADD cannot be had.
    #[error("{}could not copy {name:?}: {detail}", prefix(*line))]
    Source {
        /// Where the instruction begins.
        line: u32,
        /// The source as written.
        name: String,
        /// Why not.
        detail: String,
    },
    /// An archive that ADD should unpack is not usable.
    #[error("could not unpack archive {path}: {detail}")]
    Archive {
        /// The archive, in the context.
        path: PathBuf,
        /// Why not.
        detail: String,
    },
    /// The list of ignored files is wrong.
    #[error("could not use {path}, line {line}: {detail}")]
    Ignore {
        /// The list.
        path: PathBuf,
        /// Its line.
        line: u32,
        /// What is wrong.
        detail: String,
    },
    /// The template file is wrong.
    #[error("{}{detail}", prefix(*line))]
    Template {
        /// Its line.
        line: u32,
        /// What is wrong.
        detail: String,
    },
    /// A file could not be read or written.
    #[error("could not {doing} {path}")]
    Io {
        /// What was under way.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

fn prefix(line: u32) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}

impl Error {
    pub(crate) fn syntax(line: u32, detail: impl Into<String>) -> Self {
        Self::Syntax { line, detail: detail.into() }
    }

    pub(crate) fn unsupported(line: u32, detail: impl Into<String>) -> Self {
        Self::Unsupported { line, detail: detail.into() }
    }

    pub(crate) fn limit(line: u32, detail: impl Into<String>) -> Self {
        Self::Limit { line, detail: detail.into() }
    }

    pub(crate) fn source(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Source { line: 0, name: name.into(), detail: detail.into() }
    }

    pub(crate) fn archive(path: &Path, detail: impl Into<String>) -> Self {
        Self::Archive { path: path.to_owned(), detail: detail.into() }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    /// The line of the text that it is about, where there is one.
    #[must_use]
    pub fn line(&self) -> Option<u32> {
        match self {
            Self::Syntax { line, .. }
            | Self::Unsupported { line, .. }
            | Self::Limit { line, .. }
            | Self::Source { line, .. }
            | Self::Ignore { line, .. }
            | Self::Template { line, .. } => (*line > 0).then_some(*line),
            Self::Archive { .. } | Self::Io { .. } => None,
        }
    }

    /// The message without the line.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::Syntax { detail, .. }
            | Self::Unsupported { detail, .. }
            | Self::Limit { detail, .. }
            | Self::Template { detail, .. } => detail.clone(),
            Self::Source { name, detail, .. } => format!("could not copy {name:?}: {detail}"),
            Self::Archive { .. } | Self::Ignore { .. } | Self::Io { .. } => self.to_string(),
        }
    }

    /// The same error at a line, where it has none yet: what a context refuses is not tied to an instruction.
    #[must_use]
    pub fn with_line(mut self, at: u32) -> Self {
        match &mut self {
            Self::Syntax { line, .. }
            | Self::Unsupported { line, .. }
            | Self::Limit { line, .. }
            | Self::Source { line, .. } => {
                if *line == 0 {
                    *line = at;
                }
            }
            Self::Archive { .. } | Self::Ignore { .. } | Self::Template { .. } | Self::Io { .. } => {}
        }
        self
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Syntax { .. }
            | Self::Unsupported { .. }
            | Self::Limit { .. }
            | Self::Source { .. }
            | Self::Archive { .. }
            | Self::Ignore { .. }
            | Self::Template { .. } => Kind::Invalid,
            Self::Io { .. } => Kind::Internal,
        }
    }
}

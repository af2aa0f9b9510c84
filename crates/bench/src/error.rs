//! Why a measurement could not be made.

use std::path::PathBuf;

/// What ended a run. A missed target is no error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to measure with.
    #[error("{data_dir} is not prepared: {what}", data_dir = data_dir.display())]
    Unprepared {
        /// The directory that was named.
        data_dir: PathBuf,
        /// What it lacks.
        what: &'static str,
    },
    /// The private daemon did not come up, or went away.
    #[error("the private daemon {what}:\n{log}")]
    Server {
        /// What it did instead.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// A call of the API failed.
    #[error("could not {doing}")]
    Call {
        /// What was under way.
        doing: &'static str,
        /// Why it failed.
        source: wakeful_client::Error,
    },
    /// A command in a guest failed.
    #[error("`{command}` ended with {exit_code} in a guest")]
    Command {
        /// The command.
        command: String,
        /// Its exit code.
        exit_code: i32,
    },
    /// The private database could not be used.
    #[error("could not {doing}")]
    Store {
        /// What was under way.
        doing: &'static str,
        /// Why it failed.
        source: wakeful_store::Error,
    },
    /// The bare engine's guest did not answer as it should.
    #[error("could not {doing} on the bare engine's channel")]
    Guest {
        /// What was under way.
        doing: &'static str,
        /// Why it failed.
        source: wakeful_guest_client::Error,
    },
    /// The bare engine itself.
    #[error("the bare engine could not {doing}: {detail}")]
    Engine {
        /// What was under way.
        doing: &'static str,
        /// What it said.
        detail: String,
    },
    /// A file or a process of this machine.
    #[error("could not {doing}")]
    Io {
        /// What was under way.
        doing: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }

    pub(crate) fn call(doing: &'static str) -> impl FnOnce(wakeful_client::Error) -> Self {
        move |source| Self::Call { doing, source }
    }

    pub(crate) fn guest(doing: &'static str) -> impl FnOnce(wakeful_guest_client::Error) -> Self {
        move |source| Self::Guest { doing, source }
    }

    pub(crate) fn store(doing: &'static str) -> impl FnOnce(wakeful_store::Error) -> Self {
        move |source| Self::Store { doing, source }
    }

    pub(crate) fn engine(doing: &'static str, detail: impl std::fmt::Display) -> Self {
        Self::Engine { doing, detail: detail.to_string() }
    }
}

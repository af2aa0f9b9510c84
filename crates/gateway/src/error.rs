//! Why a preview could not be shown.

use wakeful_model::SandboxId;

/// What went wrong on the way to the service.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody is there.
    #[error("nothing in {id} listens on port {port}")]
    NotOpen {
        /// The sandbox.
        id: SandboxId,
        /// The port.
        port: u16,
    },
    /// Somebody is there, and does not speak HTTP, or stopped in the middle of it.
    #[error("what listens on port {port} of {id} gave no valid answer: {detail}")]
    BadAnswer {
        /// The sandbox.
        id: SandboxId,
        /// The port.
        port: u16,
        /// What was wrong with it.
        detail: String,
    },
    /// The request cannot be passed on.
    #[error("{0}")]
    BadRequest(&'static str),
    /// The sandbox cannot be had.
    #[error(transparent)]
    Sandbox(#[from] wakeful_lifecycle::Error),
}

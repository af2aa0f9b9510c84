//! Why a call gave no answer that can be used.

use wakeful_api_types::Problem;

/// Why not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused, and said why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The server is not there, or the connection to it was lost.
    #[error("could not reach {url}")]
    Unreachable {
        /// Where it should be.
        url: String,
        /// What happened.
        source: reqwest::Error,
    },
    /// What answered does not speak this protocol.
    #[error("{url} gave an answer that cannot be understood: {detail}")]
    Protocol {
        /// Who.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The call cannot be made with these arguments.
    #[error("{detail}")]
    Invalid {
        /// Why not.
        detail: String,
    },
}

impl Error {
    /// The problem's code, if the server refused.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => Some(&problem.code),
            Self::Unreachable { .. } | Self::Protocol { .. } | Self::Invalid { .. } => None,
        }
    }

    /// The problem, if the server refused.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Unreachable { .. } | Self::Protocol { .. } | Self::Invalid { .. } => None,
        }
    }
}

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
    /// It was there, and the connection broke in the middle of a stream.
    #[error("the connection to {url} broke: {detail}")]
    Broken {
        /// Who.
        url: String,
        /// What happened.
        detail: String,
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
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Protocol { .. } | Self::Invalid { .. } => None,
        }
    }

    /// The problem, if the server refused.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Protocol { .. } | Self::Invalid { .. } => None,
        }
    }

    /// The server was not to be reached, or not to the end: what was begun there may go on.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Broken { .. })
    }

    /// Nothing of the request can have reached a server.
    #[must_use]
    pub fn never_sent(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if source.is_connect())
    }
}

//! Who is asking. While there are no keys, everyone who is let in is admin of one tenant; this is the place where keys
//! come in.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::header;
use http::request::Parts;
use wakeful_model::{Cause, DEFAULT_TENANT};

/// The caller.
pub(crate) struct Caller {
    /// Whose sandboxes it sees.
    pub(crate) tenant: Arc<str>,
    /// What events say about where an ask came from.
    pub(crate) cause: Cause,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let agent = parts.headers.get(header::USER_AGENT);
        let cli = agent.is_some_and(|agent| agent.as_bytes().starts_with(b"wakeful-cli/"));
        Ok(Self { tenant: DEFAULT_TENANT.into(), cause: if cli { Cause::Cli } else { Cause::Api } })
    }
}

//! Who is asking.
//!
//! ```text
//!   no key in the store   everyone who is let in (see `origin`) is admin of tenant `default`, whatever it shows
//!   keys                  Authorization: Bearer K, or X-API-Key: K; K is a key or the text of DATA/admin.token
//! ```
//!
//! A key acts in its own tenant, the admin token in `default`. An admin may act in any other tenant by naming it in
//! `X-Wakeful-Tenant`; then it is as if it had a key of that tenant, down to its limits. That is the only way across:
//! without the header another tenant's sandbox is as foreign to an admin as to anyone.

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use secrecy::{ExposeSecret, SecretString};
use tracing::debug;
use wakeful_lifecycle::{Identity, Keyring};
use wakeful_model::{Cause, Code, DEFAULT_TENANT, Digest, Key, Scope, read_key};

use crate::problem::Problem;
use crate::{ApiConfig, authorize, origin};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What is needed to know a caller.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) config: Arc<ApiConfig>,
    keyring: Arc<Keyring>,
    admin_token: Option<Digest>,
}

impl Door {
    pub(crate) fn new(config: Arc<ApiConfig>, keyring: Arc<Keyring>) -> Self {
        let admin_token = config.admin_token.as_ref().map(|token| Digest::of(token.expose_secret()));
        Self { config, keyring, admin_token }
    }

    fn is_admin_token(&self, shown: &[SecretString]) -> bool {
        let same = |token: &Digest| shown.iter().any(|text| token.same(&Digest::of(text.expose_secret())));
        self.admin_token.as_ref().is_some_and(same)
    }

    /// Who a request comes from, and whether there are keys at all. Without any, where it comes from must be asked too.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> (Option<Caller>, bool) {
        let shown = shown(headers);
        match self.keyring.identify(shown.iter().filter_map(read_key)) {
            Identity::NoKeys => (Some(Caller::new(headers, None)), false),
            Identity::Holder(key) => {
                debug!(key_id = %key.id, tenant = key.tenant, "called with a key");
                (Some(Caller::new(headers, Some(key))), true)
            }
            Identity::Nobody if self.is_admin_token(&shown) => (Some(Caller::new(headers, None)), true),
            Identity::Nobody => (None, true),
        }
    }

    /// Takes out of a request what could be a credential of ours, also one that is none any more: it is nobody else's
    /// business. What a service's own callers show to it stays.
    pub(crate) fn hide_credentials(&self, headers: &mut HeaderMap) {
        for name in [header::AUTHORIZATION, X_API_KEY] {
            let ours = headers.get_all(&name).iter().any(|value| {
                let text = value.to_str().unwrap_or_default();
                let text = text.split_once(' ').map_or(text, |(_, rest)| rest).trim();
                let shown = SecretString::from(text);
                read_key(&shown).is_some() || self.is_admin_token(std::slice::from_ref(&shown))
            });
            if ours {
                headers.remove(name);
            }
        }
    }

    /// Whose word a session of this caller is: it ends with the key.
    pub(crate) fn word_of(&self, caller: &Caller) -> String {
        match &caller.key {
            Some(key) => key.id.to_string(),
            None if self.keyring.is_empty() => NO_KEYS.to_owned(),
            None => ADMIN.to_owned(),
        }
    }

    /// Whether that word still counts.
    pub(crate) fn stands_by(&self, word: &str) -> bool {
        match word {
            ADMIN => true,
            NO_KEYS => self.keyring.is_empty(),
            id => id.parse().is_ok_and(|id| self.keyring.contains(&id)),
        }
    }
}

/// The word of who shows the admin token.
const ADMIN: &str = "admin";
/// The word of anybody, as long as there are no keys.
const NO_KEYS: &str = "anybody";

/// The caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Whose sandboxes it sees.
    pub(crate) tenant: Arc<str>,
    /// What events say about where an ask came from.
    pub(crate) cause: Cause,
    /// Its key; without one it is admin.
    key: Option<Arc<Key>>,
}

impl Caller {
    fn new(headers: &HeaderMap, key: Option<Arc<Key>>) -> Self {
        let agent = headers.get(header::USER_AGENT);
        let cli = agent.is_some_and(|agent| agent.as_bytes().starts_with(b"wakeful-cli/"));
        Self {
            tenant: key.as_ref().map_or(DEFAULT_TENANT, |key| &key.tenant).into(),
            cause: if cli { Cause::Cli } else { Cause::Api },
            key,
        }
    }

    /// Whether it may do what needs this scope.
    pub(crate) fn allows(&self, needed: Scope) -> bool {
        self.key.as_ref().is_none_or(|key| key.allows(needed))
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.allows(Scope::Admin)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthenticated)
    }
}

/// The layer around everything: lets strangers no further, and notes who the others are. What they may do is asked
/// where a route has matched.
pub(crate) async fn identify(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let (caller, keys) = door.caller(request.headers());
    if !keys && let Err(problem) = origin::refuse_strangers(&door.config, request.uri(), request.headers()) {
        return problem.into_response();
    }
    // Before the caller matters: browsers ask this without a key.
    if keys && let Some(answer) = origin::preflight(&request) {
        return answer;
    }
    let mut response = match caller {
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        None if is_open(&request) => next.run(request).await,
        None => unauthenticated().into_response(),
    };
    if keys {
        origin::allow_all(response.headers_mut());
    }
    response
}

fn is_open(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>();
    route.is_some_and(|route| authorize::needs(request.method(), route.as_str()).is_open())
}

/// What it shows. Some send both headers, one of them for another purpose: whichever is a key counts.
fn shown(headers: &HeaderMap) -> Vec<SecretString> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|text| {
        let (scheme, rest) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    bearer.into_iter().chain(text(X_API_KEY).map(str::trim)).map(SecretString::from).collect()
}

pub(crate) fn unauthenticated() -> Problem {
    Problem::new(Code::Unauthenticated, "this server wants a key, and none that it knows was shown")
        .hint(
            "send Authorization: Bearer KEY or X-API-Key: KEY; `wakeful key create` on the server's machine makes one",
        )
        .with_status(StatusCode::UNAUTHORIZED, header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        shown(&headers).iter().map(|text| text.expose_secret().to_owned()).collect()
    }

    #[test]
    fn credentials() {
        assert_eq!(texts(&[("authorization", "Bearer a")]), ["a"]);
        assert_eq!(texts(&[("authorization", "bearer  a ")]), ["a"]);
        assert_eq!(texts(&[("x-api-key", "b")]), ["b"]);
        assert_eq!(texts(&[("x-api-key", "b"), ("authorization", "Bearer a")]), ["a", "b"]);
        assert_eq!(texts(&[("x-api-key", "b"), ("authorization", "Basic a")]), ["b"]);
        assert!(texts(&[("authorization", "a")]).is_empty());
    }
}

//! Forks: children of a sandbox that go on from the same instant.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};
use serde_json::{Map, Value};
use wakeful_api_types::{ForkError, Forked};
use wakeful_lifecycle::{Answer, Fork};
use wakeful_model::{Code, InvalidId, SandboxId};

use crate::body::Object;
use crate::caller::Caller;
use crate::fields::Fields;
use crate::idempotency::{self, Key};
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;
use crate::{App, create, wire};

/// The ids of all children of one fork: what a key stands for.
struct Children(Vec<SandboxId>);

impl Children {
    fn random(count: usize) -> Self {
        Self((0..count).map(|_| SandboxId::random()).collect())
    }
}

impl fmt::Display for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.0.iter().map(SandboxId::as_str).collect();
        f.write_str(&texts.join(","))
    }
}

impl FromStr for Children {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

pub(crate) async fn fork(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    headers: HeaderMap,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let key = Key::of(&headers, &format!("POST /v1/sandboxes/{id}/fork"), &body.0)?;
    let (count, fork) = request(body.0)?;
    let (making, finding) = (app.lifecycle.clone(), app.lifecycle.clone());
    let (tenant, theirs) = (Arc::clone(&caller.tenant), Arc::clone(&caller.tenant));
    let make = async move |children: Children| {
        let forked = making.fork(&tenant, &id, Fork { children: children.0, ..fork }).await?;
        let errors = forked.errors.into_iter().map(|error| Problem::from(error).into_fork_error()).collect();
        answer(&Forked { sandboxes: forked.sandboxes.into_iter().map(wire::sandbox).collect(), errors })
    };
    let made = async move |children: Children| {
        let mut forked = Forked { sandboxes: Vec::new(), errors: Vec::new() };
        for child in children.0 {
            match finding.created(&theirs, &child).await? {
                Some(view) => forked.sandboxes.push(wire::sandbox(view)),
                None => forked.errors.push(ForkError {
                    code: Code::ShuttingDown.as_str().to_owned(),
                    detail: "the daemon ended before it was made".to_owned(),
                }),
            }
        }
        if forked.sandboxes.is_empty() { Ok(None) } else { answer(&forked).map(Some) }
    };
    idempotency::once(&app, &caller.tenant, key, move || Children::random(count), make, made).await
}

fn answer(forked: &Forked) -> Result<Answer, Problem> {
    idempotency::answer(StatusCode::CREATED, None, forked)
}

/// Reads a request: how many, and how. Which fields go together depends on the source.
pub(crate) fn request(body: Map<String, Value>) -> Result<(usize, Fork), Problem> {
    let mut fields = Fields::of(body, &["count", "mode", "timeout", "idle_timeout"])?;
    let count = fields.number("count", Code::InvalidField)?.unwrap_or(1);
    let count = usize::try_from(count).ok().filter(|count| (1..=Fork::MOST).contains(count)).ok_or_else(|| {
        Problem::field(Code::InvalidField, "count", format!("count must be a number from 1 to {}", Fork::MOST))
    })?;
    let fork = Fork {
        children: Vec::new(),
        mode: create::mode(&mut fields)?,
        timeout: fields.duration("timeout")?,
        idle_timeout: fields.duration("idle_timeout")?,
    };
    Ok((count, fork))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use wakeful_model::Mode;

    fn read(body: Value) -> Result<(usize, Fork), Problem> {
        let Value::Object(map) = body else { panic!("an object") };
        request(map)
    }

    #[test]
    fn requests() {
        let (count, fork) = read(json!({})).unwrap();
        assert_eq!((count, fork.mode, fork.timeout, fork.idle_timeout), (1, None, None, None));
        let (count, fork) = read(json!({"count": 100, "mode": "ephemeral", "timeout": "10m"})).unwrap();
        assert_eq!((count, fork.mode, fork.timeout), (100, Some(Mode::Ephemeral), Some(Duration::from_secs(600))));
        for (body, code, field) in [
            (json!({"count": 0}), Code::InvalidField, "count"),
            (json!({"count": 101}), Code::InvalidField, "count"),
            (json!({"count": 4_294_967_296_u64}), Code::InvalidField, "count"),
            (json!({"count": "3"}), Code::InvalidField, "count"),
            (json!({"mode": "forever"}), Code::InvalidMode, "mode"),
            (json!({"timeout": "0s"}), Code::InvalidDuration, "timeout"),
            (json!({"idle_timeout": "soon"}), Code::InvalidDuration, "idle_timeout"),
            (json!({"size": "shared-cpu-1x"}), Code::UnknownField, "size"),
        ] {
            let problem = read(body.clone()).map(|_| ()).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{body}");
        }
    }

    #[test]
    fn a_key_stands_for_all_children() {
        let children = Children::random(3);
        let again: Children = children.to_string().parse().unwrap();
        assert_eq!(again.0, children.0);
        assert!("".parse::<Children>().is_err());
    }
}

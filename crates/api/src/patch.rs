//! `PATCH /v1/sandboxes/{id}`.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use serde_json::{Map, Value};
use wakeful_lifecycle::Patch;
use wakeful_model::Code;

use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;
use crate::{App, create, wire};

const FIELDS: [&str; 6] = ["metadata", "egress", "idle_timeout", "hard_ttl", "auto_resume", "disk_mb"];

pub(crate) async fn patch(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let view = app.lifecycle.patch(&caller.tenant, &id, read(body.0)?, caller.cause).await?;
    Ok(json(StatusCode::OK, &wire::sandbox(view)))
}

/// `null` means absent, as everywhere, save for `hard_ttl`, which can be taken away.
fn read(body: Map<String, Value>) -> Result<Patch, Problem> {
    let endless = body.get("hard_ttl").is_some_and(Value::is_null);
    let mut fields = Fields::of(body, &FIELDS)?;
    Ok(Patch {
        metadata: if fields.has("metadata") { Some(create::metadata(&mut fields)?) } else { None },
        egress: create::egress(&mut fields)?,
        idle_timeout: fields.duration("idle_timeout")?,
        hard_ttl: if endless { Some(None) } else { fields.duration("hard_ttl")?.map(Some) },
        auto_resume: fields.boolean("auto_resume")?,
        disk_mb: fields.number("disk_mb", Code::InvalidSize)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn of(body: Value) -> Result<Patch, Problem> {
        let Value::Object(map) = body else { panic!("an object") };
        read(map)
    }

    #[test]
    fn changes() {
        assert_eq!(of(json!({})).unwrap(), Patch::default());
        assert_eq!(of(json!({"metadata": null, "idle_timeout": null, "auto_resume": null})).unwrap(), Patch::default());
        let ttl = |value: Value| of(json!({"hard_ttl": value})).unwrap().hard_ttl;
        assert_eq!(ttl(json!("2h")), Some(Some(Duration::from_secs(7200))));
        assert_eq!(ttl(Value::Null), Some(None));
        assert_eq!(of(json!({"disk_mb": 4096})).unwrap().disk_mb, Some(4096));
        assert_eq!(of(json!({"metadata": {}})).unwrap().metadata, Some([].into()));
    }

    #[test]
    fn refused() {
        for (body, code) in [
            (json!({"timeout": "5m"}), Code::UnknownField),
            (json!({"env": {}}), Code::UnknownField),
            (json!({"hard_ttl": "0s"}), Code::InvalidDuration),
            (json!({"idle_timeout": -1}), Code::InvalidDuration),
            (json!({"metadata": {"": "x"}}), Code::InvalidField),
            (json!({"metadata": {"a": 1}}), Code::InvalidField),
            (json!({"egress": {"mode": "maybe"}}), Code::InvalidEgress),
            (json!({"egress": {"allow": []}}), Code::UnknownField),
            (json!({"auto_resume": "yes"}), Code::InvalidField),
            (json!({"disk_mb": "4g"}), Code::InvalidSize),
            (json!({"disk_mb": -1}), Code::InvalidSize),
        ] {
            assert_eq!(of(body.clone()).unwrap_err().code(), code, "{body}");
        }
    }
}

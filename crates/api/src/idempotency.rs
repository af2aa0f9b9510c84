//! `Idempotency-Key`: the same call twice is done once, and answered twice alike.
//!
//! What is kept are answers of success; a call that was refused leaves its key free. The work runs in a task of its own:
//! the caller that hangs up is the one that will come again with its key.

use std::fmt::Display;
use std::future::Future;
use std::str::FromStr;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::Instrument;
use wakeful_lifecycle::{Answer, Claimed, Repeats};
use wakeful_model::Code;

use crate::App;
use crate::problem::Problem;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LONGEST: usize = 255;

/// A key, and what it is to stand for.
#[derive(Debug)]
pub(crate) struct Key {
    text: String,
    digest: String,
}

impl Key {
    /// The request's, if it has one. `call` tells apart what the same body means in different calls.
    pub(crate) fn of(headers: &HeaderMap, call: &str, body: &Map<String, Value>) -> Result<Option<Self>, Problem> {
        let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = given.next() else { return Ok(None) };
        let bytes = value.as_bytes();
        let fits = (1..=LONGEST).contains(&bytes.len()) && bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
        match std::str::from_utf8(bytes) {
            Ok(text) if fits && given.next().is_none() => {
                Ok(Some(Self { text: text.to_owned(), digest: digest(call, body) }))
            }
            _ => {
                let detail = "Idempotency-Key must be one value of 1 to 255 printable ASCII characters";
                Err(Problem::field(Code::InvalidField, "Idempotency-Key", detail))
            }
        }
    }
}

/// Two bodies that mean the same have the same: neither the order of fields nor spaces count.
fn digest(call: &str, body: &Map<String, Value>) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(map) => object(map),
            Value::Array(list) => list.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
    fn object(map: &Map<String, Value>) -> Value {
        let mut fields: Vec<_> = map.iter().collect();
        fields.sort_by_key(|(name, _)| *name);
        fields.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect()
    }
    blake3::hash(format!("{call}\n{}", object(body)).as_bytes()).to_hex().to_string()
}

/// An answer that can be kept; with the place of what was made, if that is one thing.
pub(crate) fn answer(
    status: StatusCode,
    location: impl Into<Option<String>>,
    body: &impl Serialize,
) -> Result<Answer, Problem> {
    let body = serde_json::to_string(body).map_err(|e| Problem::internal(format!("could not write an answer: {e}")))?;
    Ok(Answer { status: status.as_u16(), location: location.into(), body })
}

fn response(answer: Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let location = answer.location.and_then(|location| HeaderValue::try_from(location).ok());
    headers.extend(location.map(|value| (header::LOCATION, value)));
    response
}

/// Where the ids of new things come from.
pub(crate) trait Ids: Send + Sync + 'static {
    /// An id.
    type Id: Display + FromStr + Send + Sync + 'static;

    /// One for a call that may be repeated, or may not.
    fn fresh(&self, repeats: Repeats) -> impl Future<Output = Self::Id> + Send;

    /// One that was stored nowhere, and will not be used.
    fn unused(&self, _id: &Self::Id) {}
}

impl<I, F> Ids for F
where
    I: Display + FromStr + Send + Sync + 'static,
    F: Fn() -> I + Send + Sync + 'static,
{
    type Id = I;

    fn fresh(&self, _repeats: Repeats) -> impl Future<Output = I> + Send {
        std::future::ready(self())
    }
}

/// Does a call that makes something: once for a key, or as often as it comes without one.
///
/// `make` makes it under an id; `made` finds what came of an earlier call under its id, if that lives.
pub(crate) async fn once<I, Make, Making, Made, Finding>(
    app: &App,
    tenant: &str,
    key: Option<Key>,
    ids: I,
    make: Make,
    made: Made,
) -> Result<Response, Problem>
where
    I: Ids,
    Make: FnOnce(I::Id) -> Making + Send + 'static,
    Making: Future<Output = Result<Answer, Problem>> + Send,
    Made: FnOnce(I::Id) -> Finding + Send + 'static,
    Finding: Future<Output = Result<Option<Answer>, Problem>> + Send,
{
    let Some(key) = key else { return make(ids.fresh(Repeats::Never).await).await.map(response) };
    let (lifecycle, tenant) = (app.lifecycle.clone(), tenant.to_owned());
    let work = async move {
        let parse =
            |text: &str| text.parse::<I::Id>().map_err(|_| Problem::internal(format!("{text:?} is no such id")));
        let fresh = ids.fresh(Repeats::ByKey).await;
        let held = match lifecycle.claim(&tenant, &key.text, &key.digest, fresh.to_string()).await? {
            Claimed::Answered(answer) => {
                ids.unused(&fresh);
                return Ok(answer);
            }
            Claimed::New(held) => held,
            Claimed::Interrupted(held) => match made(parse(held.subject())?).await? {
                Some(answer) => {
                    ids.unused(&fresh);
                    held.keep(&answer).await;
                    return Ok(answer);
                }
                None => held.renew(fresh.to_string()).await?,
            },
        };
        match make(parse(held.subject())?).await {
            Ok(answer) => {
                held.keep(&answer).await;
                Ok(answer)
            }
            Err(problem) => {
                held.release().await;
                Err(problem)
            }
        }
    };
    let done = app.config.tasks.spawn(work.in_current_span()).await;
    done.map_err(|error| Problem::internal(format!("the task of a call: {error}")))?.map(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(body: Value) -> String {
        let Value::Object(map) = body else { panic!("an object") };
        digest("POST /v1/sandboxes", &map)
    }

    #[test]
    fn the_order_of_fields_does_not_count() {
        let one: Value = serde_json::from_str(r#"{"a": {"x": 1, "y": [1, {"b": 2, "a": 1}]}, "b": null}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"b":null,"a":{"y":[1,{"a":1,"b":2}],"x":1}}"#).unwrap();
        assert_eq!(of(one.clone()), of(two));
        for other in [json!({"a": 1}), json!({}), json!({"a": {"x": 1, "y": [{"b": 2, "a": 1}, 1]}, "b": null})] {
            assert_ne!(of(one.clone()), of(other));
        }
        let Value::Object(map) = one else { panic!("an object") };
        assert_ne!(digest("POST /v1/sandboxes", &map), digest("POST /v1/templates", &map));
    }

    #[test]
    fn keys() {
        let read = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
            }
            Key::of(&headers, "", &Map::new()).map(|key| key.map(|key| key.text)).map_err(|problem| problem.code())
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"a b~"]), Ok(Some("a b~".into())));
        assert!(read(&[&[b'x'; 255]]).is_ok());
        for bad in [&[&b""[..]][..], &[&[b'x'; 256]], &[b"\xc3\xa9"], &[b"a\tb"], &[b"a", b"a"]] {
            assert_eq!(read(bad), Err(Code::InvalidField), "{bad:?}");
        }
    }
}

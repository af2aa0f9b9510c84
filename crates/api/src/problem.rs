//! Refusals: which status a code has, and how a problem is written.
//!
//! A handler returns a [`Problem`]; it travels in the response's extensions to the outermost layer, which knows the
//! request id, and is written there. What is internal goes to the log at that place, once, and never into the body.

use std::any::Any;
use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};
use tracing::error;
use wakeful_api_types::{ForkError, Frame, PROBLEM_JSON};
use wakeful_lifecycle::Error;
use wakeful_model::Code;

use crate::page;

/// The status of each code.
pub(crate) const fn status(code: Code) -> StatusCode {
    match code {
        Code::InvalidJson
        | Code::UnknownField
        | Code::MissingField
        | Code::InvalidField
        | Code::InvalidId
        | Code::InvalidSize
        | Code::InvalidMode
        | Code::InvalidDuration
        | Code::InvalidCombination
        | Code::InvalidEgress
        | Code::InvalidPath
        | Code::InvalidName
        | Code::MissingCommand
        | Code::WorkdirNotFound
        | Code::UnknownUser
        | Code::IsDirectory
        | Code::NotADirectory => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::WrongTenant | Code::Forbidden | Code::ForeignOrigin => StatusCode::FORBIDDEN,
        Code::RouteNotFound
        | Code::SandboxNotFound
        | Code::TemplateNotFound
        | Code::SnapshotNotFound
        | Code::TenantNotFound
        | Code::KeyNotFound
        | Code::PathNotFound
        | Code::ProcessNotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::TemplateNotReady
        | Code::BuildInProgress
        | Code::NoBuild
        | Code::NameTaken
        | Code::NotEphemeral
        | Code::NotRunning
        | Code::NotSuspended
        | Code::NotSuspendable
        | Code::NotWakeable
        | Code::SandboxDestroyed
        | Code::SandboxFailed
        | Code::SandboxSuspended
        | Code::SuspendedDuringExec
        | Code::StdinClosed
        | Code::WakeInProgress
        | Code::IdempotencyMismatch
        | Code::TenantInUse
        | Code::LastKey => StatusCode::CONFLICT,
        Code::BodyTooLarge | Code::FileTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::NoShell | Code::CommandNotFound | Code::NotExecutable => StatusCode::UNPROCESSABLE_ENTITY,
        Code::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::UnsupportedByRuntime => StatusCode::NOT_IMPLEMENTED,
        Code::GuestUnresponsive | Code::PortNotOpen | Code::BadGateway => StatusCode::BAD_GATEWAY,
        Code::ShuttingDown | Code::Busy | Code::RuntimeUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::WakeTimeout | Code::NotReady => StatusCode::GATEWAY_TIMEOUT,
        Code::InsufficientCapacity | Code::DiskFull | Code::GuestDiskFull => StatusCode::INSUFFICIENT_STORAGE,
    }
}

/// A refusal on its way to the caller. Boxed: it travels in many results and is rare.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    code: Code,
    status: StatusCode,
    detail: String,
    hint: Option<String>,
    field: Option<String>,
    more: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// For the log only.
    internal: Option<String>,
    /// For somebody with a browser.
    page: bool,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            status: status(code),
            detail: detail.into(),
            hint: None,
            field: None,
            more: Map::new(),
            headers: Vec::new(),
            internal: None,
            page: false,
        }))
    }

    /// Of a field of the request.
    pub(crate) fn field(code: Code, field: impl Into<String>, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(code, detail);
        problem.0.field = Some(field.into());
        problem
    }

    /// Our fault; `chain` is for the log.
    pub(crate) fn internal(chain: impl Into<String>) -> Self {
        let mut problem = Self::new(Code::Internal, "something went wrong inside the server");
        problem.0.internal = Some(chain.into());
        problem.hint("the server's log has the reason under this request_id")
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// With a header, and a status that only HTTP knows.
    #[must_use]
    pub(crate) fn with_status(mut self, status: StatusCode, name: HeaderName, value: HeaderValue) -> Self {
        self.0.status = status;
        self.0.headers.push((name, value));
        self
    }

    /// Written as a page, if so wanted.
    #[must_use]
    pub(crate) fn for_a_browser(mut self, wanted: bool) -> Self {
        self.0.page = wanted;
        self
    }

    #[must_use]
    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.more.insert(name.to_owned(), value.into());
        self
    }

    /// As the last frame of a stream that has begun; what is internal goes to the log.
    pub(crate) fn into_frame(self) -> Frame {
        if let Some(chain) = &self.0.internal {
            error!(error = %chain, "stream failed");
        }
        Frame::Error { code: self.0.code.as_str().to_owned(), detail: self.0.detail }
    }

    /// As one of several outcomes in an answer that is no problem; what is internal goes to the log.
    pub(crate) fn into_fork_error(self) -> ForkError {
        if let Some(chain) = &self.0.internal {
            error!(error = %chain, "child of a fork failed");
        }
        ForkError { code: self.0.code.as_str().to_owned(), detail: self.0.detail }
    }

    pub(crate) fn code(&self) -> Code {
        self.0.code
    }

    #[cfg(test)]
    pub(crate) fn field_name(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    pub(crate) fn wire(self, request_id: &str) -> wakeful_api_types::Problem {
        wakeful_api_types::Problem {
            kind: "about:blank".into(),
            title: self.0.status.canonical_reason().unwrap_or("Error").into(),
            status: self.0.status.as_u16(),
            code: self.0.code.as_str().into(),
            detail: self.0.detail,
            hint: self.0.hint,
            field: self.0.field,
            request_id: request_id.into(),
            more: self.0.more,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.status;
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the body of a problem that a handler returned; other responses pass.
pub(crate) fn write(mut response: Response, request_id: &str) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    if let Some(chain) = &problem.0.internal {
        error!(error = %chain, "request failed");
    }
    let headers = response.headers_mut();
    // An inner layer counted the empty body.
    headers.remove(header::CONTENT_LENGTH);
    if problem.0.page {
        page::dress(headers);
    } else {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    }
    if matches!(problem.0.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    headers.extend(problem.0.headers.iter().cloned());
    let is_page = problem.0.page;
    let problem = problem.wire(request_id);
    *response.body_mut() = if is_page {
        Body::from(page::of(&problem))
    } else {
        Body::from(serde_json::to_vec(&problem).expect("strings and numbers are JSON"))
    };
    response
}

/// A handler that panicked: the others go on.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
pub(crate) fn of_panic(panic: Box<dyn Any + Send>) -> Response {
    let text: Cow<'_, str> = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => Cow::Borrowed(text),
        (None, Some(text)) => Cow::Borrowed(text),
        (None, None) => Cow::Borrowed("a panic without words"),
    };
    Problem::internal(format!("the handler panicked: {text}")).into_response()
}

/// The whole chain of an error.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let code = error.code();
        if code == Code::Internal {
            return Self::internal(chain(&error));
        }
        let detail = match &error {
            // Names paths of the host.
            Error::Driver(_) => "the host's disk is full".to_owned(),
            _ => error.to_string(),
        };
        let mut problem = Self::new(code, detail);
        problem.0.hint = error.hint();
        problem.0.field = error.field().map(str::to_owned);
        match error {
            Error::SuspendedDuringExec { pid, seq, .. } => problem.with("pid", pid).with("seq", seq),
            Error::InsufficientCapacity { fits, .. } => problem.with("fits", fits),
            Error::QuotaExceeded { limit, used, most, .. } => {
                problem.with("limit", limit.to_string()).with("used", used).with("most", most)
            }
            _ => problem,
        }
    }
}

impl From<wakeful_gateway::Error> for Problem {
    fn from(error: wakeful_gateway::Error) -> Self {
        use wakeful_gateway::Error as Preview;
        let detail = error.to_string();
        match error {
            Preview::NotOpen { .. } => Self::new(Code::PortNotOpen, detail)
                .hint("start the service first; 127.0.0.1 and ::1 inside are both tried"),
            Preview::BadAnswer { .. } => {
                Self::new(Code::BadGateway, detail).hint("does it speak HTTP? raw TCP is at …/ports/{port}/tcp")
            }
            Preview::BadRequest(_) => Self::new(Code::InvalidField, detail),
            Preview::Sandbox(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wakeful_model::{Refusal, SandboxId};

    fn body(problem: Problem) -> String {
        serde_json::to_string(&problem.wire("r1")).unwrap()
    }

    fn id() -> SandboxId {
        "sbx_k3v7q2m5x6a4b2c7d5ef".parse().unwrap()
    }

    #[test]
    fn bodies() {
        insta::assert_snapshot!(body(Error::Refused { id: id(), refusal: Refusal::Suspended }.into()), @r#"{"type":"about:blank","title":"Conflict","status":409,"code":"sandbox_suspended","detail":"sbx_k3v7q2m5x6a4b2c7d5ef: it is suspended and auto_resume is off","hint":"POST /v1/sandboxes/sbx_k3v7q2m5x6a4b2c7d5ef/wake","field":null,"request_id":"r1"}"#);
        insta::assert_snapshot!(body(Error::SuspendedDuringExec { id: id(), pid: Some(214), seq: 3 }.into()), @r#"{"type":"about:blank","title":"Conflict","status":409,"code":"suspended_during_exec","detail":"sbx_k3v7q2m5x6a4b2c7d5ef was suspended while the command ran; it is frozen with the sandbox and goes on after the next wake","hint":"POST /v1/sandboxes/sbx_k3v7q2m5x6a4b2c7d5ef/wake, or any call on it","field":null,"request_id":"r1","pid":214,"seq":3}"#);
        insta::assert_snapshot!(body(Error::InsufficientCapacity { detail: "no memory".into(), fits: None }.into()), @r#"{"type":"about:blank","title":"Insufficient Storage","status":507,"code":"insufficient_capacity","detail":"no memory","hint":null,"field":null,"request_id":"r1","fits":null}"#);
    }

    #[test]
    fn a_limit_is_named() {
        let error =
            Error::QuotaExceeded { tenant: "acme".into(), limit: wakeful_model::Limit::MemoryMb, used: 512, most: 600 };
        insta::assert_snapshot!(body(error.into()), @r#"{"type":"about:blank","title":"Too Many Requests","status":429,"code":"quota_exceeded","detail":"tenant acme has 512 of at most 600 memory_mb, and this would be more","hint":"suspend a sandbox that runs, or ask for a smaller one","field":null,"request_id":"r1","limit":"memory_mb","used":512,"most":600}"#);
    }

    #[test]
    fn internal_text_stays_inside() {
        let source = std::io::Error::other("secret device");
        let problem: Problem = Error::Io { doing: "write /var/lib/x".into(), source }.into();
        assert_eq!(problem.0.internal.as_deref(), Some("could not write /var/lib/x: secret device"));
        let text = body(problem);
        assert!(!text.contains("secret") && !text.contains("/var"), "{text}");
    }
}

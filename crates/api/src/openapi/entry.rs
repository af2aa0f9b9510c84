//! One operation of the document, in the few words that ours need.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{Ref, RefOr, Required, Schema};
use wakeful_api_types::PROBLEM_JSON;
use wakeful_model::Code;

use crate::problem::status;

/// What every call can end with.
const EVERYWHERE: [Code; 4] = [Code::ForeignOrigin, Code::Forbidden, Code::Unauthenticated, Code::Internal];

/// The schemas that an operation refers to.
pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

/// An operation under way.
pub(super) struct Entry {
    pub(super) method: HttpMethod,
    pub(super) path: &'static str,
    pub(super) schemas: Schemas,
    /// Schemas of requests; all others are of answers, in which nothing is ever left out.
    pub(super) requests: Vec<String>,
    operation: OperationBuilder,
    codes: Vec<Code>,
    answers: Vec<(u16, ResponseBuilder)>,
}

pub(super) fn get(path: &'static str, id: &str, summary: &str) -> Entry {
    Entry::new(HttpMethod::Get, path, id, summary)
}

pub(super) fn post(path: &'static str, id: &str, summary: &str) -> Entry {
    Entry::new(HttpMethod::Post, path, id, summary)
}

pub(super) fn put(path: &'static str, id: &str, summary: &str) -> Entry {
    Entry::new(HttpMethod::Put, path, id, summary)
}

pub(super) fn patch(path: &'static str, id: &str, summary: &str) -> Entry {
    Entry::new(HttpMethod::Patch, path, id, summary)
}

pub(super) fn delete(path: &'static str, id: &str, summary: &str) -> Entry {
    Entry::new(HttpMethod::Delete, path, id, summary)
}

pub(super) fn head(path: &'static str, id: &str, summary: &str) -> Entry {
    Entry::new(HttpMethod::Head, path, id, summary)
}

pub(super) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub(super) fn flag() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}

pub(super) fn number(least: u64, most: u64) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most))
}

pub(super) fn words(words: &[&str]) -> ObjectBuilder {
    text().enum_values(Some(words.iter().copied()))
}

impl Entry {
    fn new(method: HttpMethod, path: &'static str, id: &str, summary: &str) -> Self {
        let tag = path.trim_start_matches("/v1").split('/').nth(1).filter(|_| path.starts_with("/v1"));
        let tag = match tag.unwrap_or("server") {
            "info" | "prune" | "df" => "server",
            "uploads" => "templates",
            "sandboxes" => match path.split('/').nth(4).unwrap_or("") {
                "files" => "files",
                "execute" | "processes" | "pty" => "processes",
                "ports" => "ports",
                "snapshots" => "snapshots",
                _ => "sandboxes",
            },
            other => other,
        };
        let operation = OperationBuilder::new().operation_id(Some(id)).summary(Some(summary)).tag(tag);
        let entry = Self {
            method,
            path,
            schemas: Vec::new(),
            requests: Vec::new(),
            operation,
            codes: EVERYWHERE.to_vec(),
            answers: Vec::new(),
        };
        let names = path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
        names.fold(entry, Entry::path_parameter)
    }

    fn path_parameter(mut self, name: &str) -> Self {
        let of_sandbox = self.path.starts_with("/v1/sandboxes/");
        let (schema, about): (RefOr<Schema>, _) = match name {
            "id" if of_sandbox => (Ref::from_schema_name("SandboxId").into(), "The sandbox"),
            "id" if self.path.starts_with("/v1/snapshots/") => {
                (Ref::from_schema_name("SnapshotId").into(), "The snapshot")
            }
            "path" => (text().into(), "The path in the sandbox, without its first slash; empty for the root"),
            "pid" => (number(1, u64::from(u32::MAX)).into(), "The process"),
            "port" => (number(1, 65535).into(), "The port in the sandbox"),
            "template" => (text().into(), "The template, by name or id"),
            "size" => (words(&wakeful_model::SIZES.map(|size| size.name)).into(), "The size"),
            "name" if self.path.starts_with("/v1/templates") => (text().into(), "The template, by name or id"),
            _ => (text().into(), "Which one"),
        };
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
        self.operation = self.operation.parameter(parameter.description(Some(about)).schema(Some(schema)));
        if of_sandbox && name == "id" {
            self = self.refuses(&[Code::UnknownField, Code::InvalidField, Code::WrongTenant, Code::SandboxNotFound]);
        }
        self
    }

    /// More about it.
    pub(super) fn about(mut self, text: &str) -> Self {
        self.operation = self.operation.description(Some(text));
        self
    }

    /// Needs no credentials.
    pub(super) fn open(mut self) -> Self {
        self.operation = self.operation.security(SecurityRequirement::default());
        self.codes.retain(|code| !matches!(*code, Code::Unauthenticated | Code::Forbidden));
        self
    }

    fn parameter(mut self, place: ParameterIn, name: &str, about: &str, schema: impl Into<RefOr<Schema>>) -> Self {
        let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(Required::False);
        self.operation = self.operation.parameter(parameter.description(Some(about)).schema(Some(schema)));
        self
    }

    /// A query parameter.
    pub(super) fn query(self, name: &str, schema: impl Into<RefOr<Schema>>, about: &str) -> Self {
        self.parameter(ParameterIn::Query, name, about, schema).refuses(&[Code::UnknownField, Code::InvalidField])
    }

    /// A header that means something here.
    pub(super) fn header(self, name: &str, schema: impl Into<RefOr<Schema>>, about: &str) -> Self {
        self.parameter(ParameterIn::Header, name, about, schema)
    }

    /// The same call with the same key is done once.
    pub(super) fn idempotent(self) -> Self {
        let key = text().min_length(Some(1)).max_length(Some(255)).pattern(Some("^[!-~]([ -~]*[!-~])?$"));
        let about = "A call that is repeated with the same key and body within 24 hours gets the first answer";
        self.header("Idempotency-Key", key, about).refuses(&[Code::InvalidField, Code::IdempotencyMismatch, Code::Busy])
    }

    fn refer<T: ToSchema>(&mut self) -> RefOr<Schema> {
        let name = T::name().into_owned();
        T::schemas(&mut self.schemas);
        self.schemas.push((name.clone(), T::schema()));
        Ref::from_schema_name(name).into()
    }

    /// A JSON body; every one may be left out, and is then an empty object.
    pub(super) fn body<T: ToSchema>(mut self, example: &Value) -> Self {
        let before = self.schemas.len();
        let schema = self.refer::<T>();
        let named: Vec<String> = self.schemas[before..].iter().map(|(name, _)| name.clone()).collect();
        self.requests.extend(named);
        let content = ContentBuilder::new().schema(Some(schema)).example(Some(example.clone())).build();
        let body = RequestBodyBuilder::new().content("application/json", content).build();
        self.operation = self.operation.request_body(Some(body));
        self.refuses(&[Code::InvalidJson, Code::UnknownField, Code::InvalidField, Code::BodyTooLarge])
    }

    /// A body of bytes.
    pub(super) fn bytes(mut self, about: &str) -> Self {
        let content = ContentBuilder::new().schema(Some(text().content_media_type("application/octet-stream"))).build();
        let body = RequestBodyBuilder::new().description(Some(about)).content("application/octet-stream", content);
        self.operation = self.operation.request_body(Some(body.build()));
        self
    }

    /// An answer in JSON.
    pub(super) fn answers<T: ToSchema>(mut self, status: u16, about: &str) -> Self {
        let schema = self.refer::<T>();
        let content = ContentBuilder::new().schema(Some(schema)).build();
        self.answers.push((status, with_id(about).content("application/json", content)));
        self
    }

    /// An answer in JSON, with an example.
    pub(super) fn answers_as<T: ToSchema>(mut self, status: u16, about: &str, example: &Value) -> Self {
        let schema = self.refer::<T>();
        let content = ContentBuilder::new().schema(Some(schema)).example(Some(example.clone())).build();
        self.answers.push((status, with_id(about).content("application/json", content)));
        self
    }

    /// An answer of this kind that no schema describes: bytes, text, a stream.
    pub(super) fn sends(mut self, status: u16, media: &str, about: &str) -> Self {
        let content = ContentBuilder::new().schema(Some(text())).build();
        match self.answers.iter().position(|(other, _)| *other == status) {
            Some(at) => {
                let (status, answer) = self.answers.remove(at);
                self.answers.insert(at, (status, answer.content(media, content)));
            }
            None => self.answers.push((status, with_id(about).content(media, content))),
        }
        self
    }

    /// An answer without a body.
    pub(super) fn empty(mut self, status: u16, about: &str) -> Self {
        self.answers.push((status, with_id(about)));
        self
    }

    /// The last answer says where the new thing is.
    pub(super) fn located(mut self) -> Self {
        if let Some((status, answer)) = self.answers.pop() {
            let location = HeaderBuilder::new().schema(Some(text())).description(Some("Where it is")).build();
            self.answers.push((status, answer.header("Location", location)));
        }
        self
    }

    /// A refusal whose status only HTTP knows.
    pub(super) fn problem(mut self, status: u16, about: &str) -> Self {
        let schema: RefOr<Schema> = Ref::from_schema_name("Problem").into();
        let body = ContentBuilder::new().schema(Some(schema)).build();
        self.answers.push((status, with_id(about).content(PROBLEM_JSON, body)));
        self
    }

    /// Refusals that it can end with, beside those of every call and of what it takes.
    pub(super) fn refuses(mut self, codes: &[Code]) -> Self {
        for code in codes {
            if !self.codes.contains(code) {
                self.codes.push(*code);
            }
        }
        self
    }

    /// The operation, with all its answers.
    pub(super) fn finish(self) -> (OperationBuilder, Schemas) {
        let bodyless = matches!(self.method, HttpMethod::Head);
        let mut codes = self.codes;
        codes.sort_by_key(|code| (status(*code), code.as_str()));
        let mut operation = self.operation;
        for (status, answer) in self.answers {
            operation = operation.response(status.to_string(), answer.build());
        }
        for group in codes.chunk_by(|a, b| status(*a) == status(*b)) {
            let status = status(group[0]);
            let names: Vec<String> = group.iter().map(|code| format!("`{code}`")).collect();
            let mut answer = with_id(&names.join(", "));
            if !bodyless {
                let schema: RefOr<Schema> = Ref::from_schema_name("Problem").into();
                answer = answer.content(PROBLEM_JSON, ContentBuilder::new().schema(Some(schema)).build());
            }
            if matches!(status.as_u16(), 429 | 503) {
                let seconds =
                    HeaderBuilder::new().schema(Some(number(1, 3600))).description(Some("Seconds to wait")).build();
                answer = answer.header("Retry-After", seconds);
            }
            if status.as_u16() == 401 {
                let scheme = HeaderBuilder::new().schema(Some(text())).description(Some("`Bearer`")).build();
                answer = answer.header("WWW-Authenticate", scheme);
            }
            operation = operation.response(status.as_str(), answer.build());
        }
        (operation, self.schemas)
    }
}

fn with_id(about: &str) -> ResponseBuilder {
    let id = text().pattern(Some("^[A-Za-z0-9_-]{1,64}$")).examples([json!("req_k3v7q2m5x6a4b2c7d5ef")]);
    let header =
        HeaderBuilder::new().schema(Some(id)).description(Some("The request's id, as in the server's log")).build();
    ResponseBuilder::new().description(about).header("X-Request-Id", header)
}

//! Templates, and what the server says about itself.

use serde_json::json;
use wakeful_api_types::{CreateTemplate, Health, Info, NDJSON, Template, TemplateList};
use wakeful_model::Code;

use super::entry::{Entry, delete, flag, get, post};
use crate::metrics::OPENMETRICS;

pub(super) fn entries() -> Vec<Entry> {
    let none = [Code::TemplateNotFound, Code::UnknownField, Code::InvalidField];
    vec![
        post("/v1/templates", "createTemplate", "Build a template")
            .about("It is built in the background; its log tells how far it is.")
            .idempotent()
            .body::<CreateTemplate>(&json!({
                "name": "data", "source": {"kind": "debian", "suite": "bookworm", "packages": ["python3", "jq"]}
            }))
            .answers::<Template>(202, "The template, not yet built")
            .located()
            .refuses(&[
                Code::MissingField,
                Code::InvalidName,
                Code::InvalidSize,
                Code::InvalidEgress,
                Code::NameTaken,
                Code::ShuttingDown,
            ]),
        get("/v1/templates", "listTemplates", "List templates by name")
            .answers::<TemplateList>(200, "All of them")
            .refuses(&[Code::UnknownField, Code::InvalidField]),
        get("/v1/templates/{name}", "getTemplate", "Look at a template")
            .answers::<Template>(200, "The template")
            .refuses(&none),
        delete("/v1/templates/{name}", "deleteTemplate", "Delete a template")
            .about("Sandboxes made from it live on.")
            .empty(204, "It is gone")
            .refuses(&none),
        get("/v1/templates/{name}/logs", "getTemplateLog", "The log of a template's build")
            .query("follow", flag(), "Stay until the build has ended")
            .sends(200, NDJSON, "One JSON object a line; the last tells how the build stands")
            .refuses(&none),
        get("/v1/info", "getInfo", "What this server can do").answers::<Info>(200, "Sizes, limits, runtimes"),
        get("/healthz", "getHealth", "Whether the server is up")
            .open()
            .answers::<Health>(200, "It is")
            .refuses(&[Code::ShuttingDown]),
        get("/metrics", "getMetrics", "What the daemon counts, for Prometheus")
            .sends(200, OPENMETRICS, "OpenMetrics text")
            .refuses(&[Code::UnknownField, Code::InvalidField]),
        get("/openapi.json", "getOpenApi", "This document")
            .open()
            .sends(200, "application/json", "This document")
            .refuses(&[Code::UnknownField, Code::InvalidField]),
    ]
}

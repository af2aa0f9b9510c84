//! Templates, and what the server says about itself.

use serde_json::json;
use wakeful_api_types::{
    CreateTemplate, Health, Info, NDJSON, PruneRequest, Pruned, RebuildTemplate, Template, TemplateList, Upload, Usage,
};
use wakeful_model::Code;

use super::entry::{Entry, delete, flag, get, post};
use crate::metrics::OPENMETRICS;

pub(super) fn entries() -> Vec<Entry> {
    let none = [Code::TemplateNotFound, Code::UnknownField, Code::InvalidField];
    vec![
        post("/v1/templates", "createTemplate", "Build a template")
            .about(
                "It is built in the background; its log tells how far it is. What it is built from, if that is no image \
                of a registry and no package, is sent before, to `/v1/uploads`.",
            )
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
                Code::InvalidDuration,
                Code::InvalidCombination,
                Code::InvalidEgress,
                Code::WrongTenant,
                Code::SandboxNotFound,
                Code::SnapshotNotFound,
                Code::NameTaken,
                Code::ShuttingDown,
                Code::RuntimeUnavailable,
                Code::UnsupportedByRuntime,
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
            .sends(200, NDJSON, "One JSON object a line, see the schema `BuildEvent`; the last tells how the build stands")
            .refuses(&none),
        post("/v1/templates/{name}/rebuild", "rebuildTemplate", "Build a template again")
            .about(
                "Sandboxes keep the base that they began with, and new ones get the old one until the new one is ready, \
                also if the build fails.",
            )
            .body::<RebuildTemplate>(&json!({}))
            .answers::<Template>(202, "The template, not yet built again")
            .refuses(&none)
            .refuses(&[Code::BuildInProgress, Code::ShuttingDown]),
        post("/v1/templates/{name}/cancel", "cancelTemplateBuild", "End the build of a template")
            .answers::<Template>(200, "The template, whose build has ended")
            .refuses(&none)
            .refuses(&[Code::NoBuild, Code::InvalidJson, Code::BodyTooLarge]),
        post("/v1/uploads", "createUpload", "Send what a template is to be built from")
            .about(
                "An archive of an image, the context of a Dockerfile or a root file system; the last two as tars. What no \
                template was built from is kept for a day.",
            )
            .bytes("The bytes, of any length that the server takes; need not be announced")
            .answers_as::<Upload>(
                201,
                "What a template's source calls it",
                &json!({"id": "upl_k3v7q2m5x6a4b2c7d5ef", "bytes": 10240, "digest": "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"}),
            )
            .refuses(&[
                Code::UnknownField,
                Code::InvalidField,
                Code::BodyTooLarge,
                Code::DiskFull,
                Code::ShuttingDown,
            ]),
        post("/v1/prune", "prune", "Remove what builds keep for the next, and everything that nobody needs")
            .about("Nothing that a template, a sandbox or a snapshot stands on.")
            .body::<PruneRequest>(&json!({"unused": "7d"}))
            .answers::<Pruned>(200, "What was removed")
            .refuses(&[Code::InvalidDuration, Code::BuildInProgress]),
        get("/v1/df", "getUsage", "What lies in the data directory")
            .answers::<Usage>(200, "Kind by kind")
            .refuses(&[Code::UnknownField, Code::InvalidField]),
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

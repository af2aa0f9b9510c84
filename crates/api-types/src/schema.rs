//! How the types of `model` look in the OpenAPI document. `model` itself knows no documents.

use std::borrow::Cow;

use serde_json::json;
use strum::IntoEnumIterator;
use utoipa::openapi::schema::{Object, ObjectBuilder, OneOfBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{KnownFormat, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::{DurationText, Instant};

macro_rules! stands_for {
    ($(#[$doc:meta])* $name:ident, $schema:expr) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    };
}

fn id_pattern(prefix: &str) -> String {
    format!("^({prefix})?[a-z][a-z2-7]{{19}}$")
}

fn id(prefix: &str, what: &str) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(id_pattern(prefix)))
        .description(Some(format!("The id of a {what}; taken with and without its prefix, printed with it")))
        .examples([json!(format!("{prefix}k3v7q2m5x6a4b2c7d5ef"))])
        .build()
}

fn words<W: ToString>(words: impl IntoIterator<Item = W>, what: &str) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(words.into_iter().map(|word| word.to_string())))
        .description(Some(what))
        .build()
}

fn amounts(types: &[Type], what: &str) -> Object {
    let amount = |about: &str| {
        let kind = SchemaType::from_iter(types.iter().cloned());
        ObjectBuilder::new().schema_type(kind).minimum(Some(0)).description(Some(about))
    };
    ObjectBuilder::new()
        .description(Some(what))
        .property("sandboxes", amount("Sandboxes that are not destroyed"))
        .property("memory_mb", amount("Memory of those that run, in MiB"))
        .property("disk_mb", amount("Disk of all that are not destroyed, in MiB"))
        .build()
}

stands_for!(SandboxId, id("sbx_", "sandbox"));
stands_for!(TemplateId, id("tpl_", "template"));
stands_for!(SnapshotId, id("snp_", "snapshot"));
stands_for!(KeyId, id("key_", "key"));
stands_for!(UploadId, id("upl_", "upload"));
stands_for!(Scope, words(wakeful_model::Scope::ALL.map(wakeful_model::Scope::as_str), "What a key allows"));
stands_for!(TenantLimits, amounts(&[Type::Integer, Type::Null], "How much a tenant may have; null for no limit"));
stands_for!(TenantUsage, amounts(&[Type::Integer], "How much a tenant has"));
stands_for!(Mode, words(["ephemeral", "persistent"], "How a sandbox ends: with its lease, or not by itself"));
stands_for!(EgressMode, words(["allow_all", "deny_all"], "What happens to traffic that no list names"));
stands_for!(TemplateStatus, words(["pending", "building", "ready", "failed", "deleted"], "How far a template is"));
stands_for!(EventType, words(wakeful_model::EventType::iter(), "What happened"));
stands_for!(Cause, words(wakeful_model::Cause::iter(), "Why it happened"));
stands_for!(
    TemplateSource,
    OneOfBuilder::new()
        .item(
            source("debian", "Debian packages")
                .property("suite", string("The release"))
                .required("suite")
                .property("packages", <Vec<String>>::schema())
        )
        .item(
            source("image", "An image of a registry, or of an archive that was uploaded")
                .property("reference", nullable("Its name; of an archive, which of its images is meant"))
                .property("upload", nullable_id("upl_", "The archive: of `docker save`, or an OCI layout"))
        )
        .item(
            source("dockerfile", "A Dockerfile, with what it copies from")
                .property("upload", id("upl_", "upload"))
                .required("upload")
                .property("dockerfile", string("Where the file is in the upload, a tar; `Dockerfile` if absent"))
                .property("target", nullable("The stage that is wanted; the last, if null"))
                .property(
                    "build_args",
                    ObjectBuilder::new()
                        .schema_type(Type::Object)
                        .additional_properties(Some(ObjectBuilder::new().schema_type(Type::String)))
                        .description(Some("Values of its `ARG`s"))
                )
        )
        .item(source("rootfs", "A root file system").property("upload", id("upl_", "upload")).required("upload"))
        .item(
            source("sandbox", "The disk of a sandbox or of a snapshot: one of the two")
                .property("sandbox_id", nullable_id("sbx_", "The sandbox"))
                .property("snapshot_id", nullable_id("snp_", "The snapshot"))
        )
        .description(Some("Where a template comes from"))
);

fn source(kind: &str, title: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .title(Some(title))
        .property("kind", words([kind], title))
        .required("kind")
        .additional_properties(Some(utoipa::openapi::schema::AdditionalProperties::FreeForm(false)))
}

fn string(about: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).description(Some(about))
}

fn nullable(about: &str) -> ObjectBuilder {
    string(about).schema_type(SchemaType::from_iter([Type::String, Type::Null]))
}

fn nullable_id(prefix: &str, about: &str) -> ObjectBuilder {
    nullable(about).pattern(Some(id_pattern(prefix)))
}

impl PartialSchema for Instant {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339, UTC, milliseconds"))
            .examples([json!("2026-04-05T14:30:00.000Z")])
            .into()
    }
}

impl ToSchema for Instant {}

impl PartialSchema for DurationText {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new()
            .item(
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .pattern(Some("^([0-9]+(ms|s|m|h|d))+$"))
                    .examples([json!("90s"), json!("1h30m")]),
            )
            .item(ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).description(Some("Seconds")))
            .description(Some("A duration as people write it, or a whole number of seconds"))
            .into()
    }
}

impl ToSchema for DurationText {
    fn name() -> Cow<'static, str> {
        "Duration".into()
    }
}

//! What a template is to be made of, as a request says it: each kind has fields of its own.

use serde_json::{Map, Value};
use wakeful_model::{Code, TemplateSource};

use crate::fields::Fields;
use crate::problem::Problem;

const KINDS: &str = "source.kind is debian, image, dockerfile, rootfs or sandbox";
const DOCKERFILE: &str = "Dockerfile";

fn missing(field: &str) -> Problem {
    Problem::field(Code::MissingField, field, format!("{field} is required"))
}

/// The source of a template.
pub(crate) fn source(fields: &mut Fields) -> Result<TemplateSource, Problem> {
    let code = Code::InvalidField;
    let map = match fields.take("source") {
        None => return Err(missing("source")),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(Problem::field(code, "source", "source must be an object").hint(KINDS)),
    };
    let kind = match map.get("kind") {
        None | Some(Value::Null) => return Err(missing("source.kind").hint(KINDS)),
        Some(Value::String(kind)) => kind.clone(),
        Some(_) => return Err(Problem::field(code, "source.kind", "source.kind must be a string").hint(KINDS)),
    };
    let with = |known: &[&str]| of_kind(map, known);
    Ok(match kind.as_str() {
        "debian" => {
            let mut source = with(&["suite", "packages"])?;
            TemplateSource::Debian {
                suite: source.string("suite", code)?.ok_or_else(|| missing("source.suite"))?,
                packages: source.strings("packages", code)?,
            }
        }
        "image" => {
            let mut source = with(&["reference", "upload"])?;
            let (reference, upload) = (source.string("reference", code)?, id(&mut source, "upload")?);
            if reference.is_none() && upload.is_none() {
                return Err(missing("source.reference").hint("or source.upload, for an archive"));
            }
            TemplateSource::Image { reference, upload }
        }
        "dockerfile" => {
            let mut source = with(&["upload", "dockerfile", "target", "build_args"])?;
            let upload = id(&mut source, "upload")?.ok_or_else(|| missing("source.upload"))?;
            let dockerfile = source.string("dockerfile", code)?.unwrap_or_else(|| DOCKERFILE.to_owned());
            if dockerfile.is_empty() || dockerfile.ends_with('/') {
                let detail = "source.dockerfile must be the path of a file in the upload";
                return Err(Problem::field(code, "source.dockerfile", detail));
            }
            let target = source.string("target", code)?;
            let build_args = source.map("build_args")?;
            let nul = |(name, value): (&String, &String)| name.contains('\0') || value.contains('\0');
            if build_args.iter().any(nul) || build_args.contains_key("") {
                let detail = "build_args must have names, and neither they nor their values a NUL";
                return Err(Problem::field(code, "source.build_args", detail));
            }
            TemplateSource::Dockerfile { upload, dockerfile, target, build_args }
        }
        "rootfs" => {
            let mut source = with(&["upload"])?;
            TemplateSource::Rootfs { upload: id(&mut source, "upload")?.ok_or_else(|| missing("source.upload"))? }
        }
        "sandbox" => {
            let mut source = with(&["sandbox_id", "snapshot_id"])?;
            let (sandbox_id, snapshot_id) = (id(&mut source, "sandbox_id")?, id(&mut source, "snapshot_id")?);
            match (&sandbox_id, &snapshot_id) {
                (None, None) => return Err(missing("source.sandbox_id").hint("or source.snapshot_id")),
                (Some(_), Some(_)) => {
                    let detail = "give either sandbox_id or snapshot_id";
                    return Err(Problem::field(Code::InvalidCombination, "source.snapshot_id", detail));
                }
                _ => TemplateSource::Sandbox { sandbox_id, snapshot_id },
            }
        }
        other => {
            let other: String = other.chars().take(80).collect();
            let detail = format!("templates cannot be built from {other:?}");
            return Err(Problem::field(code, "source.kind", detail).hint(KINDS));
        }
    })
}

/// The fields of a source, of which only these are known beside its kind.
fn of_kind(map: Map<String, Value>, known: &[&str]) -> Result<Fields, Problem> {
    let known: Vec<&str> = ["kind"].iter().chain(known).copied().collect();
    Fields::within("source.".to_owned(), map, &known)
}

/// An id, with or without its prefix. Whether there is such a thing, lifecycle knows.
pub(crate) fn id<I>(fields: &mut Fields, name: &str) -> Result<Option<I>, Problem>
where
    I: std::str::FromStr<Err = wakeful_model::InvalidId>,
{
    let Some(text) = fields.string(name, Code::InvalidField)? else { return Ok(None) };
    text.parse().map(Some).map_err(|error: wakeful_model::InvalidId| {
        Problem::field(Code::InvalidField, fields.name(name), error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UPLOAD: &str = "upl_k3v7q2m5x6a4b2c7d5ef";
    const SANDBOX: &str = "sbx_k3v7q2m5x6a4b2c7d5ef";
    const SNAPSHOT: &str = "snp_k3v7q2m5x6a4b2c7d5ef";

    fn read(value: &Value) -> Result<TemplateSource, Problem> {
        let Value::Object(map) = json!({"source": value}) else { panic!("an object") };
        source(&mut Fields::of(map, &["source"])?)
    }

    #[test]
    fn every_kind() {
        for body in [
            json!({"kind": "debian", "suite": "bookworm", "packages": ["python3"]}),
            json!({"kind": "image", "reference": "python:3.12"}),
            json!({"kind": "image", "upload": UPLOAD}),
            json!({"kind": "image", "upload": UPLOAD, "reference": "app:1"}),
            json!({"kind": "dockerfile", "upload": UPLOAD, "dockerfile": "a/b", "target": "x", "build_args": {"A": "1"}}),
            json!({"kind": "rootfs", "upload": UPLOAD}),
            json!({"kind": "sandbox", "sandbox_id": SANDBOX}),
            json!({"kind": "sandbox", "snapshot_id": SNAPSHOT}),
        ] {
            let wanted: TemplateSource = serde_json::from_value(body.clone()).unwrap();
            assert_eq!(read(&body).unwrap(), wanted, "{body}");
        }
    }

    #[test]
    fn what_is_left_out() {
        let none: Vec<String> = Vec::new();
        let debian = read(&json!({"kind": "debian", "suite": "s", "packages": null})).unwrap();
        assert_eq!(debian, TemplateSource::Debian { suite: "s".into(), packages: none });
        let TemplateSource::Dockerfile { dockerfile, target, build_args, .. } =
            read(&json!({"kind": "dockerfile", "upload": &UPLOAD[4..], "target": null})).unwrap()
        else {
            panic!("of a Dockerfile")
        };
        assert_eq!((dockerfile.as_str(), target, build_args.len()), ("Dockerfile", None, 0));
    }

    #[test]
    fn refusals() {
        use Code::{InvalidCombination, InvalidField, MissingField, UnknownField};
        for (body, code, field) in [
            (json!(null), MissingField, "source"),
            (json!("debian"), InvalidField, "source"),
            (json!([]), InvalidField, "source"),
            (json!({}), MissingField, "source.kind"),
            (json!({"kind": null, "suite": "s"}), MissingField, "source.kind"),
            (json!({"kind": 1}), InvalidField, "source.kind"),
            (json!({"kind": "docker"}), InvalidField, "source.kind"),
            (json!({"kind": "debian"}), MissingField, "source.suite"),
            (json!({"kind": "debian", "suite": 1}), InvalidField, "source.suite"),
            (json!({"kind": "debian", "suite": "s", "packages": "a,b"}), InvalidField, "source.packages"),
            (json!({"kind": "debian", "suite": "s", "image": "x"}), UnknownField, "source.image"),
            (json!({"kind": "debian", "suite": "s", "upload": UPLOAD}), UnknownField, "source.upload"),
            (json!({"kind": "image"}), MissingField, "source.reference"),
            (json!({"kind": "image", "reference": null, "upload": null}), MissingField, "source.reference"),
            (json!({"kind": "image", "reference": ["a"]}), InvalidField, "source.reference"),
            (json!({"kind": "image", "reference": "a\0"}), InvalidField, "source.reference"),
            (json!({"kind": "image", "upload": "../../etc"}), InvalidField, "source.upload"),
            (json!({"kind": "image", "upload": SANDBOX}), InvalidField, "source.upload"),
            (json!({"kind": "image", "upload": UPLOAD, "tag": "x"}), UnknownField, "source.tag"),
            (json!({"kind": "dockerfile"}), MissingField, "source.upload"),
            (json!({"kind": "dockerfile", "upload": 7}), InvalidField, "source.upload"),
            (json!({"kind": "dockerfile", "upload": UPLOAD, "dockerfile": ""}), InvalidField, "source.dockerfile"),
            (json!({"kind": "dockerfile", "upload": UPLOAD, "dockerfile": "a/"}), InvalidField, "source.dockerfile"),
            (json!({"kind": "dockerfile", "upload": UPLOAD, "target": 1}), InvalidField, "source.target"),
            (json!({"kind": "dockerfile", "upload": UPLOAD, "build_args": ["A=1"]}), InvalidField, "source.build_args"),
            (
                json!({"kind": "dockerfile", "upload": UPLOAD, "build_args": {"A": 1}}),
                InvalidField,
                "source.build_args",
            ),
            (
                json!({"kind": "dockerfile", "upload": UPLOAD, "build_args": {"A": "\0"}}),
                InvalidField,
                "source.build_args",
            ),
            (
                json!({"kind": "dockerfile", "upload": UPLOAD, "build_args": {"": "x"}}),
                InvalidField,
                "source.build_args",
            ),
            (json!({"kind": "dockerfile", "upload": UPLOAD, "args": {}}), UnknownField, "source.args"),
            (json!({"kind": "rootfs"}), MissingField, "source.upload"),
            (json!({"kind": "rootfs", "upload": ""}), InvalidField, "source.upload"),
            (json!({"kind": "rootfs", "upload": UPLOAD, "reference": "x"}), UnknownField, "source.reference"),
            (json!({"kind": "sandbox"}), MissingField, "source.sandbox_id"),
            (json!({"kind": "sandbox", "sandbox_id": "x"}), InvalidField, "source.sandbox_id"),
            (json!({"kind": "sandbox", "snapshot_id": SANDBOX}), InvalidField, "source.snapshot_id"),
            (
                json!({"kind": "sandbox", "sandbox_id": SANDBOX, "snapshot_id": SNAPSHOT}),
                InvalidCombination,
                "source.snapshot_id",
            ),
            (json!({"kind": "sandbox", "sandbox_id": SANDBOX, "memory": true}), UnknownField, "source.memory"),
        ] {
            let problem = read(&body).map(|_| ()).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{body}");
        }
    }
}

//! What a create request says, checked as far as that needs neither template nor defaults.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use wakeful_lifecycle::NewSandbox;
use wakeful_model::{Code, Egress, IoLimits, Mode, Size, preset};

use crate::fields::Fields;
use crate::problem::Problem;

const FIELDS: [&str; 16] = [
    "template",
    "mode",
    "timeout",
    "idle_timeout",
    "idle_timeout_seconds",
    "hard_ttl",
    "size",
    "cpu",
    "memory_mb",
    "disk_mb",
    "env",
    "metadata",
    "egress",
    "io",
    "auto_resume",
    "runtime",
];
const MOST_LABELS: usize = 64;
const LABEL_BYTES: usize = 16 << 10;

/// Reads a create request.
pub(crate) fn new_sandbox(tenant: &str, body: Map<String, Value>) -> Result<NewSandbox, Problem> {
    let mut fields = Fields::of(body, &FIELDS)?;
    let template = fields
        .string("template", Code::InvalidField)?
        .filter(|name| !name.is_empty())
        .ok_or_else(|| Problem::field(Code::MissingField, "template", "template is required"))?;
    let mode = mode(&mut fields)?.unwrap_or(Mode::Ephemeral);
    one_mode_only(&fields, mode)?;
    let timeout = fields.duration("timeout")?;
    let idle_timeout = fields.duration("idle_timeout")?;
    let in_seconds = fields.duration("idle_timeout_seconds")?;
    if idle_timeout.is_some() && in_seconds.is_some() && idle_timeout != in_seconds {
        let detail = "idle_timeout and idle_timeout_seconds say different things";
        return Err(Problem::field(Code::InvalidCombination, "idle_timeout_seconds", detail));
    }
    let hard_ttl = fields.duration("hard_ttl")?;
    let (size, cpu, memory_mb, disk_mb) = size(&mut fields)?;
    Ok(NewSandbox {
        tenant: tenant.to_owned(),
        template,
        mode,
        timeout,
        idle_timeout: idle_timeout.or(in_seconds),
        hard_ttl,
        size,
        cpu,
        memory_mb,
        disk_mb,
        env: fields.env()?,
        metadata: metadata(&mut fields)?,
        egress: egress(&mut fields)?,
        io: io(&mut fields)?,
        auto_resume: fields.boolean("auto_resume")?.unwrap_or(true),
        runtime: fields.string("runtime", Code::InvalidField)?,
    })
}

/// How a sandbox ends, if the request says so.
pub(crate) fn mode(fields: &mut Fields) -> Result<Option<Mode>, Problem> {
    match fields.string("mode", Code::InvalidMode)? {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            let text: String = text.chars().take(80).collect();
            Problem::field(Code::InvalidMode, "mode", format!("there is no mode {text:?}"))
                .hint("modes are ephemeral and persistent")
        }),
    }
}

/// A field of the other mode would silently do nothing.
fn one_mode_only(fields: &Fields, mode: Mode) -> Result<(), Problem> {
    let foreign: &[&str] = match mode {
        Mode::Ephemeral => &["idle_timeout", "idle_timeout_seconds"],
        Mode::Persistent => &["timeout"],
    };
    match foreign.iter().find(|name| fields.has(name)) {
        None => Ok(()),
        Some(name) => {
            Err(Problem::field(Code::InvalidCombination, *name, format!("{name} has no meaning in mode {mode}")))
        }
    }
}

type Shape = (Option<String>, Option<u32>, Option<u32>, Option<u32>);

fn size(fields: &mut Fields) -> Result<Shape, Problem> {
    let size = fields.string("size", Code::InvalidSize)?;
    let cpu = fields.number("cpu", Code::InvalidSize)?;
    let memory_mb = fields.number("memory_mb", Code::InvalidSize)?;
    let disk_mb = fields.number("disk_mb", Code::InvalidSize)?;
    let invalid = |error: wakeful_model::InvalidSize| {
        Problem::field(Code::InvalidSize, error.field(), error.to_string()).hint("GET /v1/info lists the sizes")
    };
    if let Some(name) = &size {
        if cpu.is_some() || memory_mb.is_some() {
            let detail = "give either size or cpu and memory_mb";
            return Err(Problem::field(Code::InvalidCombination, "size", detail));
        }
        preset(name).map_err(invalid)?;
    }
    // What is not given is decided later; for this check any good value stands for it.
    Size::check(cpu.unwrap_or(1), memory_mb.unwrap_or(256), disk_mb.unwrap_or(2048)).map_err(invalid)?;
    Ok((size, cpu, memory_mb, disk_mb))
}

pub(crate) fn metadata(fields: &mut Fields) -> Result<BTreeMap<String, String>, Problem> {
    let metadata = fields.map("metadata")?;
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let wrong = |detail: String| Err(Problem::field(Code::InvalidField, "metadata", detail));
    if metadata.len() > MOST_LABELS {
        return wrong(format!("metadata has {} keys, and {MOST_LABELS} are allowed", metadata.len()));
    }
    if bytes > LABEL_BYTES {
        return wrong(format!("metadata takes {bytes} bytes, and {LABEL_BYTES} are allowed"));
    }
    if metadata.contains_key("") {
        return wrong("metadata has an empty key".into());
    }
    Ok(metadata)
}

/// Egress, of a sandbox or a template.
pub(crate) fn egress(fields: &mut Fields) -> Result<Option<Egress>, Problem> {
    const EGRESS: [&str; 5] = ["mode", "allow_cidrs", "deny_cidrs", "allow_ports", "allow_domains"];
    let code = Code::InvalidEgress;
    let Some(mut egress) = fields.object("egress", code, &EGRESS)? else { return Ok(None) };
    let mode = egress.string("mode", code)?;
    let checked = Egress::check(
        mode.as_deref(),
        egress.strings("allow_cidrs", code)?,
        egress.strings("deny_cidrs", code)?,
        &egress.numbers("allow_ports", code)?,
        egress.strings("allow_domains", code)?,
    );
    checked.map(Some).map_err(|error| Problem::field(code, &error.field, error.to_string()))
}

/// What a sandbox may ask of its disk, or one of a template.
pub(crate) fn io(fields: &mut Fields) -> Result<Option<IoLimits>, Problem> {
    const IO: [&str; 4] = ["ops_per_sec", "burst_ops", "bandwidth_mbps", "burst_mbps"];
    let code = Code::InvalidField;
    let Some(mut io) = fields.object("io", code, &IO)? else { return Ok(None) };
    let mut figure = |name| Ok::<_, Problem>(io.number(name, code)?.map(u64::from));
    let io = IoLimits {
        ops_per_sec: figure(IO[0])?,
        burst_ops: figure(IO[1])?,
        bandwidth_mbps: figure(IO[2])?,
        burst_mbps: figure(IO[3])?,
    };
    let wrong =
        |error: wakeful_model::InvalidIo| Problem::field(code, format!("io.{}", error.field()), error.to_string());
    io.check().map(|()| Some(io)).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn read(body: Value) -> Result<NewSandbox, Problem> {
        let Value::Object(map) = body else { panic!("an object") };
        new_sandbox("default", map)
    }

    #[test]
    fn the_pages_request() {
        let new = read(json!({
            "template": "python", "mode": "ephemeral", "timeout": "10m", "size": "shared-cpu-2x",
            "env": {"OPENAI_API_KEY": "sk-..."}
        }))
        .unwrap();
        assert_eq!((new.mode, new.timeout), (Mode::Ephemeral, Some(Duration::from_secs(600))));
        assert_eq!(new.size.as_deref(), Some("shared-cpu-2x"));
        assert!(new.auto_resume && new.egress.is_none());
    }

    #[test]
    fn idle_timeout_has_two_spellings() {
        for body in [
            json!({"template": "t", "mode": "persistent", "idle_timeout": "10m"}),
            json!({"template": "t", "mode": "persistent", "idle_timeout_seconds": 600}),
            json!({"template": "t", "mode": "persistent", "idle_timeout": 600, "idle_timeout_seconds": 600}),
        ] {
            assert_eq!(read(body).unwrap().idle_timeout, Some(Duration::from_secs(600)));
        }
    }

    #[test]
    fn each_wrong_field_has_its_code() {
        let many: Map<String, Value> = (0..65).map(|n| (format!("k{n}"), json!("v"))).collect();
        let long = "x".repeat(16 << 10);
        for (extra, code, field) in [
            (json!({"template": null}), Code::MissingField, "template"),
            (json!({"template": ""}), Code::MissingField, "template"),
            (json!({"template": 1}), Code::InvalidField, "template"),
            (json!({"mode": "forever"}), Code::InvalidMode, "mode"),
            (json!({"mode": 1}), Code::InvalidMode, "mode"),
            (json!({"timeout": "0s"}), Code::InvalidDuration, "timeout"),
            (json!({"timeout": "soon"}), Code::InvalidDuration, "timeout"),
            (json!({"timeout": []}), Code::InvalidDuration, "timeout"),
            (json!({"hard_ttl": "1 day"}), Code::InvalidDuration, "hard_ttl"),
            (json!({"idle_timeout": "5m"}), Code::InvalidCombination, "idle_timeout"),
            (json!({"idle_timeout_seconds": 5}), Code::InvalidCombination, "idle_timeout_seconds"),
            (json!({"mode": "persistent", "timeout": "5m"}), Code::InvalidCombination, "timeout"),
            (json!({"mode": "persistent", "idle_timeout": 0}), Code::InvalidDuration, "idle_timeout"),
            (
                json!({"mode": "persistent", "idle_timeout": 1, "idle_timeout_seconds": 2}),
                Code::InvalidCombination,
                "idle_timeout_seconds",
            ),
            (json!({"size": "huge"}), Code::InvalidSize, "size"),
            (json!({"size": 1}), Code::InvalidSize, "size"),
            (json!({"size": "shared-cpu-1x", "cpu": 1}), Code::InvalidCombination, "size"),
            (json!({"cpu": 0}), Code::InvalidSize, "cpu"),
            (json!({"cpu": 1.5}), Code::InvalidSize, "cpu"),
            (json!({"memory_mb": 1}), Code::InvalidSize, "memory_mb"),
            (json!({"disk_mb": -1}), Code::InvalidSize, "disk_mb"),
            (json!({"env": {"A-B": "x"}}), Code::InvalidField, "env"),
            (json!({"env": []}), Code::InvalidField, "env"),
            (json!({"metadata": {"a": 1}}), Code::InvalidField, "metadata"),
            (json!({"metadata": many}), Code::InvalidField, "metadata"),
            (json!({"metadata": {"k": long}}), Code::InvalidField, "metadata"),
            (json!({"egress": "none"}), Code::InvalidEgress, "egress"),
            (json!({"egress": {"mode": "maybe"}}), Code::InvalidEgress, "egress.mode"),
            (json!({"egress": {"allow_cidrs": ["10.0.0.0"]}}), Code::InvalidEgress, "egress.allow_cidrs"),
            (json!({"egress": {"allow_ports": ["x"]}}), Code::InvalidEgress, "egress.allow_ports"),
            (json!({"egress": {"ports": []}}), Code::UnknownField, "egress.ports"),
            (json!({"io": {"ops_per_sec": 0}}), Code::InvalidField, "io.ops_per_sec"),
            (json!({"io": {"burst_ops": 10}}), Code::InvalidField, "io.burst_ops"),
            (json!({"io": {"iops": 10}}), Code::UnknownField, "io.iops"),
            (json!({"auto_resume": "yes"}), Code::InvalidField, "auto_resume"),
            (json!({"runtime": 1}), Code::InvalidField, "runtime"),
            (json!({"tempalte": "python"}), Code::UnknownField, "tempalte"),
        ] {
            let mut body = json!({"template": "python"});
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            let problem = read(body).map(|_| ()).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{extra}");
        }
    }
}

//! `wakeful-template.toml`: what a template is beside its Dockerfile.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::MAX_TEXT;
use crate::error::Error;
use crate::instruction::Command;

/// The file as written; everything may be missing. Values are checked by whoever makes the template, as those of an
/// API call are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemplateFile {
    /// What it is called.
    pub name: Option<String>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// A sentence about it.
    pub description: Option<String>,
    /// The size of sandboxes that do not say.
    pub default_size: Option<String>,
    /// Their disk.
    pub disk_mb: Option<u64>,
    /// Variables, over those of the image.
    pub env: BTreeMap<String, String>,
    /// Where sandboxes may connect to.
    pub egress: Option<EgressFile>,
    /// How fast their disk may be.
    pub io: Option<IoFile>,
    /// The Dockerfile, relative to this file.
    pub dockerfile: Option<String>,
    /// The stage that is wanted.
    pub target: Option<String>,
    /// Values for ARGs.
    pub build_args: BTreeMap<String, String>,
    /// What is started in a sandbox, over the image's own.
    #[serde(deserialize_with = "command")]
    pub start: Option<Command>,
    /// What succeeds once that works.
    #[serde(deserialize_with = "command")]
    pub ready: Option<Command>,
    /// How long it may take, as `30s`.
    pub ready_timeout: Option<String>,
    /// Whether it is started once, and sandboxes are copies of one in which it is ready.
    pub warm: bool,
    /// The user, over the image's own.
    pub user: Option<String>,
    /// The working directory, over the image's own.
    pub workdir: Option<String>,
    /// The runtime of sandboxes that do not say.
    pub runtime: Option<String>,
}

/// `[egress]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressFile {
    /// What happens to the rest.
    pub mode: Option<String>,
    /// Allowed ranges.
    pub allow_cidrs: Vec<String>,
    /// Denied ranges.
    pub deny_cidrs: Vec<String>,
    /// Ports that limit the allow lists.
    pub allow_ports: Vec<i64>,
    /// Allowed names.
    pub allow_domains: Vec<String>,
}

/// `[io]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoFile {
    /// Operations a second.
    pub ops_per_sec: Option<u64>,
    /// Operations at once.
    pub ops_burst: Option<u64>,
    /// Megabytes a second.
    pub bandwidth_mbps: Option<u64>,
    /// Megabytes at once.
    pub bandwidth_burst_mb: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum Written {
    Line(String),
    Argv(Vec<String>),
}

fn command<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Command>, D::Error> {
    match Written::deserialize(deserializer)? {
        Written::Line(line) if line.trim().is_empty() => Err(serde::de::Error::custom("the command is empty")),
        Written::Argv(argv) if argv.is_empty() => Err(serde::de::Error::custom("the command is empty")),
        Written::Line(line) => Ok(Some(Command::Shell(line))),
        Written::Argv(argv) => Ok(Some(Command::Argv(argv))),
    }
}

impl TemplateFile {
    /// Reads the file.
    ///
    /// # Errors
    /// With the line: what is no TOML, keys that are not known, values of the wrong kind.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_TEXT {
            return Err(Error::Template { line: 0, detail: format!("the file is longer than {MAX_TEXT} bytes") });
        }
        toml::from_str(text).map_err(|why| {
            let line = why.span().map_or(0, |span| {
                let before = text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count();
                u32::try_from(before + 1).unwrap_or(u32::MAX)
            });
            Error::Template { line, detail: why.message().to_owned() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::TemplateFile;
    use crate::instruction::Command;

    #[test]
    fn everything_is_optional() {
        assert_eq!(TemplateFile::parse("").unwrap(), TemplateFile::default());
    }

    #[test]
    fn everything_is_read() {
        let file = TemplateFile::parse(
            r#"
            name = "shop"
            tags = ["web", "python"]
            description = "the shop"
            default_size = "small"
            disk_mb = 4096
            dockerfile = "docker/Dockerfile"
            target = "final"
            start = "gunicorn shop:app"
            ready = ["curl", "-f", "127.0.0.1:8000"]
            ready_timeout = "30s"
            user = "app"
            workdir = "/srv"
            [env]
            DEBUG = "0"
            [build_args]
            VERSION = "1"
            [egress]
            mode = "deny_all"
            allow_domains = ["shop.invalid"]
            allow_ports = [443]
            [io]
            ops_per_sec = 500
            bandwidth_burst_mb = 64
            "#,
        )
        .unwrap();
        assert_eq!(file.start, Some(Command::Shell("gunicorn shop:app".into())));
        assert_eq!(file.ready, Some(Command::Argv(vec!["curl".into(), "-f".into(), "127.0.0.1:8000".into()])));
        assert_eq!(file.env["DEBUG"], "0");
        assert_eq!(file.egress.unwrap().allow_ports, [443]);
        assert_eq!(file.io.unwrap().ops_per_sec, Some(500));
        assert_eq!(file.io.unwrap().ops_burst, None);
    }

    #[test]
    fn mistakes_have_their_line() {
        for (text, line, part) in [
            ("name = \"a\"\ncolour = \"red\"\n", 2, "colour"),
            ("[io]\nops_per_sec = 1\nspeed = 2\n", 3, "speed"),
            ("\n\nname = 5\n", 3, "string"),
            ("name = \"a", 1, ""),
            ("start = 5", 1, "string or an array"),
            ("ready = []", 1, "empty"),
            ("[env]\nA = 1\n", 2, "string"),
            ("disk_mb = -1", 1, ""),
        ] {
            let error = TemplateFile::parse(text).unwrap_err();
            assert_eq!(error.line(), Some(line), "{text}: {error}");
            assert!(error.detail().contains(part), "{text}: {error}");
        }
    }
}

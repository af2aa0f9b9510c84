//! What an image says about how it is run. Carried over into a template; nothing of it is obeyed here.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Digest;
use crate::error::{Fault, tame};
use crate::manifest::DOCUMENT_MAX;

/// For which machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`.
    pub architecture: String,
}

impl Default for Platform {
    /// The one that sandboxes have.
    fn default() -> Self {
        Self { os: "linux".into(), architecture: "amd64".into() }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

/// An image's configuration; what it does not say is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Name or number, with an optional group: `app`, `1000:1000`.
    pub user: Option<String>,
    /// Where commands start.
    pub workdir: Option<String>,
    /// In the image's order.
    pub env: Vec<(String, String)>,
    /// What is always started.
    pub entrypoint: Vec<String>,
    /// Its arguments, or all of it.
    pub cmd: Vec<String>,
    /// Free text by name.
    pub labels: BTreeMap<String, String>,
    /// `8080/tcp`, sorted.
    pub exposed_ports: Vec<String>,
    /// Directories, sorted.
    pub volumes: Vec<String>,
    /// How to find out whether it works.
    pub healthcheck: Option<Healthcheck>,
    /// What the shell form of commands is given to.
    pub shell: Vec<String>,
    /// What ends it.
    pub stop_signal: Option<String>,
    /// What a Dockerfile does first that builds on this image.
    pub onbuild: Vec<String>,
    /// `amd64`.
    pub architecture: String,
    /// `linux`.
    pub os: String,
}

/// How to find out whether a container works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Healthcheck {
    /// `["NONE"]`, `["CMD", …]` or `["CMD-SHELL", …]`; empty means that of the base image.
    pub test: Vec<String>,
    /// Between two looks.
    pub interval: Option<Duration>,
    /// For one look.
    pub timeout: Option<Duration>,
    /// In which failures do not count.
    pub start_period: Option<Duration>,
    /// Between two looks in that time.
    pub start_interval: Option<Duration>,
    /// Failures in a row that count.
    pub retries: Option<u32>,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    config: Option<RawConfig>,
    rootfs: RawRoot,
}

#[derive(Deserialize)]
struct RawRoot {
    #[serde(rename = "type")]
    kind: String,
    diff_ids: Option<Vec<Digest>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawConfig {
    user: Option<String>,
    working_dir: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    labels: Option<BTreeMap<String, Option<String>>>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    volumes: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    healthcheck: Option<RawHealthcheck>,
    shell: Option<Vec<String>>,
    stop_signal: Option<String>,
    on_build: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawHealthcheck {
    test: Option<Vec<String>>,
    interval: Option<i64>,
    timeout: Option<i64>,
    start_period: Option<i64>,
    start_interval: Option<i64>,
    retries: Option<i64>,
}

/// Reads a configuration: what it says, and the digest of each layer's uncompressed content.
///
/// # Errors
/// What is wrong with it.
pub fn parse_config(bytes: &[u8]) -> Result<(Config, Vec<Digest>), Fault> {
    let malformed = |detail: String| Fault::Malformed(format!("its configuration {detail}"));
    if bytes.len() as u64 > DOCUMENT_MAX {
        return Err(malformed("is too long".into()));
    }
    let raw: Raw = serde_json::from_slice(bytes)
        .map_err(|error| malformed(format!("is not understood: {}", tame(&error.to_string()))))?;
    if raw.rootfs.kind != "layers" {
        return Err(malformed(format!("has a root of the unknown type {:?}", tame(&raw.rootfs.kind))));
    }
    let said = raw.config.unwrap_or_default();
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    let pair = |entry: String| match entry.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (entry, String::new()),
    };
    let config = Config {
        user: text(said.user),
        workdir: text(said.working_dir),
        env: said.env.unwrap_or_default().into_iter().map(pair).filter(|(name, _)| !name.is_empty()).collect(),
        entrypoint: said.entrypoint.unwrap_or_default(),
        cmd: said.cmd.unwrap_or_default(),
        labels: said.labels.unwrap_or_default().into_iter().map(|(k, v)| (k, v.unwrap_or_default())).collect(),
        exposed_ports: said.exposed_ports.unwrap_or_default().into_keys().collect(),
        volumes: said.volumes.unwrap_or_default().into_keys().collect(),
        healthcheck: said.healthcheck.map(RawHealthcheck::cooked),
        shell: said.shell.unwrap_or_default(),
        stop_signal: text(said.stop_signal),
        onbuild: said.on_build.unwrap_or_default(),
        architecture: tame(&raw.architecture),
        os: tame(&raw.os),
    };
    Ok((config, raw.rootfs.diff_ids.unwrap_or_default()))
}

impl RawHealthcheck {
    fn cooked(self) -> Healthcheck {
        // Nanoseconds; nothing and less mean "as usual".
        let time =
            |nanos: Option<i64>| nanos.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0).map(Duration::from_nanos);
        Healthcheck {
            test: self.test.unwrap_or_default(),
            interval: time(self.interval),
            timeout: time(self.timeout),
            start_period: time(self.start_period),
            start_interval: time(self.start_interval),
            retries: self.retries.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn document() -> serde_json::Value {
        json!({
            "architecture": "amd64", "os": "linux", "created": "2020-01-01T00:00:00Z", "history": [{"empty_layer": true}],
            "config": {
                "User": "app:app", "WorkingDir": "/srv", "Env": ["PATH=/bin", "A=b=c", "EMPTY", "=x"],
                "Entrypoint": ["/start"], "Cmd": null, "Labels": {"a": "b", "n": null},
                "ExposedPorts": {"80/tcp": {}, "53/udp": null}, "Volumes": {"/data": {}},
                "Healthcheck": {"Test": ["CMD", "true"], "Interval": 1_500_000_000, "Retries": -1},
                "Shell": ["/bin/bash", "-c"], "StopSignal": "SIGINT", "OnBuild": ["RUN true"], "ArgsEscaped": true
            },
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(b"1"), Digest::of(b"2")]}
        })
    }

    #[test]
    fn everything() {
        let (config, layers) = parse_config(document().to_string().as_bytes()).unwrap();
        assert_eq!(layers, [Digest::of(b"1"), Digest::of(b"2")]);
        let env = [("PATH", "/bin"), ("A", "b=c"), ("EMPTY", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(config.env, env);
        assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("app:app"), Some("/srv")));
        assert_eq!((config.entrypoint, config.cmd), (vec!["/start".to_owned()], vec![]));
        assert_eq!(
            (config.exposed_ports, config.volumes),
            (vec!["53/udp".into(), "80/tcp".into()], vec!["/data".into()])
        );
        assert_eq!(config.labels, [("a".into(), "b".into()), ("n".into(), String::new())].into());
        let health = config.healthcheck.unwrap();
        assert_eq!((health.interval, health.timeout, health.retries), (Some(Duration::from_millis(1500)), None, None));
        assert_eq!((config.stop_signal.as_deref(), config.onbuild.len(), config.shell.len()), (Some("SIGINT"), 1, 2));
    }

    #[test]
    fn the_least_and_the_wrong() {
        let (config, layers) = parse_config(br#"{"rootfs":{"type":"layers","diff_ids":null}}"#).unwrap();
        assert_eq!((config, layers), (Config::default(), vec![]));
        for wrong in
            ["{}", "", "[]", r#"{"rootfs":{"type":"other"}}"#, r#"{"rootfs":{"type":"layers","diff_ids":["x"]}}"#]
        {
            assert!(parse_config(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in any::<Vec<u8>>()) {
            let _ = parse_config(&bytes);
        }

        #[test]
        fn nor_with_one_byte_changed(at in 0usize..2000, byte in any::<u8>()) {
            let mut bytes = document().to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse_config(&bytes);
        }
    }
}

//! `[builds]` and `[registries]`: how templates are built, and where their images come from.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use wakeful_lifecycle::BuildSettings;
use wakeful_model::Size;

use super::Span;
use super::sections::{Check, check_absolute};

/// `[builds]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Builds {
    /// How many are under way at once.
    pub at_once: usize,
    /// The longest that one may take.
    pub timeout: Span,
    /// Processors of a machine that a Dockerfile's steps run on.
    pub cpu: u32,
    /// Its memory.
    pub memory_mb: u32,
    /// Its disk.
    pub disk_mb: u32,
    /// Most bytes of a root file system.
    pub image_bytes: u64,
    /// Most bytes of an upload.
    pub upload_bytes: u64,
    /// How long what a build leaves for the next is kept without being used.
    pub keep_cache: Span,
    /// How long a golden snapshot of a size that is not its template's own is kept without being used.
    pub keep_golden: Span,
}

impl Default for Builds {
    fn default() -> Self {
        let given = BuildSettings::default();
        Self {
            at_once: given.at_once,
            timeout: Span(given.timeout),
            cpu: given.cpu,
            memory_mb: given.memory_mb,
            disk_mb: given.disk_mb,
            image_bytes: given.image_bytes,
            upload_bytes: given.upload_bytes,
            keep_cache: Span(given.keep_cache),
            keep_golden: Span(given.keep_golden),
        }
    }
}

impl Builds {
    pub(super) fn check(&self) -> Vec<Check> {
        let some = |zero: bool| if zero { Err("must be at least 1".to_owned()) } else { Ok(()) };
        let machine = Size::check(self.cpu, self.memory_mb, self.disk_mb);
        let field = match &machine {
            Err(error) if error.field() == "cpu" => "builds.cpu",
            Err(error) if error.field() == "memory_mb" => "builds.memory_mb",
            _ => "builds.disk_mb",
        };
        vec![
            ("builds.at_once", some(self.at_once == 0)),
            ("builds.timeout", some(self.timeout.0.is_zero())),
            (field, machine.map_err(|error| error.to_string())),
            ("builds.image_bytes", some(self.image_bytes == 0)),
            ("builds.upload_bytes", some(self.upload_bytes == 0)),
        ]
    }
}

/// `[registries]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registries {
    /// Where an image without a registry in its name is looked for; with a path, names of one word go below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Other hosts that answer for a registry.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mirrors: BTreeMap<String, String>,
    /// Registries that are spoken to without TLS.
    pub insecure: Vec<String>,
    /// Docker's `config.json`, for what needs a password; used for templates of the default tenant only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docker_config: Option<PathBuf>,
    /// One more PEM file of authorities that registries' certificates may be signed by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl Registries {
    pub(super) fn check(&self) -> Vec<Check> {
        vec![
            ("registries.docker_config", check_absolute(self.docker_config.as_deref())),
            ("registries.ca", check_absolute(self.ca.as_deref())),
        ]
    }
}

/// Both, as builds are told.
pub(crate) fn settings(builds: &Builds, registries: &Registries) -> BuildSettings {
    let mut given = BuildSettings {
        at_once: builds.at_once,
        timeout: builds.timeout.0,
        cpu: builds.cpu,
        memory_mb: builds.memory_mb,
        disk_mb: builds.disk_mb,
        image_bytes: builds.image_bytes,
        upload_bytes: builds.upload_bytes,
        keep_cache: builds.keep_cache.0,
        keep_golden: builds.keep_golden.0,
        ..BuildSettings::default()
    };
    given.registries.default_registry.clone_from(&registries.default);
    given.registries.aliases.clone_from(&registries.mirrors);
    given.registries.insecure.clone_from(&registries.insecure);
    given.registries.docker_config.clone_from(&registries.docker_config);
    given.registries.authority.clone_from(&registries.ca);
    // What is compressed is smaller.
    given.registries.limits.image_bytes = given.registries.limits.image_bytes.min(builds.image_bytes);
    given
}

//! What callers ask for, already parsed: durations are durations, egress is checked. What depends on defaults, limits or
//! the template is decided here.

use std::collections::BTreeMap;
use std::time::Duration;

use wakeful_model::{Asked, Egress, IoLimits, Mode, TemplateSource};

/// A sandbox to be made.
#[derive(Clone, Debug)]
pub struct NewSandbox {
    /// For whom.
    pub tenant: String,
    /// Template name, `name:tag` or id.
    pub template: String,
    /// How it ends.
    pub mode: Mode,
    /// Lease (ephemeral); clamped to the maximum.
    pub timeout: Option<Duration>,
    /// Idleness before it sleeps (persistent).
    pub idle_timeout: Option<Duration>,
    /// Destroyed after this, whatever else holds.
    pub hard_ttl: Option<Duration>,
    /// A preset.
    pub size: Option<String>,
    /// Or explicit processors,
    pub cpu: Option<u32>,
    /// and memory.
    pub memory_mb: Option<u32>,
    /// Disk size.
    pub disk_mb: Option<u32>,
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// Egress, if not the template's.
    pub egress: Option<Egress>,
    /// What it may ask of its disk, if not the template's.
    pub io: Option<IoLimits>,
    /// Access wakes it.
    pub auto_resume: bool,
    /// Which runtime, if not the daemon's.
    pub runtime: Option<String>,
}

/// A template to be built.
#[derive(Clone, Debug)]
pub struct NewTemplate {
    /// For whom.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// From what.
    pub source: TemplateSource,
    /// What else it answers to.
    pub tags: Vec<String>,
    /// What it is for.
    pub description: String,
    /// What is wanted otherwise than the source has it.
    pub asked: Asked,
    /// Size of sandboxes that name none.
    pub default_size: Option<String>,
    /// Egress of sandboxes that name none.
    pub egress: Option<Egress>,
    /// Disk of sandboxes that name none.
    pub disk_mb: Option<u32>,
    /// What sandboxes may ask of their disks.
    pub io: IoLimits,
}

impl NewTemplate {
    /// One that says no more than it must.
    #[must_use]
    pub fn new(tenant: &str, name: &str, source: TemplateSource) -> Self {
        Self {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            source,
            tags: Vec::new(),
            description: String::new(),
            asked: Asked::default(),
            default_size: None,
            egress: None,
            disk_mb: None,
            io: IoLimits::default(),
        }
    }
}

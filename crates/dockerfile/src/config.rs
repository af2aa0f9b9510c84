//! What an image says about how it is to be run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An image's configuration, of a base image or of what is built. Empty texts are what nobody said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// Variables, in the order in which they were set.
    pub env: Vec<(String, String)>,
    /// The user, with its group perhaps; root if empty.
    pub user: String,
    /// The working directory; `/` if empty.
    pub workdir: String,
    /// What is run.
    pub entrypoint: Option<Vec<String>>,
    /// What is handed to it, or run if there is none.
    pub cmd: Option<Vec<String>>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Ports, as `80/tcp`.
    pub exposed: BTreeSet<String>,
    /// Directories meant for volumes.
    pub volumes: BTreeSet<String>,
    /// The shell of shell forms; `/bin/sh -c` if nothing.
    pub shell: Option<Vec<String>>,
    /// How its health is asked.
    pub healthcheck: Option<Healthcheck>,
    /// The signal that ends it.
    pub stop_signal: Option<String>,
    /// Instructions for those who build upon it.
    pub onbuild: Vec<String>,
    /// Who made it.
    pub author: Option<String>,
}

/// How an image's health is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Healthcheck {
    /// `["NONE"]`, `["CMD", …]` or `["CMD-SHELL", line]`.
    pub test: Vec<String>,
    /// Between two checks.
    pub interval: Option<Duration>,
    /// How long one may take.
    pub timeout: Option<Duration>,
    /// While failures do not count.
    pub start_period: Option<Duration>,
    /// Between two checks in that time.
    pub start_interval: Option<Duration>,
    /// Failures in a row that count.
    pub retries: Option<u32>,
}

impl ImageConfig {
    pub(crate) fn set_env(&mut self, name: &str, value: String) {
        match self.env.iter_mut().find(|(own, _)| own == name) {
            Some((_, own)) => *own = value,
            None => self.env.push((name.to_owned(), value)),
        }
    }

    pub(crate) fn get_env(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

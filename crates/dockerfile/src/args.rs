//! Build arguments: who may set one, and where it is seen.
//!
//! ```text
//!   ARG before FROM     seen by FROM lines, and by a stage that says `ARG name` again
//!   ARG in a stage      seen from there to the stage's end, and in stages that begin from it
//!   --build-arg         goes before every default
//!   ENV of that name    goes before all of them
//! ```

use std::collections::BTreeMap;

use crate::action::Origin;
use crate::error::Error;
use crate::expand;
use crate::instruction::{Dockerfile, Op};
use crate::{MAX_EXPANDED, MAX_STAGES};

/// What every guest is.
pub(crate) const PLATFORM: &str = "linux/amd64";

const PROXIES: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// What all stages of one build know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    build: BTreeMap<String, String>,
    global: BTreeMap<String, String>,
    names: Vec<Option<String>>,
}

impl Scope {
    pub(crate) fn new(file: &Dockerfile, build: &BTreeMap<String, String>, target: &str) -> Result<Self, Error> {
        let mut global: BTreeMap<String, String> = [
            ("BUILDPLATFORM", PLATFORM),
            ("BUILDOS", "linux"),
            ("BUILDARCH", "amd64"),
            ("BUILDVARIANT", ""),
            ("TARGETPLATFORM", PLATFORM),
            ("TARGETOS", "linux"),
            ("TARGETARCH", "amd64"),
            ("TARGETVARIANT", ""),
            ("TARGETSTAGE", target),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (name, value) in &mut global {
            if let Some(own) = build.get(name) {
                own.clone_into(value);
            }
        }
        let mut total = 0usize;
        for instruction in &file.head {
            let Op::Arg(pairs) = &instruction.op else { continue };
            for (name, default) in pairs {
                let expanded = |text: &str| {
                    expand::word(text, file.escape, &global).map_err(|why| Error::syntax(instruction.line, why))
                };
                let name = expanded(name)?;
                let value = match (build.get(&name), default) {
                    (Some(value), _) => Some(value.clone()),
                    (None, Some(default)) => Some(expanded(default)?),
                    (None, None) => None,
                };
                if let Some(value) = value {
                    total += value.len();
                    if total > MAX_EXPANDED {
                        return Err(Error::limit(instruction.line, "the arguments are too long together"));
                    }
                    global.insert(name, value);
                }
            }
        }
        let names = file.stages.iter().take(MAX_STAGES).map(|stage| stage.name.clone()).collect();
        Ok(Self { build: build.clone(), global, names })
    }

    /// What a FROM line sees.
    pub(crate) fn global(&self) -> &BTreeMap<String, String> {
        &self.global
    }

    /// What a stage's ARG means, its default expanded already.
    pub(crate) fn value(&self, name: &str, default: Option<String>) -> Option<String> {
        self.build.get(name).cloned().or(default).or_else(|| self.global.get(name).cloned())
    }

    /// Proxies that the caller gave: every RUN has them, declared or not.
    pub(crate) fn proxies(&self) -> Vec<(String, String)> {
        PROXIES
            .iter()
            .filter_map(|name| self.build.get(*name).map(|value| ((*name).to_owned(), value.clone())))
            .collect()
    }

    /// What `--from` means: a number is a stage, a name is one where a stage has it, all else is an image.
    pub(crate) fn origin(&self, from: &str, line: u32) -> Result<Origin, Error> {
        if let Ok(number) = from.parse::<usize>() {
            if number < self.names.len() {
                return Ok(Origin::Stage(number));
            }
            return Err(Error::syntax(line, format!("there is no stage {number}; there are {}", listed(&self.names))));
        }
        let lower = from.to_ascii_lowercase();
        if let Some(number) = self.names.iter().position(|name| name.as_deref() == Some(&lower)) {
            return Ok(Origin::Stage(number));
        }
        if lower == "scratch" {
            return Err(Error::syntax(line, "there is nothing to copy from scratch"));
        }
        Ok(Origin::Image(from.to_owned()))
    }

    /// Arguments that the caller gave and no ARG asks for.
    pub(crate) fn unused(&self, file: &Dockerfile) -> Vec<String> {
        let instructions = || file.head.iter().chain(file.stages.iter().flat_map(|stage| &stage.instructions));
        let declared = |name: &str| {
            instructions().any(|one| match &one.op {
                Op::Arg(pairs) => pairs.iter().any(|(own, _)| own == name || own.contains('$')),
                _ => false,
            })
        };
        let known = |name: &str| {
            PROXIES.contains(&name)
                || name.starts_with("BUILDKIT_")
                || name == "SOURCE_DATE_EPOCH"
                || ["TARGET", "BUILD"].iter().any(|side| {
                    name.strip_prefix(side)
                        .is_some_and(|rest| ["PLATFORM", "OS", "ARCH", "VARIANT", "STAGE"].contains(&rest))
                })
        };
        self.build.keys().filter(|name| !known(name) && !declared(name)).cloned().collect()
    }
}

/// The stages, for a message.
pub(crate) fn listed(names: &[Option<String>]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(20)
        .enumerate()
        .map(|(number, name)| name.as_ref().map_or_else(|| number.to_string(), |name| format!("{number} ({name})")))
        .collect();
    let more = if names.len() > shown.len() { ", …" } else { "" };
    shown.join(", ") + more
}

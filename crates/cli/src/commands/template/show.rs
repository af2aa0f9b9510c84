//! `wakeful template show`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::{Egress, Template};
use wakeful_model::TemplateSource;

use super::screen::plain;
use crate::failure::Failure;
use crate::{output, table};

/// Show one template: what it is made of, what its sandboxes get, why its build failed
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful template show python
  wakeful template show shop:2.0 --json")]
pub(crate) struct Show {
    /// Its name, NAME:TAG or id
    name: String,
}

impl Show {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let template = client.template(&self.name).await?;
        if json {
            output::json(&template)?;
        } else {
            output::line(&describe(&template))?;
        }
        Ok(0)
    }
}

/// One fact a line; what does not apply is left out.
fn describe(template: &Template) -> String {
    let mut lines = Vec::new();
    let mut add = |name: &str, value: String| lines.push(format!("{name:<12}{value}").trim_end().to_owned());
    add("id", template.id.to_string());
    add("name", template.name.clone());
    if !template.tags.is_empty() {
        add("tags", template.tags.join(", "));
    }
    if !template.description.is_empty() {
        add("about", plain(&template.description));
    }
    add("status", table::status(&template.status.to_string()));
    if let Some(error) = &template.build_error {
        let line = error.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        let mut said = error.detail.lines();
        add("error", format!("{}: {}{line}", plain(&error.step), plain(said.next().unwrap_or_default())));
        said.for_each(|line| add("", plain(line)));
    }
    source(&template.source, &mut add);
    add("user", plain(&template.user));
    add("workdir", plain(&template.workdir));
    if !template.env_keys.is_empty() {
        add("env", template.env_keys.join(", "));
    }
    if let Some(runtime) = &template.runtime {
        add("runtime", plain(runtime));
    }
    add("size", template.default_size.clone());
    if let Some(mb) = template.disk_mb {
        add("disk", format!("{mb} MiB"));
    }
    if let Some(limits) = table::io(&template.io) {
        add("disk limits", limits);
    }
    add("egress", egress(&template.egress));
    if let Some(entry) = &template.entry {
        add("starts", table::words(&entry.start));
        if let Some(ready) = &entry.ready {
            add("ready when", format!("{} (within {}s)", table::words(ready), entry.ready_seconds));
        }
        if entry.warm {
            add("warm", "sandboxes have it running from their first moment".to_owned());
        }
    }
    if let Some(base) = &template.base {
        add("base", base.clone());
        add("takes", table::bytes(template.disk_bytes));
    }
    add("created", template.created_at.to_string());
    if let Some(built) = template.built_at {
        add("built", built.to_string());
    }
    lines.join("\n")
}

fn source(source: &TemplateSource, add: &mut impl FnMut(&str, String)) {
    add("source", table::source(source));
    match source {
        TemplateSource::Debian { packages, .. } if !packages.is_empty() => add("packages", packages.join(", ")),
        TemplateSource::Dockerfile { build_args, .. } => {
            for (name, value) in build_args {
                add("build arg", plain(&format!("{name}={value}")));
            }
        }
        _ => {}
    }
}

fn egress(egress: &Egress) -> String {
    let mut text = egress.mode.to_string();
    let ports: Vec<String> = egress.allow_ports.iter().map(ToString::to_string).collect();
    for (what, list) in [
        ("allow", &egress.allow_cidrs),
        ("allow", &egress.allow_domains),
        ("deny", &egress.deny_cidrs),
        ("ports", &ports),
    ] {
        if !list.is_empty() {
            text.push_str(&format!(", {what} {}", list.join(" ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_of_it() {
        let template: Template = serde_json::from_value(json!({
            "id": "tpl_k3v7q2m5x6a4b2c7d5ef", "name": "shop", "tags": ["2.0", "web"], "description": "The shop",
            "status": "ready",
            "build_error": {"step": "[3/5] RUN make", "line": 7, "detail": "the command ended with 2\ncc: not\u{7} found"},
            "source": {"kind": "dockerfile", "upload": "upl_k3v7q2m5x6a4b2c7d5ef", "dockerfile": "Dockerfile",
                "target": "web", "build_args": {"VERSION": "2"}},
            "user": "app", "workdir": "/srv", "env_keys": ["A", "B"], "default_size": "shared-cpu-2x",
            "egress": {"mode": "deny_all", "allow_cidrs": [], "deny_cidrs": [], "allow_ports": [443],
                "allow_domains": ["shop.invalid"]},
            "disk_mb": 4096, "runtime": "gvisor",
            "io": {"ops_per_sec": 500, "burst_ops": 900, "bandwidth_mbps": 10, "burst_mbps": null},
            "entry": {"start": ["/bin/sh", "-c", "serve now"], "ready": ["curl", "-f", "localhost"], "ready_seconds": 30},
            "base": "d".repeat(64), "disk_bytes": 184_549_376,
            "created_at": "2026-04-05T14:30:00.000Z", "built_at": "2026-04-05T14:31:00.000Z"
        }))
        .unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&describe(&template)).to_string());
    }
}

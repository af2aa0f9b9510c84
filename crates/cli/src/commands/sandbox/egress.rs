//! `wakeful sandbox egress`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::{AllowedBy, Blocked};

use crate::failure::Failure;
use crate::output;

/// Show what a sandbox sent, what was blocked, and which rule would allow it
#[derive(Args, Debug)]
#[command(after_help = "\
Looking wakes nobody. `sandbox update` changes the rules at once, also of a running sandbox.

Examples:
  wakeful sandbox egress sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox egress sbx_k3v7q2m5x6a4b2c7d5ef --json | jq '.blocked[0].allowed_by'
  wakeful sandbox update sbx_k3v7q2m5x6a4b2c7d5ef --egress-allow-domain example.org")]
pub(crate) struct Egress {
    /// The sandbox
    id: String,
}

impl Egress {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let report = client.egress(&self.id).await?;
        if json {
            output::json(&report)?;
            return Ok(0);
        }
        output::line(&format!(
            "{}, {} bytes out, {} bytes in, {} blocked",
            report.egress.mode,
            report.bytes_out,
            report.bytes_in,
            report.blocked.len()
        ))?;
        for blocked in &report.blocked {
            output::line(&describe(blocked))?;
        }
        Ok(0)
    }
}

/// One line: how often, where to, why not, and what would change that.
fn describe(blocked: &Blocked) -> String {
    let host = blocked.name.as_ref().or(blocked.address.as_ref()).map_or("?", String::as_str);
    let to = match (&blocked.protocol, blocked.port) {
        (Some(protocol), Some(port)) => format!("{host}:{port}/{protocol}"),
        (Some(protocol), None) => format!("{host}/{protocol}"),
        (None, _) => host.to_owned(),
    };
    let change = blocked.allowed_by.as_ref().map_or_else(|| "never allowed".to_owned(), flags);
    format!("{:>6}x  {to:<28}  {:<14}  {change}", blocked.count, blocked.reason)
}

/// In the words of `sandbox update`.
fn flags(allowed_by: &AllowedBy) -> String {
    let cidrs = allowed_by.allow_cidrs.iter().map(|range| format!("--egress-allow-cidr {range}"));
    let names = allowed_by.allow_domains.iter().map(|name| format!("--egress-allow-domain {name}"));
    let ports = allowed_by.allow_ports.iter().map(|port| format!("--egress-allow-port {port}"));
    let denied = allowed_by.without_deny_cidrs.iter().map(|range| format!("and no --egress-deny-cidr {range}"));
    cidrs.chain(names).chain(ports).chain(denied).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_to_do() {
        let blocked = Blocked {
            reason: "policy".into(),
            address: Some("203.0.113.9".into()),
            name: None,
            protocol: Some("tcp".into()),
            port: Some(443),
            count: 3,
            allowed_by: Some(AllowedBy { allow_cidrs: vec!["203.0.113.9/32".into()], ..AllowedBy::default() }),
        };
        assert_eq!(
            describe(&blocked),
            "     3x  203.0.113.9:443/tcp           policy          --egress-allow-cidr 203.0.113.9/32"
        );
        let never = Blocked { allowed_by: None, port: None, ..blocked };
        assert!(describe(&never).ends_with("never allowed"));
    }
}

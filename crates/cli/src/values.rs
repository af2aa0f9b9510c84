//! What flags take, and the flags that several commands share.

use std::time::Duration;

use clap::Args;
use wakeful_client::types::{DurationText, EgressRequest, IoLimits};

/// `KEY=VALUE`.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("it must look like KEY=VALUE".into()),
    }
}

/// A duration with a unit, or a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let seconds = text.parse().map_err(|_| "that is too long".to_owned())?;
            return Ok(Self(Duration::from_secs(seconds)));
        }
        wakeful_model::parse_duration(text).map(Self).map_err(|error| error.to_string())
    }
}

impl From<Span> for DurationText {
    fn from(span: Span) -> Self {
        span.0.into()
    }
}

/// An absolute path in a sandbox.
pub(crate) fn remote_path(text: &str) -> Result<String, String> {
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err("a path in a sandbox must begin with /".into()) }
}

/// The outbound firewall.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Egress")]
pub(crate) struct EgressArgs {
    /// What happens to traffic that no list names: allow_all or deny_all
    #[arg(long, value_name = "MODE")]
    egress_mode: Option<String>,
    /// Allow this range; implies deny_all (repeatable)
    #[arg(long, value_name = "CIDR")]
    egress_allow_cidr: Vec<String>,
    /// Deny this range; looked at first (repeatable)
    #[arg(long, value_name = "CIDR")]
    egress_deny_cidr: Vec<String>,
    /// Allow this host, or with *. all hosts below it; implies deny_all (repeatable)
    #[arg(long, value_name = "NAME")]
    egress_allow_domain: Vec<String>,
    /// Limit what is allowed to this port (repeatable)
    #[arg(long, value_name = "PORT")]
    egress_allow_port: Vec<i64>,
}

impl EgressArgs {
    /// `None` if nothing was said: the template's policy holds.
    pub(crate) fn request(&self) -> Option<EgressRequest> {
        let request = EgressRequest {
            mode: self.egress_mode.clone(),
            allow_cidrs: self.egress_allow_cidr.clone(),
            deny_cidrs: self.egress_deny_cidr.clone(),
            allow_ports: self.egress_allow_port.clone(),
            allow_domains: self.egress_allow_domain.clone(),
        };
        (request != EgressRequest::default()).then_some(request)
    }
}

/// The disk, and what may be asked of it.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Disk")]
pub(crate) struct IoArgs {
    /// Disk in MiB [default: the template's, else 2048]
    #[arg(long, value_name = "MIB", alias = "disk-size-mb")]
    pub(crate) disk_mb: Option<u32>,
    /// Limit reads and writes together to so many a second
    #[arg(long, value_name = "N")]
    ops_per_sec: Option<u64>,
    /// So many in a burst of a second
    #[arg(long, value_name = "N", requires = "ops_per_sec")]
    burst_ops: Option<u64>,
    /// Limit them to so many megabytes a second
    #[arg(long, value_name = "MB")]
    bandwidth_mbps: Option<u64>,
    /// So many in a burst of a second
    #[arg(long, value_name = "MB", requires = "bandwidth_mbps")]
    burst_mbps: Option<u64>,
}

impl IoArgs {
    /// `None` if nothing was said: the template's limits hold.
    pub(crate) fn request(&self) -> Option<IoLimits> {
        let request = IoLimits {
            ops_per_sec: self.ops_per_sec,
            burst_ops: self.burst_ops,
            bandwidth_mbps: self.bandwidth_mbps,
            burst_mbps: self.burst_mbps,
        };
        (request != IoLimits::default()).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_a_name() {
        assert_eq!(key_value("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(key_value("A="), Ok(("A".into(), String::new())));
        assert!(key_value("A").is_err());
        assert!(key_value("=b").is_err());
    }

    #[test]
    fn durations_may_be_seconds() {
        assert_eq!(Span::parse("90"), Ok(Span(Duration::from_secs(90))));
        assert_eq!(Span::parse("1h30m"), Ok(Span(Duration::from_secs(5400))));
        for bad in ["", "-1", "soon", "1.5s", "99999999999999999999"] {
            assert!(Span::parse(bad).is_err(), "{bad}");
        }
    }
}

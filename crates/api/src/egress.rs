//! What left a sandbox, and what was kept from leaving.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use wakeful_api_types::{AllowedBy, Blocked, EgressReport};
use wakeful_lifecycle::{Attempt, EgressTarget};
use wakeful_model::{Cidr, Egress};

use crate::App;
use crate::body::json;
use crate::caller::Caller;
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;

pub(crate) async fn report(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let report = app.lifecycle.egress(&caller.tenant, &id).await?;
    let mut blocked: Vec<Blocked> =
        report.traffic.blocked.into_iter().map(|(attempt, count)| describe(attempt, count, &report.egress)).collect();
    blocked.sort_by(|a, b| {
        let key = |one: &Blocked| (std::cmp::Reverse(one.count), one.address.clone(), one.name.clone(), one.port);
        key(a).cmp(&key(b))
    });
    let (bytes_out, bytes_in) = (report.traffic.bytes_out, report.traffic.bytes_in);
    Ok(json(StatusCode::OK, &EgressReport { egress: report.egress.into(), bytes_out, bytes_in, blocked }))
}

fn describe(attempt: Attempt, count: u64, policy: &Egress) -> Blocked {
    let allowed_by = if attempt.allowable { allowed_by(&attempt.to, policy) } else { None };
    let reason = attempt.reason;
    match attempt.to {
        EgressTarget::Address { address, protocol, port } => Blocked {
            reason,
            address: address.map(|address| address.to_string()),
            name: None,
            protocol: Some(protocol_name(protocol)),
            port: (port != 0).then_some(port),
            count,
            allowed_by,
        },
        EgressTarget::Name(name) => {
            Blocked { reason, address: None, name: Some(name), protocol: None, port: None, count, allowed_by }
        }
    }
}

/// What the policy would have to name.
fn allowed_by(to: &EgressTarget, policy: &Egress) -> Option<AllowedBy> {
    Some(match to {
        EgressTarget::Address { address, port, .. } => {
            let address = (*address)?;
            let one: Option<Cidr> = format!("{address}/32").parse().ok();
            let denies = |text: &&String| {
                text.parse::<Cidr>().is_ok_and(|range| one.is_some_and(|address| address.is_inside(range)))
            };
            let limited = !policy.allow_ports.is_empty() && *port != 0 && !policy.allow_ports.contains(port);
            AllowedBy {
                allow_cidrs: vec![format!("{address}/32")],
                allow_domains: Vec::new(),
                without_deny_cidrs: policy.deny_cidrs.iter().filter(denies).cloned().collect(),
                allow_ports: if limited { vec![*port] } else { Vec::new() },
            }
        }
        EgressTarget::Name(name) => AllowedBy { allow_domains: vec![name.clone()], ..AllowedBy::default() },
    })
}

fn protocol_name(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn what_would_allow_it_is_named() {
        let policy = Egress {
            deny_cidrs: vec!["203.0.113.0/24".into(), "10.0.0.0/8".into()],
            allow_ports: vec![443],
            ..Egress::default()
        };
        let address = Some(Ipv4Addr::new(203, 0, 113, 9));
        let named =
            allowed_by(&EgressTarget::Address { address, protocol: 6, port: 22 }, &policy).expect("a policy can");
        assert_eq!(named.allow_cidrs, ["203.0.113.9/32"]);
        assert_eq!(named.without_deny_cidrs, ["203.0.113.0/24"]);
        assert_eq!(named.allow_ports, [22]);
        let named = allowed_by(&EgressTarget::Name("a.org".into()), &policy).expect("a policy can");
        assert_eq!(named, AllowedBy { allow_domains: vec!["a.org".into()], ..AllowedBy::default() });
    }
}

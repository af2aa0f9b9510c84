//! A policy as rules of a slot's chains.

use std::fmt::Write as _;

use wakeful_model::{Cidr, Destination, EgressVerdict as Verdict, Rule, Rules, name_matches};

use crate::ranges::Ranges;

/// Consecutive rules that say the same of the same ports.
enum Step {
    Range {
        verdict: Verdict,
        ranges: Ranges,
        ports: Vec<u16>,
    },
    /// Allowed names: addresses that were admitted.
    Names {
        ports: Vec<u16>,
    },
}

fn steps(list: &[Rule]) -> Vec<Step> {
    let mut steps = Vec::new();
    let alike = |a: &Rule, b: &Rule| {
        a.verdict == b.verdict
            && a.ports == b.ports
            && matches!(a.to, Destination::Range(_)) == matches!(b.to, Destination::Range(_))
    };
    for group in list.chunk_by(alike) {
        let Rule { verdict, to, ports } = &group[0];
        let ports = ports.clone();
        match (to, verdict) {
            (Destination::Range(_), verdict) => {
                let range = |rule: &Rule| match rule.to {
                    Destination::Range(cidr) => Some(cidr),
                    Destination::Name(_) => None,
                };
                let ranges = Ranges::new(group.iter().filter_map(range).map(Cidr::network));
                if !ranges.is_empty() {
                    steps.push(Step::Range { verdict: *verdict, ranges, ports });
                }
            }
            (Destination::Name(_), Verdict::Allow) => steps.push(Step::Names { ports }),
            // A denied name has no addresses here: the resolver does not tell them, and the proxy refuses it.
            (Destination::Name(_), Verdict::Deny) => {}
        }
    }
    steps
}

fn on_ports(ports: &[u16]) -> String {
    if ports.is_empty() {
        return String::new();
    }
    let mut list: Vec<_> = ports.to_vec();
    list.sort_unstable();
    list.dedup();
    let list = list.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    format!("meta l4proto {{ tcp, udp }} ct original proto-dst {{ {list} }} ")
}

fn to_ranges(ranges: &Ranges) -> String {
    if ranges.is_everything() {
        return String::new();
    }
    format!("ct original ip daddr {{ {} }} ", ranges.elements())
}

const fn end(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "return",
        Verdict::Deny => "goto deny_denied_range",
    }
}

/// What is said about names, as text: while it stays the same, connections to names stay too.
pub(crate) fn names(rules: &Rules) -> String {
    let mut text = String::new();
    for rule in &rules.list {
        if let Destination::Name(name) = &rule.to {
            let _ = writeln!(text, "{:?} {name} {:?}", rule.verdict, rule.ports);
        }
    }
    text
}

/// Whether a rule allows a host's name, and none before it denies it.
pub(crate) fn allows_name(rules: &Rules, host: &str) -> bool {
    let about = |rule: &&Rule| matches!(&rule.to, Destination::Name(name) if name_matches(name, host));
    rules.list.iter().find(about).is_some_and(|rule| rule.verdict == Verdict::Allow)
}

/// One transaction that puts a policy into a slot's table. `mark` stands for what it says about names, and is on every
/// connection that was let through for a name.
pub(crate) fn policy(rules: &Rules, mark: u32, forget_names: bool) -> String {
    let steps = steps(&rules.list);
    let mut text = String::new();
    for chain in ["named", "verdicts", "verdicts_dns", "own", "resolver"] {
        let _ = writeln!(text, "flush chain inet wakeful {chain}");
    }
    if forget_names {
        text.push_str("flush set inet wakeful names\n");
    }
    text.push_str("table inet wakeful {\n");
    if !rules.allow_anything() {
        for chain in ["verdicts", "own"] {
            let _ = write!(text, "  chain {chain} {{\n    goto deny_policy\n  }}\n");
        }
        text.push_str("}\n");
        return text;
    }
    text.push_str("  chain resolver {\n    udp dport 53 accept\n    tcp dport 53 accept\n  }\n");
    let named = steps.iter().any(|step| matches!(step, Step::Names { .. }));
    if named {
        let _ = write!(
            text,
            "  chain named {{
    ct original ip daddr @private goto deny_private
    meta l4proto udp ct original proto-dst 443 goto deny_quic
    ct mark set {mark}
  }}
"
        );
    }
    // Where names count, names are asked of our resolver and of nobody else.
    let mut dns = String::new();
    let mut verdicts = String::new();
    let mut own = String::new();
    for step in &steps {
        match step {
            Step::Range { verdict, ranges, ports } => {
                let line = format!("    {}{}{}\n", to_ranges(ranges), on_ports(ports), end(*verdict));
                verdicts.push_str(&line);
                own.push_str(&line);
                let asked_for = ports.contains(&53) || ports.contains(&853);
                if *verdict == Verdict::Deny || asked_for {
                    dns.push_str(&line);
                }
            }
            Step::Names { ports } => {
                let ports = on_ports(ports);
                let _ = writeln!(verdicts, "    ct mark {mark} return");
                let _ = writeln!(verdicts, "    ct state new ct original ip daddr @names {ports}goto named");
                // The proxy has checked the name, and goes where the guest was going.
                let _ = writeln!(own, "    ct mark {mark} return");
                let _ = writeln!(own, "    ct state new ct original ip daddr != @private ct mark set {mark} return");
            }
        }
    }
    for chain in [&mut verdicts, &mut own] {
        chain.push_str(match rules.otherwise {
            Verdict::Allow => "    ct original ip daddr @private goto deny_private\n",
            Verdict::Deny => "    goto deny_policy\n",
        });
    }
    if named {
        let _ = write!(text, "  chain verdicts_dns {{\n{dns}    goto deny_dns\n  }}\n");
        let dns = on_ports(&[53, 853]);
        verdicts.insert_str(0, &format!("    {dns}goto verdicts_dns\n"));
    }
    let _ = write!(text, "  chain verdicts {{\n{verdicts}  }}\n  chain own {{\n{own}  }}\n}}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verdict: Verdict, to: &str, ports: &[u16]) -> Rule {
        let to = to.parse().map_or_else(|()| Destination::Name(to.to_owned()), Destination::Range);
        Rule { verdict, to, ports: ports.to_vec() }
    }

    #[test]
    fn rules_keep_their_order() {
        let list = vec![
            rule(Verdict::Deny, "9.9.9.9/32", &[]),
            rule(Verdict::Deny, "9.9.9.8/32", &[]),
            rule(Verdict::Allow, "10.1.0.0/16", &[443, 80, 443]),
            rule(Verdict::Allow, "api.example.org", &[443]),
            rule(Verdict::Allow, "8.8.8.8/32", &[53]),
            rule(Verdict::Deny, "bad.example.org", &[]),
        ];
        insta::assert_snapshot!(policy(&Rules { list, otherwise: Verdict::Deny }, 7, true));
    }

    #[test]
    fn where_nothing_is_allowed_the_resolver_is_closed() {
        let list = vec![rule(Verdict::Deny, "9.9.9.9/32", &[])];
        insta::assert_snapshot!(policy(&Rules { list, otherwise: Verdict::Deny }, 1, false));
    }

    #[test]
    fn private_ranges_stay_closed_under_allow_all() {
        insta::assert_snapshot!(policy(&Rules { list: Vec::new(), otherwise: Verdict::Allow }, 1, false));
    }

    #[test]
    fn only_names_count_for_connections_to_names() {
        let name = || rule(Verdict::Allow, "api.example.org", &[443]);
        let of = |list| names(&Rules { list, otherwise: Verdict::Deny });
        assert_eq!(of(vec![name()]), of(vec![rule(Verdict::Deny, "9.9.9.9/32", &[]), name()]));
        assert_ne!(of(vec![name()]), of(vec![rule(Verdict::Allow, "api.example.org", &[])]));
    }
}

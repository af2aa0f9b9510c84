//! What the rules say about a question or a connection.
//!
//! Rules are walked in order and the first that matches decides. A rule about a range needs no name; a rule about a
//! name needs one that was seen on the wire, or, where there is none to see, a port that the rule itself names.

use std::net::{IpAddr, Ipv4Addr};

use wakeful_model::{Cidr, Destination, EgressVerdict, Rule, Rules, name_matches};

/// Ports on which a name is always there to be checked; without one nothing passes under a rule about names.
const WEB_PORTS: [u16; 4] = [80, 443, 8080, 8443];

/// By which kind of rule a connection is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// Its address: the name does not matter.
    Address,
    /// Its name: the address must be one that our resolver gave for it.
    Name,
}

/// Why a connection has no name on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nameless {
    /// Its protocol has none.
    ByNature,
    /// It could have named someone, and did not.
    ByChoice,
}

#[derive(Debug)]
pub(crate) struct Policy {
    rules: Rules,
}

fn covers(range: Cidr, address: Ipv4Addr) -> bool {
    let IpAddr::V4(network) = range.address() else { return false };
    let mask = u32::MAX.checked_shl(32 - u32::from(range.prefix())).unwrap_or(0);
    (u32::from(network) ^ u32::from(address)) & mask == 0
}

/// Whether an address is no public host: a public name that points there is a trick or a mistake.
pub(crate) fn special(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocols = (a, b, c) == (192, 0, 0);
    let benchmark = a == 198 && (b == 18 || b == 19);
    a == 0
        || a >= 224
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || shared
        || protocols
        || benchmark
}

fn at_port(rule: &Rule, port: u16) -> bool {
    rule.ports.is_empty() || rule.ports.contains(&port)
}

impl Policy {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules }
    }

    /// Whether only what is listed may be reached.
    pub(crate) fn listed(&self) -> bool {
        self.rules.otherwise == EgressVerdict::Deny
    }

    /// Whether the resolver may ask for a name at all. A denial for some ports leaves the name itself allowed.
    pub(crate) fn may_ask(&self, name: &str) -> bool {
        for rule in &self.rules.list {
            let Destination::Name(pattern) = &rule.to else { continue };
            if name_matches(pattern, name) {
                match rule.verdict {
                    EgressVerdict::Allow => return true,
                    EgressVerdict::Deny if rule.ports.is_empty() => return false,
                    EgressVerdict::Deny => {}
                }
            }
        }
        !self.listed()
    }

    /// Whether a listed name may have this address in its answer.
    pub(crate) fn may_learn(&self, name: &str, address: Ipv4Addr) -> bool {
        for rule in &self.rules.list {
            match (&rule.to, rule.verdict) {
                (Destination::Range(range), EgressVerdict::Allow) if covers(*range, address) => return true,
                (Destination::Range(range), EgressVerdict::Deny)
                    if rule.ports.is_empty() && covers(*range, address) =>
                {
                    return false;
                }
                (Destination::Name(pattern), EgressVerdict::Allow)
                    if !special(address) && name_matches(pattern, name) =>
                {
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// What is decided before any byte was read; `None` if a name could matter, be it only to say what is refused.
    pub(crate) fn by_address(&self, address: Ipv4Addr, port: u16) -> Option<EgressVerdict> {
        for rule in self.rules.list.iter().filter(|rule| at_port(rule, port)) {
            match &rule.to {
                Destination::Range(range) if covers(*range, address) => return Some(rule.verdict),
                Destination::Range(_) => {}
                Destination::Name(_) => return None,
            }
        }
        (special(address) || !self.listed()).then(|| self.rest(address))
    }

    /// Whether, and why, a connection with this name on the wire is allowed.
    pub(crate) fn by_name(&self, name: &str, address: Ipv4Addr, port: u16) -> Option<Via> {
        for rule in self.rules.list.iter().filter(|rule| at_port(rule, port)) {
            let via = match &rule.to {
                Destination::Range(range) if covers(*range, address) => Via::Address,
                Destination::Name(pattern) if name_matches(pattern, name) => Via::Name,
                Destination::Range(_) | Destination::Name(_) => continue,
            };
            return match (rule.verdict, via) {
                (EgressVerdict::Deny, _) => None,
                // Without a list the address is free anyway.
                (EgressVerdict::Allow, Via::Name) if !self.listed() && !special(address) => Some(Via::Address),
                (EgressVerdict::Allow, Via::Name) if special(address) && !self.range_allows(address, port) => None,
                (EgressVerdict::Allow, via) => Some(via),
            };
        }
        (self.rest(address) == EgressVerdict::Allow).then_some(Via::Address)
    }

    /// Whether a connection without any name on the wire is allowed; `names` are those that the address was given for.
    pub(crate) fn by_port(&self, why: Nameless, names: &[String], address: Ipv4Addr, port: u16) -> bool {
        for rule in self.rules.list.iter().filter(|rule| at_port(rule, port)) {
            match &rule.to {
                Destination::Range(range) if covers(*range, address) => return rule.verdict == EgressVerdict::Allow,
                Destination::Name(pattern) if names.iter().any(|name| name_matches(pattern, name)) => {
                    if rule.verdict == EgressVerdict::Deny {
                        return false;
                    }
                    let open = why == Nameless::ByNature && !rule.ports.is_empty() && !WEB_PORTS.contains(&port);
                    if open && (!special(address) || self.range_allows(address, port)) {
                        return true;
                    }
                }
                Destination::Range(_) | Destination::Name(_) => {}
            }
        }
        self.rest(address) == EgressVerdict::Allow
    }

    fn range_allows(&self, address: Ipv4Addr, port: u16) -> bool {
        let mut rules = self.rules.list.iter().filter(|rule| at_port(rule, port));
        let first = rules.find(|rule| matches!(&rule.to, Destination::Range(range) if covers(*range, address)));
        first.is_some_and(|rule| rule.verdict == EgressVerdict::Allow)
    }

    fn rest(&self, address: Ipv4Addr) -> EgressVerdict {
        if special(address) { EgressVerdict::Deny } else { self.rules.otherwise }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EgressVerdict::{Allow, Deny};

    fn range(verdict: EgressVerdict, range: &str, ports: &[u16]) -> Rule {
        Rule { verdict, to: Destination::Range(range.parse().expect("a range")), ports: ports.to_vec() }
    }

    fn name(verdict: EgressVerdict, name: &str, ports: &[u16]) -> Rule {
        Rule { verdict, to: Destination::Name(name.into()), ports: ports.to_vec() }
    }

    fn listed(list: Vec<Rule>) -> Policy {
        Policy::new(Rules { list, otherwise: Deny })
    }

    const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
    const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);

    #[test]
    fn the_first_matching_rule_decides_about_a_name() {
        let policy = listed(vec![name(Deny, "bad.a.org", &[]), name(Allow, "*.a.org", &[443])]);
        assert!(policy.may_ask("x.a.org") && !policy.may_ask("bad.a.org") && !policy.may_ask("a.org"));
        assert_eq!(policy.by_name("x.a.org", PUBLIC, 443), Some(Via::Name));
        assert_eq!(policy.by_name("x.a.org", PUBLIC, 80), None);
        assert_eq!(policy.by_name("bad.a.org", PUBLIC, 443), None);
        assert_eq!(policy.by_name("b.org", PUBLIC, 443), None);
    }

    #[test]
    fn a_denied_port_does_not_deny_the_question() {
        let policy = listed(vec![name(Deny, "a.org", &[80]), name(Allow, "a.org", &[])]);
        assert!(policy.may_ask("a.org"));
        assert_eq!(policy.by_name("a.org", PUBLIC, 80), None);
        assert_eq!(policy.by_name("a.org", PUBLIC, 443), Some(Via::Name));
    }

    #[test]
    fn private_addresses_need_a_range_of_their_own() {
        let policy = listed(vec![name(Allow, "a.org", &[])]);
        assert!(policy.may_learn("a.org", PUBLIC) && !policy.may_learn("a.org", PRIVATE));
        assert_eq!(policy.by_name("a.org", PRIVATE, 443), None);
        let policy = listed(vec![name(Allow, "a.org", &[]), range(Allow, "10.0.0.0/8", &[443])]);
        assert!(policy.may_learn("a.org", PRIVATE));
        assert_eq!(policy.by_name("a.org", PRIVATE, 443), Some(Via::Name));
        assert_eq!(policy.by_name("a.org", PRIVATE, 80), None);
        let open = Policy::new(Rules { list: vec![], otherwise: Allow });
        assert_eq!(open.by_address(PRIVATE, 80), Some(Deny));
        assert_eq!(open.by_address(PUBLIC, 80), Some(Allow));
    }

    #[test]
    fn denied_ranges_are_not_given_out() {
        let policy = listed(vec![range(Deny, "203.0.113.0/24", &[]), name(Allow, "a.org", &[])]);
        assert!(!policy.may_learn("a.org", PUBLIC));
        assert_eq!(policy.by_address(PUBLIC, 443), Some(Deny));
        assert_eq!(policy.by_name("a.org", PUBLIC, 443), None);
    }

    #[test]
    fn without_a_name_the_port_must_be_named() {
        let at = [String::from("a.org")];
        assert!(listed(vec![name(Allow, "a.org", &[22])]).by_port(Nameless::ByNature, &at, PUBLIC, 22));
        assert!(!listed(vec![name(Allow, "a.org", &[22])]).by_port(Nameless::ByNature, &[], PUBLIC, 22));
        assert!(!listed(vec![name(Allow, "a.org", &[])]).by_port(Nameless::ByNature, &at, PUBLIC, 22));
        assert!(!listed(vec![name(Allow, "a.org", &[443])]).by_port(Nameless::ByNature, &at, PUBLIC, 443));
        assert!(listed(vec![range(Allow, "203.0.113.0/24", &[])]).by_port(Nameless::ByNature, &at, PUBLIC, 443));
        assert!(!listed(vec![name(Allow, "a.org", &[22])]).by_port(Nameless::ByChoice, &at, PUBLIC, 22));
        let open = Policy::new(Rules { list: vec![name(Deny, "a.org", &[])], otherwise: Allow });
        assert!(
            !open.by_port(Nameless::ByChoice, &at, PUBLIC, 22) && open.by_port(Nameless::ByChoice, &[], PUBLIC, 22)
        );
    }
}

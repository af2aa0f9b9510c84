//! Which outside addresses a sandbox may reach, as it is asked for and checked.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What happens to traffic that no list names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EgressMode {
    /// It may leave.
    #[default]
    AllowAll,
    /// It is dropped.
    DenyAll,
}

/// An address range.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    fn bits(self) -> (u128, u8) {
        match self.address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, self.prefix),
            IpAddr::V6(v6) => (u128::from(v6), self.prefix),
        }
    }

    /// Whether the two have an address in common.
    #[must_use]
    pub fn touches(self, other: Self) -> bool {
        if self.address.is_ipv4() != other.address.is_ipv4() {
            return false;
        }
        let ((a, a_len), (b, b_len)) = (self.bits(), other.bits());
        let common = a_len.min(b_len);
        common == 0 || (a ^ b) >> (128 - u32::from(common)) == 0
    }

    /// Whether all of it lies in `other`.
    #[must_use]
    pub fn is_inside(self, other: Self) -> bool {
        self.prefix >= other.prefix && self.touches(other)
    }
}

impl Cidr {
    /// The address that it was written with.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// How many leading bits are fixed.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The same range, written with its first address.
    #[must_use]
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        };
        Self { address, prefix: self.prefix }
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let address: IpAddr = address.parse().map_err(|_| ())?;
        if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(());
        }
        let prefix: u8 = prefix.parse().map_err(|_| ())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if prefix > longest { Err(()) } else { Ok(Self { address, prefix }) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

const LINK_LOCAL: Cidr = Cidr { address: IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), prefix: 16 };

/// A checked egress policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// What happens to the rest.
    pub mode: EgressMode,
    /// Allowed ranges.
    pub allow_cidrs: Vec<String>,
    /// Denied ranges; looked at first.
    pub deny_cidrs: Vec<String>,
    /// Ports that limit the allow lists.
    pub allow_ports: Vec<u16>,
    /// Allowed names.
    pub allow_domains: Vec<String>,
}

/// What is wrong with an egress policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidEgress {
    /// The field, as `egress.allow_cidrs`.
    pub field: String,
    /// Why it is refused.
    pub reason: String,
}

impl Egress {
    /// Checks what a caller asked for. Lists without a mode mean `deny_all`.
    ///
    /// # Errors
    /// Naming the field, for each combination that has no meaning.
    pub fn check(
        mode: Option<&str>,
        allow_cidrs: Vec<String>,
        deny_cidrs: Vec<String>,
        allow_ports: &[i64],
        allow_domains: Vec<String>,
    ) -> Result<Self, InvalidEgress> {
        let wrong = |field: &str, reason: String| InvalidEgress { field: format!("egress.{field}"), reason };
        let lists = [
            ("allow_cidrs", allow_cidrs.is_empty()),
            ("deny_cidrs", deny_cidrs.is_empty()),
            ("allow_ports", allow_ports.is_empty()),
            ("allow_domains", allow_domains.is_empty()),
        ];
        let first_list = lists.iter().find(|(_, empty)| !empty).map(|(name, _)| *name);
        let mode = match mode {
            Some(text) => {
                text.parse::<EgressMode>().map_err(|_| wrong("mode", format!("there is no egress mode {text:?}")))?
            }
            None if first_list.is_some() => EgressMode::DenyAll,
            None => EgressMode::AllowAll,
        };
        if let (EgressMode::AllowAll, Some(field)) = (mode, first_list) {
            return Err(wrong(field, format!("allow_all takes no {field}; use deny_all")));
        }
        for (field, list) in [("allow_cidrs", &allow_cidrs), ("deny_cidrs", &deny_cidrs)] {
            for text in list {
                let cidr: Cidr =
                    text.parse().map_err(|()| wrong(field, format!("{text:?} is not a CIDR such as 10.0.0.0/8")))?;
                let link_local =
                    if field == "deny_cidrs" { cidr.touches(LINK_LOCAL) } else { cidr.is_inside(LINK_LOCAL) };
                if link_local {
                    return Err(wrong(field, format!("{cidr} is link-local, which is dropped anyway")));
                }
            }
        }
        if !allow_ports.is_empty() && allow_cidrs.is_empty() && allow_domains.is_empty() {
            return Err(wrong(
                "allow_ports",
                "allow_ports limits allow_cidrs or allow_domains, and there are none".into(),
            ));
        }
        let ports = allow_ports
            .iter()
            .map(|port| {
                u16::try_from(*port)
                    .ok()
                    .filter(|port| *port > 0)
                    .ok_or_else(|| wrong("allow_ports", format!("{port} is not a port between 1 and 65535")))
            })
            .collect::<Result<_, _>>()?;
        for name in &allow_domains {
            let bare = name.strip_prefix("*.").unwrap_or(name);
            let label = |l: &str| {
                (1..=63).contains(&l.len())
                    && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                    && !l.starts_with('-')
                    && !l.ends_with('-')
            };
            if bare.len() > 253 || !bare.split('.').all(label) {
                return Err(wrong("allow_domains", format!("{name:?} is not a host name or *.name")));
            }
        }
        Ok(Self { mode, allow_cidrs, deny_cidrs, allow_ports: ports, allow_domains })
    }
}

/// What becomes of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may leave.
    Allow,
    /// It is refused.
    Deny,
}

/// Where traffic goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An address in this range.
    Range(Cidr),
    /// A host of this name, or with a leading `*.` every host below it; lower case, without a last dot.
    Name(String),
}

/// One rule: the first that matches decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it says.
    pub verdict: Verdict,
    /// About whom.
    pub to: Destination,
    /// About which ports; none means all.
    pub ports: Vec<u16>,
}

/// An egress policy as the network sees it: rules in order, and what holds where none matches. The native surface puts
/// denials first; others may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The first that matches decides.
    pub list: Vec<Rule>,
    /// If none does.
    pub otherwise: Verdict,
}

impl Rules {
    /// Whether anything may ever leave.
    #[must_use]
    pub fn allow_anything(&self) -> bool {
        self.otherwise == Verdict::Allow || self.list.iter().any(|rule| rule.verdict == Verdict::Allow)
    }

    /// The names that may be asked for; `None` for any.
    #[must_use]
    pub fn names(&self) -> Option<Vec<&str>> {
        (self.otherwise == Verdict::Deny).then(|| {
            let names = self.list.iter().filter_map(|rule| match (rule.verdict, &rule.to) {
                (Verdict::Allow, Destination::Name(name)) => Some(name.as_str()),
                _ => None,
            });
            names.collect()
        })
    }
}

/// Whether a host's name is the one that a rule names, or below it. Neither case nor a last dot counts.
#[must_use]
pub fn name_matches(rule: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    match rule.strip_prefix("*.") {
        Some(parent) => {
            let below = host.len().checked_sub(parent.len() + 1).filter(|at| *at > 0);
            below.is_some_and(|at| {
                host.is_char_boundary(at) && host.as_bytes()[at] == b'.' && host[at + 1..].eq_ignore_ascii_case(parent)
            })
        }
        None => host.eq_ignore_ascii_case(rule),
    }
}

impl Egress {
    /// The rules that it stands for: denials, then what is allowed, then the mode.
    #[must_use]
    pub fn rules(&self) -> Rules {
        // Checked when it was taken in; what is not a range cannot match anything.
        let range = |text: &String| text.parse().ok().map(|cidr: Cidr| Destination::Range(cidr.network()));
        let deny = self.deny_cidrs.iter().filter_map(range);
        let deny = deny.map(|to| Rule { verdict: Verdict::Deny, to, ports: Vec::new() });
        let name = |name: &String| Destination::Name(name.to_ascii_lowercase());
        let allow = self.allow_cidrs.iter().filter_map(range).chain(self.allow_domains.iter().map(name));
        let allow = allow.map(|to| Rule { verdict: Verdict::Allow, to, ports: self.allow_ports.clone() });
        let otherwise = match self.mode {
            EgressMode::AllowAll => Verdict::Allow,
            EgressMode::DenyAll => Verdict::Deny,
        };
        Rules { list: deny.chain(allow).collect(), otherwise }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    fn check(
        mode: Option<&str>,
        allow: &[&str],
        deny: &[&str],
        ports: &[i64],
        domains: &[&str],
    ) -> Result<Egress, String> {
        Egress::check(mode, strings(allow), strings(deny), ports, strings(domains)).map_err(|e| e.field)
    }

    #[test]
    fn each_bad_combination_names_its_field() {
        assert_eq!(check(Some("maybe"), &[], &[], &[], &[]), Err("egress.mode".into()));
        assert_eq!(check(Some("allow_all"), &["10.0.0.0/8"], &[], &[], &[]), Err("egress.allow_cidrs".into()));
        assert_eq!(check(Some("allow_all"), &[], &["10.0.0.0/8"], &[], &[]), Err("egress.deny_cidrs".into()));
        assert_eq!(check(Some("deny_all"), &[], &[], &[443], &[]), Err("egress.allow_ports".into()));
        assert_eq!(check(Some("deny_all"), &["1.1.1.1/32"], &[], &[0], &[]), Err("egress.allow_ports".into()));
        assert_eq!(check(Some("deny_all"), &["1.1.1.1/32"], &[], &[65536], &[]), Err("egress.allow_ports".into()));
        for bad in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "x/8", "::1/129", "1.1.1.1/+8", "169.254.169.254/32"] {
            assert_eq!(check(None, &[bad], &[], &[], &[]), Err("egress.allow_cidrs".into()), "{bad}");
        }
        for bad in ["169.254.0.0/16", "0.0.0.0/0", "169.0.0.0/8"] {
            assert_eq!(check(None, &[], &[bad], &[], &[]), Err("egress.deny_cidrs".into()), "{bad}");
        }
        assert_eq!(check(None, &[], &[], &[], &["exa mple"]), Err("egress.allow_domains".into()));
    }

    #[test]
    fn denials_come_before_what_is_allowed() {
        let egress = check(None, &["10.1.2.3/8"], &["10.9.0.0/16"], &[443], &["API.example.org"]).expect("is sound");
        let (deny, range) = ("10.9.0.0/16".parse().expect("a range"), "10.0.0.0/8".parse().expect("a range"));
        let rule = |verdict, to, ports: &[u16]| Rule { verdict, to, ports: ports.to_vec() };
        let list = vec![
            rule(Verdict::Deny, Destination::Range(deny), &[]),
            rule(Verdict::Allow, Destination::Range(range), &[443]),
            rule(Verdict::Allow, Destination::Name("api.example.org".into()), &[443]),
        ];
        let rules = egress.rules();
        assert_eq!(rules, Rules { list, otherwise: Verdict::Deny });
        assert_eq!(rules.names(), Some(vec!["api.example.org"]));
        assert!(rules.allow_anything());
        assert_eq!(Egress::default().rules().names(), None);
        assert!(!check(Some("deny_all"), &[], &["8.8.8.8/32"], &[], &[]).expect("is sound").rules().allow_anything());
    }

    #[test]
    fn names_match_whole_labels() {
        for (rule, host) in
            [("a.org", "A.org."), ("*.a.org", "x.a.org"), ("*.a.org", "x.y.A.ORG"), ("*.a.org", "é.a.org")]
        {
            assert!(name_matches(rule, host), "{rule} {host}");
        }
        for (rule, host) in
            [("a.org", "b.a.org"), ("*.a.org", "a.org"), ("*.a.org", "xa.org"), ("*.a.org", ".a.org"), ("a.org", "")]
        {
            assert!(!name_matches(rule, host), "{rule} {host}");
        }
    }

    #[test]
    fn lists_alone_mean_deny_all() {
        assert_eq!(check(None, &[], &[], &[], &[]).map(|e| e.mode), Ok(EgressMode::AllowAll));
        assert_eq!(check(None, &["0.0.0.0/0"], &[], &[], &[]).map(|e| e.mode), Ok(EgressMode::DenyAll));
        assert_eq!(check(None, &[], &[], &[443], &["*.example.org"]).map(|e| e.mode), Ok(EgressMode::DenyAll));
    }
}

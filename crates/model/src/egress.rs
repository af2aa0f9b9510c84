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
    fn lists_alone_mean_deny_all() {
        assert_eq!(check(None, &[], &[], &[], &[]).map(|e| e.mode), Ok(EgressMode::AllowAll));
        assert_eq!(check(None, &["0.0.0.0/0"], &[], &[], &[]).map(|e| e.mode), Ok(EgressMode::DenyAll));
        assert_eq!(check(None, &[], &[], &[443], &["*.example.org"]).map(|e| e.mode), Ok(EgressMode::DenyAll));
    }
}

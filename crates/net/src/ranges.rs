//! Sets of IPv4 addresses as sorted spans.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use wakeful_model::Cidr;

/// What is not on the internet, and reached only if a rule or the host's configuration names it.
const PRIVATE: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
];

/// Spans of addresses, first and last included; sorted, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u32, u32)>);

fn span(address: Ipv4Addr, prefix: u8) -> (u32, u32) {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    let first = u32::from(address) & mask;
    (first, first | !mask)
}

impl Ranges {
    /// Of IPv4 ranges; others have no address in common with them.
    pub(crate) fn new(of: impl IntoIterator<Item = Cidr>) -> Self {
        Self::of_spans(of.into_iter().filter_map(|cidr| match cidr.address() {
            IpAddr::V4(address) => Some(span(address, cidr.prefix())),
            IpAddr::V6(_) => None,
        }))
    }

    fn of_spans(spans: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut spans: Vec<_> = spans.into_iter().collect();
        spans.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(spans.len());
        for (first, last) in spans {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// The private ranges, without those that the host opens.
    pub(crate) fn private_but(open: &[Cidr]) -> Self {
        let mut spans = Self::of_spans(PRIVATE.iter().map(|(address, prefix)| span(*address, *prefix))).0;
        for (first, last) in Self::new(open.iter().copied()).0 {
            let cut = |(from, to): (u32, u32)| {
                let below = first.checked_sub(1).filter(|end| from <= *end).map(|end| (from, end.min(to)));
                let above = last.checked_add(1).filter(|start| *start <= to).map(|start| (start.max(from), to));
                [below, above].into_iter().flatten()
            };
            spans = spans.into_iter().flat_map(cut).collect();
        }
        Self(spans)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every address is in it.
    pub(crate) fn is_everything(&self) -> bool {
        self.0 == [(0, u32::MAX)]
    }

    /// As the elements of an nftables set.
    pub(crate) fn elements(&self) -> String {
        let mut text = String::new();
        for (first, last) in &self.0 {
            let separator = if text.is_empty() { "" } else { ", " };
            let (from, to) = (Ipv4Addr::from(*first), Ipv4Addr::from(*last));
            let _ = match first == last {
                true => write!(text, "{separator}{from}"),
                false => write!(text, "{separator}{from}-{to}"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().expect("is a range")).collect()
    }

    #[test]
    fn overlapping_and_adjacent_ranges_become_one() {
        let ranges = Ranges::new(cidrs(&["10.0.1.0/24", "10.0.0.0/24", "10.0.1.128/25", "9.9.9.9/32", "::/0"]));
        assert_eq!(ranges.elements(), "9.9.9.9, 10.0.0.0-10.0.1.255");
        assert!(Ranges::new(cidrs(&["128.0.0.0/1", "1.2.3.4/0"])).is_everything());
        assert!(Ranges::new(cidrs(&["::1/128"])).is_empty());
    }

    #[test]
    fn what_the_host_opens_is_not_private() {
        let private = Ranges::private_but(&cidrs(&["10.5.0.0/16", "172.0.0.0/8", "192.168.255.0/24"]));
        assert_eq!(
            private.elements(),
            "10.0.0.0-10.4.255.255, 10.6.0.0-10.255.255.255, 100.64.0.0-100.127.255.255, 192.0.0.0-192.0.0.255, \
             192.168.0.0-192.168.254.255, 198.18.0.0-198.19.255.255"
        );
        assert!(Ranges::private_but(&cidrs(&["0.0.0.0/0"])).is_empty());
    }
}

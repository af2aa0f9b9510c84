//! What passed a slot, and what was refused there and why.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::Error;

/// Bytes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of whole IP packets.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

/// What a slot has seen since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// What the guest sent and was let through.
    pub out: Traffic,
    /// What the guest was sent.
    pub received: Traffic,
    /// What was refused in the last hour, at most some thousand per reason.
    pub denied: Vec<Denied>,
}

/// Attempts that were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why.
    pub reason: Reason,
    /// Where it was going; `None` for frames that carry no IPv4.
    pub address: Option<Ipv4Addr>,
    /// The IP protocol's number: 6 for TCP, 17 for UDP, 1 for ICMP; 0 where there is none.
    pub protocol: u8,
    /// The port; 0 where the protocol has none.
    pub port: u16,
    /// How much of it.
    pub traffic: Traffic,
}

/// Why something was refused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::Display, strum::EnumString, strum::EnumIter,
)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// No rule allows it.
    Policy,
    /// A rule denies its range.
    DeniedRange,
    /// It is a private range that no rule names.
    Private,
    /// It is link-local, as a cloud's metadata.
    LinkLocal,
    /// It is another slot's.
    Neighbour,
    /// It is loopback, multicast, broadcast or otherwise nobody's.
    Reserved,
    /// It is the host itself.
    Host,
    /// It is a port of the gateway that is not for guests.
    Gateway,
    /// Its sender is not the guest.
    Spoofed,
    /// It asks somebody else for names, where names are allowed one by one.
    Dns,
    /// It is QUIC to an allowed name, whose name cannot be checked.
    Quic,
    /// It is neither TCP, UDP nor an ICMP echo; or no IPv4.
    Protocol,
    /// There are too many connections.
    Connections,
    /// It belongs to a connection that this slot does not know, as one from before a sleep.
    Stale,
}

impl Reason {
    /// Whether it has a chain in the slot that is entered with a tracked connection.
    pub(crate) fn in_slot(self) -> bool {
        !matches!(self, Self::Host | Self::Spoofed | Self::Stale)
    }
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn traffic(value: &Value) -> Traffic {
    Traffic { bytes: number(value, "bytes"), packets: number(value, "packets") }
}

fn protocol(value: &Value) -> u8 {
    match value {
        Value::Number(number) => number.as_u64().and_then(|number| u8::try_from(number).ok()).unwrap_or(0),
        Value::String(name) => match name.as_str() {
            "tcp" => 6,
            "udp" => 17,
            "icmp" => 1,
            other => other.parse().unwrap_or(0),
        },
        _ => 0,
    }
}

/// An element's key and how often it was met.
fn elements(set: &Value) -> impl Iterator<Item = (&[Value], Traffic)> {
    set.get("elem").and_then(Value::as_array).into_iter().flatten().filter_map(|element| {
        let element = element.get("elem")?;
        let key = element.get("val")?.get("concat")?.as_array()?;
        Some((key.as_slice(), traffic(element.get("counter")?)))
    })
}

fn attempt(reason: Reason, key: &[Value], traffic: Traffic) -> Option<Denied> {
    let [address, kind, port] = key else { return None };
    let address = Some(address.as_str()?.parse().ok()?);
    let port = port.as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    Some(Denied { reason, address, protocol: protocol(kind), port, traffic })
}

fn objects(listing: &[u8]) -> Result<Vec<Value>, Error> {
    let mut listing: Value = serde_json::from_slice(listing).map_err(|source| Error::Listing { source })?;
    let list = listing.get_mut("nftables").map(Value::take);
    Ok(match list {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    })
}

/// Reads what `nft` lists of a slot.
pub(crate) fn read(listing: &[u8]) -> Result<Account, Error> {
    let mut account = Account::default();
    for object in objects(listing)? {
        if let Some(counter) = object.get("counter") {
            let seen = traffic(counter);
            match counter.get("name").and_then(Value::as_str) {
                Some("out") => account.out = seen,
                Some("in") => account.received = seen,
                Some(name) if seen.packets > 0 => {
                    if let Ok(reason) = name.parse() {
                        account.denied.push(Denied { reason, address: None, protocol: 0, port: 0, traffic: seen });
                    }
                }
                _ => {}
            }
        }
        let Some(set) = object.get("set") else { continue };
        let name = set.get("name").and_then(Value::as_str).and_then(|name| name.strip_prefix("d_"));
        if let Some(Ok(reason)) = name.map(str::parse) {
            account.denied.extend(elements(set).filter_map(|(key, seen)| attempt(reason, key, seen)));
        }
    }
    Ok(account)
}

/// Reads what `nft` lists of the host's refusals, of the slot with this address.
pub(crate) fn read_host(
    listing: &[u8],
    slot: Ipv4Addr,
    is_neighbour: impl Fn(Ipv4Addr) -> bool,
) -> Result<Vec<Denied>, Error> {
    let slot = slot.to_string();
    let mut denied = Vec::new();
    for object in objects(listing)? {
        let Some(set) = object.get("set") else { continue };
        for (key, seen) in elements(set) {
            let [from, key @ ..] = key else { continue };
            if from.as_str() == Some(&slot)
                && let Some(mut attempt) = attempt(Reason::Host, key, seen)
            {
                if attempt.address.is_some_and(&is_neighbour) {
                    attempt.reason = Reason::Neighbour;
                }
                denied.push(attempt);
            }
        }
    }
    Ok(denied)
}

//! The tables that stay: a slot's, into whose chains a policy is put, and the host's.

use std::fmt::Write as _;

use strum::IntoEnumIterator as _;
use wakeful_model::Cidr;

use crate::account::Reason;
use crate::network::Limits;
use crate::ranges::Ranges;
use crate::{GATEWAY, GUEST, PREFIX, PROXY_PORT};

/// The guest's card ends here, whatever it is.
pub(crate) const CARD: &str = "tap0";
/// The guest's card itself, where it is a link.
pub(crate) const GUEST_CARD: &str = "eth0";
/// The slot's way out.
pub(crate) const UPLINK: &str = "up0";

/// What every set of refused attempts is.
const ATTEMPTS: &str = "flags dynamic,timeout; size 1024; timeout 1h; counter;";

/// The least that a limited direction may send at once: one packet as the kernel merges them, and some more.
const BURST: u64 = 256 * 1024;

/// Where each packet goes: what every slot has, with the chains that hold the policy empty.
///
/// ```text
///  tap0 ─ ingress ─ prerouting: from_guest ─┬─ forward ──────── up0        out
///         (who)     (never, verdicts)       └─ input: to_gateway           resolver, proxy
///  up0 ─ forward: to_guest (never, verdicts) ─ tap0                        in
///  proxy ─ output: leaving (never, own) ─ up0;  output: to_guest ─ tap0
/// ```
///
/// The judging chains return for what is allowed, and go to a `deny_…` chain, which never returns, for the rest.
pub(crate) fn slot(pool: Cidr, private: &Ranges, limits: Limits) -> String {
    let mut text = String::with_capacity(8192);
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let guest_mac = mac(crate::GUEST_MAC);
    let attempts = format!("type ipv4_addr . inet_proto . inet_service; {ATTEMPTS}");
    let _ = write!(
        text,
        "table netdev wakeful {{
  counter spoofed {{ }}
  counter protocol {{ }}
  set d_spoofed {{ {attempts} }}
  chain spoofed {{
    meta protocol ip meta l4proto {{ tcp, udp }} update @d_spoofed {{ ip daddr . meta l4proto . th dport }} drop
    meta protocol ip meta l4proto != {{ tcp, udp }} update @d_spoofed {{ ip daddr . meta l4proto . 0 }} drop
    counter name spoofed drop
  }}
  chain ingress {{
    type filter hook ingress device \"{CARD}\" priority -500; policy drop;
    ether saddr != {guest_mac} goto spoofed
    ip saddr {GUEST} accept
    meta protocol ip goto spoofed
    arp operation request arp saddr ether {guest_mac} arp saddr ip {GUEST} arp daddr ip {GATEWAY} accept
    meta protocol arp counter name spoofed drop
    counter name protocol drop
  }}
}}
table inet wakeful {{
  counter out {{ }}
  counter in {{ }}
  set names {{ type ipv4_addr; flags timeout; size 65536; }}
  set private {{ type ipv4_addr; flags interval;"
    );
    if !private.is_empty() {
        let _ = write!(text, " elements = {{ {} }}", private.elements());
    }
    text.push_str(
        " }
  chain refuse {
    meta l4proto tcp reject with tcp reset
    meta nfproto ipv4 reject with icmp type admin-prohibited
    drop
  }
",
    );
    for (name, rate) in [("up", limits.bytes_per_second_up), ("down", limits.bytes_per_second_down)] {
        if let Some(rate) = rate {
            let burst = BURST.max(rate / 8);
            let _ = writeln!(text, "  limit {name} {{ rate over {} bytes/second burst {burst} bytes }}", rate.max(1));
        }
    }
    for reason in Reason::iter().filter(|reason| reason.in_slot()) {
        let _ = write!(
            text,
            "  set d_{reason} {{ {attempts} }}
  chain deny_{reason} {{
    meta l4proto {{ tcp, udp }} update @d_{reason} {{ ct original ip daddr . meta l4proto . ct original proto-dst }}
    meta l4proto != {{ tcp, udp }} update @d_{reason} {{ ct original ip daddr . meta l4proto . 0 }}
    goto refuse
  }}
"
        );
    }
    let limit = |name: &str, set: Option<u64>| set.map(|_| format!("limit name \"{name}\" drop")).unwrap_or_default();
    let up = limit("up", limits.bytes_per_second_up);
    let down = limit("down", limits.bytes_per_second_down);
    let connections = limits.connections.map(|most| format!("ct state new ct count over {most} goto deny_connections"));
    let connections = connections.unwrap_or_default();
    let pool = pool.network();
    let _ = write!(
        text,
        "  set d_stale {{ {attempts} }}
  chain stale {{
    meta l4proto tcp update @d_stale {{ ip daddr . meta l4proto . th dport }}
    meta l4proto tcp reject with tcp reset
    drop
  }}
  chain never {{
    ct original ip daddr 169.254.0.0/16 goto deny_link_local
    ct original ip daddr {pool} goto deny_neighbour
    ct original ip daddr {{ 0.0.0.0/8, 127.0.0.0/8, 192.0.0.0/{PREFIX}, 224.0.0.0/3 }} goto deny_reserved
  }}
  chain named {{ }}
  chain verdicts_dns {{ }}
  chain verdicts {{ }}
  chain own {{ }}
  chain resolver {{ }}
  chain from_guest {{
    meta nfproto != ipv4 drop
    ct state invalid,untracked goto stale
    meta l4proto tcp ct state new tcp flags & (fin | syn | rst | ack) != syn goto stale
    ct original ip saddr {GATEWAY} accept
    ct original ip daddr {GATEWAY} accept
    jump never
    meta l4proto != {{ tcp, udp, icmp }} goto deny_protocol
    meta l4proto icmp ct state new icmp type != echo-request goto deny_protocol
    jump verdicts
    {connections}
    {up}
    accept
  }}
  chain to_gateway {{
    ct original ip saddr {GATEWAY} ct state established,related accept
    ct state related accept
    ct status dnat tcp dport {PROXY_PORT} counter name out accept
    ct original ip daddr {GATEWAY} jump resolver
    ct original ip daddr {GATEWAY} icmp type echo-request accept
    goto deny_gateway
  }}
  chain to_guest {{
    jump never
    jump verdicts
    {down}
    counter name in accept
  }}
  chain leaving {{
    meta l4proto tcp tcp flags & rst == rst accept
    ct state invalid,untracked drop
    jump never
    jump own
    accept
  }}
  chain prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    iifname \"{CARD}\" goto from_guest
  }}
  chain redirected {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname \"{CARD}\" meta l4proto tcp ct mark != 0 redirect to :{PROXY_PORT}
  }}
  chain input {{
    type filter hook input priority filter; policy drop;
    iifname \"lo\" accept
    iifname \"{CARD}\" goto to_gateway
    iifname \"{UPLINK}\" ct state established,related accept
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname \"{CARD}\" oifname \"{UPLINK}\" counter name out accept
    iifname \"{UPLINK}\" oifname \"{CARD}\" meta l4proto icmp ct state related counter name in accept
    iifname \"{UPLINK}\" oifname \"{CARD}\" ct state established goto to_guest
  }}
  chain output {{
    type filter hook output priority filter; policy drop;
    oifname \"lo\" accept
    oifname \"{CARD}\" meta l4proto tcp tcp flags & rst == rst accept
    oifname \"{CARD}\" ct status dnat ct direction reply goto to_guest
    oifname \"{CARD}\" accept
    oifname \"{UPLINK}\" goto leaving
  }}
  chain outward {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname \"{UPLINK}\" masquerade
  }}
}}
",
    );
    text
}

/// The name of a slot's link on the host.
pub(crate) fn host_link(tag: &str, slot: u32) -> String {
    format!("wk{tag}x{slot}")
}

/// The name of the host's table.
pub(crate) fn host_table(tag: &str) -> String {
    format!("wakeful_{tag}")
}

/// The host's table: guests reach neither the host nor each other, and nobody begins a connection to them. The host is
/// closed to them before its ports are forwarded elsewhere, as a container engine may do. What was counted stays when
/// the table is set again.
pub(crate) fn host(tag: &str, pool: Cidr) -> String {
    let (table, links, pool) = (host_table(tag), format!("\"wk{tag}x*\""), pool.network());
    format!(
        "table inet {table} {{
  set denied {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags dynamic,timeout; size 65536; timeout 1h; counter; }}
  chain refuse {{ }}
  chain prerouting {{ type filter hook prerouting priority mangle; policy accept; }}
  chain input {{ type filter hook input priority filter - 10; policy accept; }}
  chain forward {{ type filter hook forward priority filter - 10; policy accept; }}
  chain outward {{ type nat hook postrouting priority srcnat; policy accept; }}
}}
flush table inet {table}
table inet {table} {{
  chain refuse {{
    meta nfproto ipv4 meta l4proto {{ tcp, udp }} update @denied {{ ip saddr . ip daddr . meta l4proto . th dport }}
    meta nfproto ipv4 meta l4proto != {{ tcp, udp }} update @denied {{ ip saddr . ip daddr . meta l4proto . 0 }}
    meta l4proto tcp reject with tcp reset
    meta nfproto ipv4 reject with icmp type admin-prohibited
    drop
  }}
  chain prerouting {{
    iifname {links} fib daddr type {{ local, broadcast, multicast }} goto refuse
  }}
  chain input {{
    iifname {links} goto refuse
  }}
  chain forward {{
    iifname {links} oifname {links} goto refuse
    iifname {links} meta nfproto != ipv4 drop
    iifname {links} ip saddr != {pool} drop
    oifname {links} ct state != {{ established, related }} drop
    iifname {links} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
  }}
  chain outward {{
    ip saddr {pool} oifname != {links} masquerade
  }}
}}
"
    )
}

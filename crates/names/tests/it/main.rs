//! The gatekeeper with real resolvers and clients, each test in a network namespace of its own.
//!
//! Needs root, and the Debian packages `dnsmasq-base`, `bind9-dnsutils`, `nftables`, `iproute2`, `curl`, `openssl`.

mod change;
mod dns;
mod house;
mod http;
mod plain;
mod redirect;
mod tls;

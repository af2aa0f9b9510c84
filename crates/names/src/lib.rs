//! The resolver and the name-checking proxy that stand at a sandbox's gateway.
//!
//! A packet filter knows addresses; people allow names. Two things close the gap: a resolver that answers only for
//! allowed names and opens each address that it gives out, and a proxy that lets a connection through only if the name
//! inside it is allowed and is one that the address was given for. A guest can then neither tunnel through the
//! resolver, nor reach another host that shares an allowed address, nor another address under an allowed name.
//!
//! ```text
//!   guest ── 53 ─────────▶ dns     policy ─▶ upstream ─▶ Gate::admit ─▶ answer
//!                           │ address, name
//!                           ▼
//!                          book
//!                           ▲ was this address given for this name?
//!   guest ── redirected ─▶ proxy   sniff ─▶ policy ─▶ Gate::socket, connect ─▶ copy both ways
//! ```
//!
//! Sockets come bound from whoever owns the sandbox's network; nothing here knows of namespaces or packet filters.
//! Everything that a guest can make grow has a bound ([`Limits`]), everything that it can make wait has a deadline.
//! When something fails it fails closed: no answer, or a reset; [`Gatekeeper::refused`] says what was refused.
//!
//! What it cannot do:
//! - Inside TLS nothing is seen: a server that takes another `Host` than the name of its certificate serves that one.
//! - A server that picks its host by another header than `Host` is not understood.
//! - On ports other than the web's, protocols without names pass by address where a rule names the port.
//! - A denied name under rules that allow the rest only keeps the honest out: its address can be used without it.

mod book;
mod dns;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod gatekeeper;
mod policy;
mod proxy;
mod refusals;
mod sniff;

pub use dns::Upstream;
pub use gatekeeper::{Gate, Gatekeeper, Limits, Sockets};
pub use refusals::{Refused, What};
pub use sniff::{Body, Head, Hello, Protocol, Sniffed, clean_name, sniff};

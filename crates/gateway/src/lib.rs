//! Previews: HTTP to a port inside a sandbox.
//!
//! ```text
//!   client ──HTTP/1.1, HTTP/2, WebSocket──▶ api (who is it?) ──▶ Gateway::forward
//!                                                                    │ HTTP/1.1 (gRPC: HTTP/2)
//!                                            duplex ── Line ══ agent's tunnel ══ Line ── 127.0.0.1:port
//! ```
//!
//! Every request has a connection of its own to the service, through the agent, so services on loopback only are reached and
//! the sandbox needs no network. The connection is a [`wakeful_tunnel::Line`]: if the sandbox falls asleep under an open
//! WebSocket, a stream of events or an unfinished answer, the client's connection stays, and goes on after the next wake. What
//! the client sends wakes it; a client that only listens, or only sends pings, does not.
//!
//! Who may call is decided above. What is decided here: what of a request reaches the service (`headers`), which host names
//! are previews ([`Host`]), and the tickets with which browsers come in ([`Sessions`]).

mod error;
mod forward;
mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod headers;
mod host;
mod join;
mod line;
mod session;

pub use error::Error;
pub use forward::{Body, Form, Gateway, Place, Sender};
pub use headers::without_cookie;
pub use host::Host;
pub use session::{COOKIE, Grant, Sessions};

//! The host's end of the agent's channel: restore, quiesce, exec, files, trees, watches, tunnels.
//!
//! ```text
//!   byte stream (unix socket of the engine, TCP)
//!      └─ hello ─▶ [clock, entropy, identity] ─▶ HTTP/2, host = client ─▶ Guest (cheap to clone; many calls at once)
//! ```
//!
//! The guest is hostile: every answer is bounded before it is kept, every wait of this crate's own calls has a deadline,
//! and no name or path that it sends is used on the host. A channel that breaks gives [`Error::Lost`] to every call on
//! it; the caller closes it, connects again, and decides what may be repeated.

mod connect;
mod control;
mod error;
mod exec;
mod files;
mod process;
mod revive;
mod tree;
mod tunnel;
mod upload;
mod watch;

pub use connect::{Body, Guest, empty, full};
pub use error::Error;
pub use exec::{Again, Exec, ExecEvent, ExecOutput, ExecStream, OutputStream};
pub use files::{Entry, FileHead, FilePart, FileStream};
pub use process::Job;
pub use revive::Revived;
pub use tree::{PackOptions, UnpackOptions};
pub use tunnel::{Opened, Tunnel};
pub use wakeful_guest_proto as proto;
pub use wakeful_guest_proto::control::Unpacked;
pub use wakeful_guest_proto::tunnel::TunnelId;
pub use watch::{WatchEvent, WatchStream};

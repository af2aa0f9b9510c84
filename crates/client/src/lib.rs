//! Typed HTTP client of the REST API, for the command line and the tests.
//!
//! One method per call of the contract; bodies are the types of `wakeful_api_types`. Files go through as streams and are
//! never held in memory. What the server refuses is [`Error::Problem`] with its code; a server that is not there is
//! [`Error::Unreachable`]. Every call has a deadline.

mod address;
mod error;
mod events;
mod files;
mod frames;
mod keys;
mod patch;
mod pool;
mod ports;
mod processes;
mod sandboxes;
mod send;
mod snapshots;
mod socket;
mod templates;
mod terminal;
mod tls;
mod watch;

pub use error::Error;
pub use events::Events;
pub use files::{Download, Upload};
pub use frames::Frames;
pub use ports::Tunnel;
pub use sandboxes::ListQuery;
pub use send::Client;
pub use templates::BuildEvents;
pub use terminal::{Terminal, TerminalEvent, TerminalInput, TerminalOutput, Which};
pub use tls::use_ring;
pub use wakeful_api_types as types;
pub use watch::Changes;

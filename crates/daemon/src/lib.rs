//! The daemon as a library: configuration, wiring, running and draining.
//!
//! ```text
//!   Config::load ─▶ wire::take (lock, store) ─▶ bring_up (runtimes, lifecycle recovers) ─▶ serve (listen, drain)
//! ```

mod accept;
pub mod admin_token;
pub mod config;
pub mod doctor;
pub mod fsck;
pub mod logging;
mod notify;
pub mod paths;
pub mod registry;
mod runtimes;
mod serve;
pub mod setup;
pub mod systemd;
pub mod tls;
pub mod wire;

pub use serve::{Error as ServeError, serve, settle_in, signals};

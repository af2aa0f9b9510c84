//! The daemon as a library: configuration, wiring, running and draining.
//!
//! ```text
//!   Config::load ─▶ wire::open (lock, store, runtimes, lifecycle recovers) ─▶ serve (listen, drain)
//! ```

pub mod config;
pub mod doctor;
pub mod logging;
pub mod paths;
mod serve;
pub mod setup;
pub mod wire;

pub use serve::{Error as ServeError, serve, signals};

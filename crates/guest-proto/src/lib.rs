//! What host and guest say to each other: the hello that opens a channel, the control routes, the JSON shapes inside.
//!
//! Pure: no tokio, no I/O. Both ends parse with the code of this crate, and snapshots freeze one of them for years, so
//! new fields are optional and the one [`hello::PROTOCOL`] number gates new messages.

pub mod card;
pub mod connect_rpc;
pub mod contact;
pub mod control;
pub mod filesystem;
pub mod hello;
pub mod process;
pub mod tunnel;

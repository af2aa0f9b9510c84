//! The host's end of the channel against the real agent.

mod agent;
mod channel;
mod control;
mod e2b;
mod exec;
mod files;
mod lease;
mod process;
mod tree;
mod tunnel;
mod watch;

//! The binary from outside, as far as no daemon is needed.

mod builds;
mod colours;
mod completions;
mod config;
mod failures;
mod help;
mod local;
mod run;

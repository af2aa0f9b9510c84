//! The whole system as a user meets it: the real daemon over HTTP, real guests on real engines.

mod bad_input;
mod bench;
mod changes;
mod clones;
mod command_line;
mod crash;
mod deadlines;
mod exec;
mod files;
mod guest_faults;
mod idempotency;
mod images;
mod lease;
mod openapi;
mod sleep;
mod streams;
mod support;
mod templates;
mod terminals;
mod tunnels;
mod watch;
mod who;
mod wire;

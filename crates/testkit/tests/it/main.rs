//! The whole system as a user meets it: the real daemon over HTTP, real guests on real engines.

/// What only a virtual machine has; each use says why. The same scenarios are walked on gVisor without these.
macro_rules! microvm_only {
    ($reason:literal; $($scenario:item)*) => { $($scenario)* };
}

mod bad_input;
mod bench;
mod builds;
mod changes;
mod clones;
mod command_line;
mod crash;
mod deadlines;
mod disk;
mod dockerfiles;
mod exec;
mod exec_stream;
mod faults;
mod files;
mod forge;
mod forks;
mod fsck;
mod grpc;
mod guest_faults;
mod idempotency;
mod images;
mod lease;
mod network;
mod openapi;
mod outside;
mod pool;
mod port_forward;
mod pressure;
mod previews;
mod proxy;
#[path = "../../../oci/tests/it/registry.rs"]
#[expect(dead_code, reason = "TLS is for the tests of the crate that it belongs to")]
mod registry;
mod shell;
mod shutdown;
mod sleep;
mod soak;
mod streams;
mod support;
mod templates;
mod terminals;
mod tls;
mod tunnels;
mod warm;
mod watch;
mod who;
mod wire;

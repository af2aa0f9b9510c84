//! The scenarios of `it` once more, on gVisor: one list, the runtime is a parameter (`wakeful_testkit::runtime`).

#![expect(dead_code, unused_imports, reason = "some of it is used only by what is left out here")]

/// What only a virtual machine has is left out; each use says why.
macro_rules! microvm_only {
    ($reason:literal; $($scenario:item)*) => {};
}

#[path = "../it/changes.rs"]
mod changes;
#[path = "../it/clones.rs"]
mod clones;
#[path = "../it/crash.rs"]
mod crash;
#[path = "../it/deadlines.rs"]
mod deadlines;
#[path = "../it/disk.rs"]
mod disk;
#[path = "../it/exec.rs"]
mod exec;
#[path = "../it/exec_stream.rs"]
mod exec_stream;
#[path = "../it/faults.rs"]
mod faults;
#[path = "../it/files.rs"]
mod files;
#[path = "../it/forks.rs"]
mod forks;
#[path = "../it/fsck.rs"]
mod fsck;
#[path = "../it/grpc.rs"]
mod grpc;
#[path = "../it/guest_faults.rs"]
mod guest_faults;
#[path = "../it/lease.rs"]
mod lease;
#[path = "../it/network.rs"]
mod network;
#[path = "../it/outside.rs"]
mod outside;
#[path = "../it/pool.rs"]
mod pool;
#[path = "../it/port_forward.rs"]
mod port_forward;
#[path = "../it/pressure.rs"]
mod pressure;
#[path = "../it/previews.rs"]
mod previews;
#[path = "../it/proxy.rs"]
mod proxy;
#[path = "../it/shell.rs"]
mod shell;
#[path = "../it/shutdown.rs"]
mod shutdown;
#[path = "../it/sleep.rs"]
mod sleep;
#[path = "../it/streams.rs"]
mod streams;
#[path = "../it/support.rs"]
mod support;
#[path = "../it/terminals.rs"]
mod terminals;
#[path = "../it/tunnels.rs"]
mod tunnels;
#[path = "../it/warm.rs"]
mod warm;
#[path = "../it/watch.rs"]
mod watch;
#[path = "../it/wire.rs"]
mod wire;

//! The agent as bytes.
//!
//! The daemon is one file, so the agent travels inside it: the build script links it statically, and whoever makes an
//! initramfs takes it from here.

/// The statically linked `wakeful-agent`, ready to be `/init`.
pub static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wakeful-agent"));

/// The same for containers (`wakeful-agent container`): it waits by `poll` and has no epoll, which gVisor does not restore
/// well.
pub static AGENT_CONTAINER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wakeful-agent-container"));

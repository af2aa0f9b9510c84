//! Safe wrappers over raw system calls; the one crate where unsafe may live.

pub mod child;
pub mod copy;
pub mod guest;
pub mod heap;
pub mod mounts;
pub mod net;
pub mod origdst;
pub mod pages;
pub mod pidfd;
pub mod spawn;
pub mod tsc;
pub mod walls;

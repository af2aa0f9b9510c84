//! Slots on a real kernel. Each test has a host of its own in a namespace, and an outside behind it.

mod change;
mod crash;
mod limits;
mod names;
mod policy;
mod reach;
mod sleep;
mod spoof;
mod take;
mod veth;
mod walls;
mod world;

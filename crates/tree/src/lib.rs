//! Layers of images, build contexts and whole root file systems travel as tar streams, and most of them come from
//! strangers while we are root. This crate turns such a stream into files below one directory, and files into a
//! stream, and cannot be led elsewhere.
//!
//! ```text
//! bytes -> read (blocks, pax records, sparse maps) -> unpack (what an entry means) -> ground (by descriptors) -> files
//! files -> pack (walk) -> write (blocks, pax records) -> bytes
//! ```
//!
//! The directory is opened once; every parent is resolved inside of it (`openat2`, `RESOLVE_IN_ROOT`, or the same by hand),
//! the last part of a name is never followed, and what is there is replaced, never written through. Every length is
//! bounded before it is believed.
//!
//! The format is read here and not by the `tar` crate: that one keeps long names and pax headers of any length in
//! memory, ends a pax value at the first newline (which loses file capabilities) and knows no pax sparse maps.

mod block;
mod error;
mod ground;
mod options;
mod pack;
mod pax;
mod read;
mod resolve;
mod seen;
mod unpack;
mod write;

pub use error::{Error, Fault};
pub use options::{Limits, Owner, Shape, Summary, Unpack, Whiteouts};
pub use pack::{Pack, pack};
pub use read::scan;
pub use unpack::unpack;

/// The longest path that is read or written.
const MAX_NAME: usize = 4096;
/// The longest part of a path.
const MAX_PART: usize = 255;

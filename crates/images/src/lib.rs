//! Root file systems into read-only bases.
//!
//! A template begins as a list of Debian packages, or as a directory that somebody else fills ([`Draft`]: the layers of an
//! image, the tree of a sandbox), and ends as one ext4 image that every sandbox of it shares, named by
//! the digest of its bytes. For engines that take none it is a directory beside it too ([`ensure_tree`]). Nothing is mounted
//! where the host sees it: `mke2fs -d` fills the image from a directory, and what
//! mmdebstrap mounts lives in a mount and pid namespace of its own, which ends with it.
//!
//! ```text
//!   DebianSpec ──check──▶ sources, packages ──mmdebstrap──▶ WORK/build-…/root ──mke2fs -d──▶ WORK/build-…/base/base.ext4
//!                                 ▲  │                                                            │ fsync, BLAKE3, rename
//!                                 │  ▼                                                            ▼
//!                          CACHE/{archives,lists}                                       BASES/<digest>/base.ext4
//! ```
//!
//! A build fails with the step that failed and the last lines of its output, and leaves nothing in WORK; so does one
//! whose future is dropped. After a crash of the whole process, [`clear_leftovers`] removes what lay in WORK.

mod bootstrap;
mod build;
mod builtin;
mod draft;
mod error;
mod ext4;
mod log;
mod spec;
mod tree;
mod workplace;

pub use build::{Places, build};
pub use builtin::{BUILTINS, Builtin, builtin};
pub use draft::{Base, Draft};
pub use error::Error;
pub use ext4::is_intact;
pub use log::{Event, Log};
pub use spec::{DEBIAN_ENV, DebianSpec};
pub use tree::{ensure_tree, half_made_trees, tree_of};
pub use workplace::clear_leftovers;

//! The Debian archive that this host is configured for.
//!
//! Wakeful takes its engine, its guest kernel and its template images from Debian packages, and knows no mirror of its
//! own: whatever `apt` is configured with is asked. Everything here runs `apt-get`, `apt-cache`, `dpkg-query` or
//! `dpkg-deb`, each under a deadline, with its output bounded, and with the language fixed so that it can be read.
//!
//! ```text
//!   sources()            apt-get indextargets        what mmdebstrap is given
//!   ensure_installed()   dpkg-query, apt-get install only what is missing
//!   check_installable()  apt-get --simulate          whether a template's packages exist and get on
//!   latest_dependency()  apt-cache depends           "linux-image-cloud-amd64" -> the kernel it stands for today
//!   dependencies()       apt-cache depends           what a package itself needs
//!   packages()           apt-cache pkgnames          what there is of a kind
//!   fetch_unpacked()     apt-get download, dpkg-deb  packages' files, without installing them
//!   fetch_backports()    the same with lists apart   packages that are newer than the release
//! ```
//!
//! It fails when the archive cannot be reached, when a package does not exist, or when another `apt` holds its locks
//! for too long; [`Error`] says which, with the last lines that the program printed.

mod backports;
mod error;
mod install;
mod lock;
mod name;
mod package;
mod program;
mod sources;

pub use backports::fetch_backports;
pub use error::Error;
pub use install::{ensure_installed, missing};
pub use name::check_name;
pub use package::{check_installable, dependencies, fetch_unpacked, latest_dependency, packages};
pub use program::{Output, Program, Tail};
pub use sources::{release, sources};

/// What a host needs to run Wakeful, beside the binary itself and QEMU.
pub const RUNTIME_PACKAGES: &[&str] = &[
    "mmdebstrap",
    "e2fsprogs",
    "lz4",
    "xz-utils",
    "zstd",
    "binutils",
    "iproute2",
    "nftables",
    "util-linux",
    "ca-certificates",
];

/// What a long run tells while it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// How much is done, from 0 to 1, where the program says it.
    pub fraction: Option<f32>,
    /// One line of output, without its end.
    pub line: &'a str,
}

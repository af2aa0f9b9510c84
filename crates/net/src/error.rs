//! How the network fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use wakeful_model::{Cidr, Kind};

/// Why something about the network could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon may not change the network.
    #[error("network slots need root's rights (CAP_NET_ADMIN and CAP_SYS_ADMIN)")]
    NotRoot,
    /// The program `nft` is not installed.
    #[error("there is no program nft; Debian's package nftables has it")]
    NoNft,
    /// There is no TUN/TAP driver.
    #[error("could not open /dev/net/tun; the kernel needs its module tun")]
    NoTun {
        /// The system's reason.
        source: io::Error,
    },
    /// The configured pool overlaps a network of the host.
    #[error("the pool {pool} collides with the host's route to {route}")]
    PoolTaken {
        /// What was configured.
        pool: Cidr,
        /// What is there.
        route: Cidr,
    },
    /// The configured pool cannot be one.
    #[error("the pool {pool} is not an IPv4 range between /8 and /24")]
    InvalidPool {
        /// What was configured.
        pool: Cidr,
    },
    /// No private range is free on this host.
    #[error("every private range collides with a route of the host; configure a pool")]
    NoPool,
    /// The tag cannot be part of a link's name.
    #[error("invalid network tag {tag:?}; five hexadecimal digits are needed")]
    InvalidTag {
        /// What was given.
        tag: String,
    },
    /// All slots are in use.
    #[error("all {slots} network slots of the pool are in use")]
    Full {
        /// How many the pool holds.
        slots: u32,
    },
    /// The network is closed.
    #[error("the network is closed")]
    Closed,
    /// The slot is released.
    #[error("the network slot {slot} is released")]
    Released {
        /// Which.
        slot: u32,
    },
    /// The owner's name cannot be kept.
    #[error("invalid owner of a network slot {owner:?}")]
    InvalidOwner {
        /// What was given.
        owner: String,
    },
    /// The kernel refused a link, an address or a route.
    #[error("could not {doing} {name}")]
    Link {
        /// What was under way.
        doing: &'static str,
        /// With which.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A file or mount could not be made, read or removed.
    #[error("could not {doing} {path}")]
    Io {
        /// What was under way.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A thread could not be started, or not enter a namespace.
    #[error("could not work in a network namespace")]
    Namespace {
        /// The system's reason.
        source: io::Error,
    },
    /// `nft` refused what it was given.
    #[error("nft could not {doing}: {output}")]
    Nft {
        /// What was under way.
        doing: &'static str,
        /// The beginning of what it printed.
        output: String,
    },
    /// `nft` could not be started or spoken with.
    #[error("could not run nft")]
    RunNft {
        /// The system's reason.
        source: io::Error,
    },
    /// `nft` did not end in time.
    #[error("nft did not end within {after:?}")]
    Late {
        /// The deadline.
        after: Duration,
    },
    /// `nft` listed something that is not understood.
    #[error("could not read what nft lists")]
    Listing {
        /// Why not.
        source: serde_json::Error,
    },
}

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::PoolTaken { .. } | Self::InvalidPool { .. } | Self::InvalidTag { .. } | Self::InvalidOwner { .. } => {
                Kind::Invalid
            }
            Self::Full { .. } | Self::NoPool => Kind::Exhausted,
            Self::NotRoot | Self::NoNft | Self::NoTun { .. } | Self::Closed | Self::Late { .. } => Kind::Unavailable,
            Self::Released { .. } => Kind::NotFound,
            Self::Link { .. }
            | Self::Io { .. }
            | Self::Namespace { .. }
            | Self::Nft { .. }
            | Self::RunNft { .. }
            | Self::Listing { .. } => Kind::Internal,
        }
    }

    /// For `map_err`: an I/O error with what was under way.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.into(), source }
    }

    /// For `map_err`: a netlink error with what was under way.
    pub(crate) fn link(doing: &'static str, name: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Link { doing, name: name.into(), source }
    }
}

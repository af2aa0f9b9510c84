//! What an engine must be able to do, whoever made it.
//!
//! `lifecycle` decides, a driver does. The trait is written for three kinds of engine (QEMU, gVisor, Firecracker), so
//! it speaks of images, places and byte streams, never of QMP, runsc or sockets; what differs between engines is data
//! in [`Capabilities`], and `lifecycle` asks that instead of naming an engine.
//!
//! ```text
//!             launch(Golden | Clone | Wake | Boot)        vCPUs stopped, save for a boot
//!   nothing ──────────────────────────────────────▶ loaded ──resume──▶ running
//!      ▲                                              ▲                 │ pause
//!      └──────────── kill, reap ──────────────────────┴────── save ◀────┘
//! ```
//!
//! Two promises hold in every driver. A [`save`](Engine::save) leaves the engine alive and stopped, so that the caller
//! can still change its mind until it has committed. And an engine outlives the daemon that launched it: a later one
//! finds it again by its [`Place`].

mod capabilities;
mod engine;
mod error;
mod image;
mod inspector;

pub use capabilities::{Cancel, Capabilities, CardKind, DiskKind, Isolation, OutsideTcp, Repairs};
pub use engine::{ByteStream, Card, Driver, Engine, EngineInfo, Exit, Machine, Part, Place, Source, Veth};
pub use error::Error;
pub use image::{Image, ImageFile, MemoryBase};
pub use inspector::{Inspector, Stray, StrayKind};
pub use wakeful_model::IoLimits;

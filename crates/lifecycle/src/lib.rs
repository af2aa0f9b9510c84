//! The only decider.
//!
//! Every sandbox has one owner task: asks and facts come to it through one inbox, it decides by `model::machine`, runs the
//! operation in a task of its own, and is the only writer of the row. Callers wait on the operation; if they hang up, it
//! goes on.
//!
//! ```text
//!   api ──ask──▶ Lifecycle ──▶ Owner (one per sandbox) ──▶ ops/{create,suspend,wake,destroy}
//!                               ▲   │ compare-and-swap           │ driver, guest-client
//!     engine's end, deadlines ──┘   ▼                            ▼
//!                                 store                        engine
//! ```
//!
//! After a crash `recover` reads the rows and looks for their engines: what was under way is finished or undone, and what
//! belongs to no row is removed.

mod access;
mod activity;
mod busy;
mod clock;
mod compaction;
mod crash;
mod creates;
mod deadline;
mod disk;
mod entry;
mod error;
mod events;
mod files;
pub mod fsck;
mod golden;
mod goldsmith;
mod guest;
mod idempotency;
mod layout;
mod lifecycle;
mod metrics;
mod network;
mod ops;
mod owner;
mod patch;
mod pool;
mod ports;
mod pressure;
mod recover;
mod registry;
mod request;
mod runtimes;
mod snapshots;
mod space;
mod templates;
mod tenants;
mod trees;
mod uses;
mod view;
mod witness;

pub use access::{Access, Use};
pub use clock::Clock;
pub use crash::crash_points;
pub use error::Error;
pub use idempotency::{Claimed, Held};
pub use layout::Layout;
pub use lifecycle::{Config, Defaults, Lifecycle};
pub use network::{Attempt, EgressReport, Network, Target as EgressTarget, Traffic};
pub use patch::Patch;
pub use pool::{MOST_MEMBERS, PoolOptions, PoolView, Repeats};
pub use ports::Preview;
pub use pressure::Pressure;
pub use registry::{Identity, Keyring, LastKey, NewKey, Registry};
pub use request::{NewSandbox, NewTemplate};
pub use runtimes::{Runtime, RuntimeInfo};
pub use snapshots::{Fork, Forked, SnapshotView};
pub use space::{Space, Usage};
pub use templates::{BuildLayer, BuildLine, BuildLog, BuildSettings, Pruned, Upload, is_shared};
pub use tenants::LimitsChange;
pub use view::{Awake, AwakeReason, SandboxView, Storage};
pub use wakeful_driver::{Cancel, Capabilities};
pub use wakeful_store::{Answer, Filter};
pub use witness::Witness;

//! Ids, specs, policy and the one state machine: pure, no I/O, no clock of its own.
//!
//! What a sandbox may become is decided in [`machine`], and nowhere else. Everything that a surface accepts is parsed
//! into the types here before anyone acts on it.

mod code;
mod duration;
mod egress;
mod event;
mod id;
mod io;
mod key;
mod kind;
pub mod machine;
mod policy;
mod port;
mod sandbox;
mod size;
mod snapshot;
mod template;
mod tenant;

pub use code::Code;
pub use duration::{InvalidDuration, parse_duration};
pub use egress::{
    Cidr, Destination, Egress, EgressMode, InvalidEgress, Rule, Rules, Verdict as EgressVerdict, name_matches,
};
pub use event::{Cause, Event, EventType};
pub use id::{InvalidId, KeyId, OperationId, SandboxId, SnapshotId, TemplateId, UploadId};
pub use io::{InvalidIo, IoLimits};
pub use key::{Digest, InvalidScope, Key, Scope, new_key, read_key};
pub use kind::Kind;
pub use machine::{Ask, Bootable, Fact, Memory, Op, Outcome, Refusal, State, Verdict, decide, observe};
pub use policy::{Mode, OnExpiry, Policy};
pub use port::Port;
pub use sandbox::{Failure, Sandbox, Transition};
pub use size::{InvalidSize, SIZES, Size, preset};
pub use snapshot::{Content, Snapshot};
pub use template::{Asked, BuildError, Entry, Template, TemplateSource, TemplateStatus};
pub use tenant::{InvalidTenant, Limit, Limits, Tenant, Usage, check_tenant};

/// The tenant of everyone while there are no keys.
pub const DEFAULT_TENANT: &str = "default";

/// Instants have microseconds everywhere: what the database keeps is what the program compares.
#[must_use]
pub fn at_microseconds(instant: jiff::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(instant.as_microsecond()).unwrap_or(instant)
}

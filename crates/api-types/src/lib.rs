//! Wire types of the REST API, shared by the server and the client.
//!
//! Every name here is the contract's. A value that does not apply is `null` and never absent; instants are RFC 3339 in UTC
//! with milliseconds; durations are text or whole seconds in requests and integers named `…_seconds` or `…_ms` in
//! answers. Whoever reads these ignores fields that it does not know, so an optional field can be added at any time.

mod egress;
mod event;
mod execute;
mod file;
mod info;
mod io;
mod key;
mod patch;
mod pool;
mod port;
mod problem;
mod process;
mod sandbox;
mod schema;
mod snapshot;
mod space;
mod template;
mod tenant;
mod time;

pub use egress::{AllowedBy, Blocked, EgressReport};
pub use event::{Event, EventList};
pub use execute::{Command, ExecuteRequest, ExecuteResponse};
pub use file::{FileEntry, FileEvent, FileList, FileType, WrittenFile};
pub use info::{DefaultsInfo, Health, Info, Limits, RuntimeInfo, SizeInfo};
pub use io::IoLimits;
pub use key::{CreateKey, CreatedKey, Key, KeyList};
pub use patch::PatchSandbox;
pub use pool::{Pool, PoolList, PutPool};
pub use port::{Port, PortList, PortSession, PutPort};
pub use problem::{PROBLEM_JSON, Problem};
pub use process::{
    Frame, FrameBytes, Process, ProcessList, PtySize, SignalRequest, StartProcess, TerminalRequest, TunnelMessage,
};
pub use sandbox::{
    AwakeBecause, Capabilities, CreateSandbox, Egress, EgressRequest, Failure, KeepaliveRequest, Sandbox, SandboxList,
    Status, Storage, SuspendRequest, Transition, TransitionKind,
};
pub use snapshot::{CreateSnapshot, ForkError, ForkRequest, Forked, Snapshot, SnapshotList};
pub use space::{PruneRequest, Pruned, Space, Usage};
pub use template::{
    BuildError, BuildEvent, BuildLayer, CreateTemplate, Entry, RebuildTemplate, Template, TemplateList, Upload,
};
pub use tenant::{ChangeTenant, CreateTenant, LimitsRequest, Tenant, TenantList};
pub use time::{DurationText, Instant};

/// Media type of streams and build logs: one JSON object a line.
pub const NDJSON: &str = "application/x-ndjson";
/// Media type of the same objects as server-sent events.
pub const EVENT_STREAM: &str = "text/event-stream";

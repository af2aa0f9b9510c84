//! Why an ask was not granted, as far as a caller can act on it.

use wakeful_model::{Code, KeyId, Kind, Limit, Refusal, SandboxId};

/// Why not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such sandbox.
    #[error("there is no sandbox {0}")]
    SandboxNotFound(String),
    /// It belongs to someone else.
    #[error("sandbox {0} belongs to another tenant")]
    WrongTenant(SandboxId),
    /// There is no such template.
    #[error("there is no template {0:?}")]
    TemplateNotFound(String),
    /// Its build has not ended well (yet).
    #[error("template {name:?} is {status}")]
    TemplateNotReady {
        /// The template.
        name: String,
        /// How far it is.
        status: String,
    },
    /// Everybody uses it.
    #[error("template {0:?} is shared by all tenants")]
    SharedTemplate(String),
    /// The name is in use.
    #[error("there is a template {0:?} already")]
    NameTaken(String),
    /// One at a time.
    #[error("template {0:?} is being built")]
    BuildInProgress(String),
    /// There is nothing to cancel.
    #[error("template {0:?} is not being built")]
    NoBuild(String),
    /// There is no such tenant.
    #[error("there is no tenant {0:?}")]
    TenantNotFound(String),
    /// The name is in use.
    #[error("there is a tenant {0:?} already")]
    TenantNameTaken(String),
    /// It cannot go.
    #[error("{detail}")]
    TenantInUse {
        /// Why not.
        detail: String,
    },
    /// There is no such key.
    #[error("there is no key {0}")]
    KeyNotFound(String),
    /// Without it, everyone who reaches the port would be admin.
    #[error(
        "{0} is the last key, and this server listens where others reach it: without a key it would be open to all"
    )]
    LastKey(KeyId),
    /// The tenant has as much as it may have.
    #[error("tenant {tenant} has {used} of at most {most} {limit}, and this would be more")]
    QuotaExceeded {
        /// Who.
        tenant: String,
        /// Of what.
        limit: Limit,
        /// How much it has.
        used: u64,
        /// How much it may have.
        most: u64,
    },
    /// The request makes no sense.
    #[error("{detail}")]
    Invalid {
        /// Which problem.
        code: Code,
        /// The field that is wrong.
        field: Option<String>,
        /// Why.
        detail: String,
    },
    /// Not in this state.
    #[error("{id}: {refusal}")]
    Refused {
        /// The sandbox.
        id: SandboxId,
        /// Why not.
        refusal: Refusal,
    },
    /// A lease cannot be extended where there is none.
    #[error("{0} is not ephemeral: it has no lease to extend")]
    NotEphemeral(SandboxId),
    /// Only a sleeper's disk grows.
    #[error("{id} is {state}: its disk can grow only while it is suspended")]
    NotSuspended {
        /// The sandbox.
        id: SandboxId,
        /// What it is instead.
        state: &'static str,
    },
    /// What its template starts in it was not ready in time.
    #[error("{detail}")]
    NotReady {
        /// What the last check said.
        detail: String,
    },
    /// An explicit suspend came between.
    #[error("{id} was suspended while the command ran; it is frozen with the sandbox and goes on after the next wake")]
    SuspendedDuringExec {
        /// The sandbox.
        id: SandboxId,
        /// The process to come back to.
        pid: Option<u32>,
        /// The last output that was seen.
        seq: u64,
    },
    /// The engine or the guest died while it was used.
    #[error("{id} failed: {detail}")]
    Failed {
        /// The sandbox.
        id: SandboxId,
        /// How.
        detail: String,
    },
    /// The guest does not answer.
    #[error("{id} does not answer: {detail}")]
    Unresponsive {
        /// The sandbox.
        id: SandboxId,
        /// What was tried.
        detail: String,
    },
    /// The agent said no, with a code of the contract.
    #[error("{detail}")]
    Guest {
        /// Which problem.
        code: Code,
        /// Its words.
        detail: String,
    },
    /// The tenant has a snapshot of that name.
    #[error("there is a snapshot {0:?} already")]
    SnapshotNameTaken(String),
    /// There is no such snapshot.
    #[error("there is no snapshot {0}")]
    SnapshotNotFound(String),
    /// It was in transition for too long.
    #[error("{0} is busy")]
    Busy(SandboxId),
    /// An operation that nobody asked for gave way. No caller gets to see it.
    #[error("called off: it is needed")]
    CalledOff,
    /// The wake took too long or failed for a passing reason.
    #[error("{id} did not wake: {detail}")]
    WakeFailed {
        /// The sandbox.
        id: SandboxId,
        /// Why.
        detail: String,
    },
    /// Something in it cannot be kept by any image of its engine. It was not touched.
    #[error("{id} cannot be stopped with its memory: {detail}")]
    NotSuspendable {
        /// The sandbox.
        id: SandboxId,
        /// Which process holds what.
        detail: String,
    },
    /// The host's disk is full.
    #[error("the host's disk is full; {id} runs on")]
    DiskFull {
        /// The sandbox.
        id: SandboxId,
    },
    /// This host has no room for it.
    #[error("{detail}")]
    InsufficientCapacity {
        /// What is short.
        detail: String,
        /// The largest preset that would fit.
        fits: Option<String>,
    },
    /// The idempotency key stands for another call.
    #[error("this Idempotency-Key was used with another request")]
    IdempotencyMismatch,
    /// The call that has the idempotency key does not end.
    #[error("another call with this Idempotency-Key is under way")]
    KeyBusy,
    /// No runtime can run it here.
    #[error("no runtime can run this: {0}")]
    RuntimeUnavailable(String),
    /// The daemon is about to end.
    #[error("the daemon is shutting down")]
    ShuttingDown,
    /// An operation that several waited for failed for all of them.
    #[error(transparent)]
    Shared(std::sync::Arc<Error>),
    /// The operation ended in a panic or an error of ours.
    #[error("{0}")]
    Internal(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] wakeful_store::Error),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] wakeful_driver::Error),
    /// The network failed.
    #[error(transparent)]
    Network(#[from] wakeful_net::Error),
    /// A file of ours could not be read or written.
    #[error("could not {doing}")]
    Io {
        /// What was under way.
        doing: String,
        /// Why not.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn invalid(code: Code, field: &str, detail: impl Into<String>) -> Self {
        Self::Invalid { code, field: Some(field.to_owned()), detail: detail.into() }
    }

    /// The stable code of this problem.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Shared(error) => error.code(),
            Self::SandboxNotFound(_) => Code::SandboxNotFound,
            Self::WrongTenant(_) => Code::WrongTenant,
            Self::TemplateNotFound(_) => Code::TemplateNotFound,
            Self::SnapshotNotFound(_) => Code::SnapshotNotFound,
            Self::TemplateNotReady { .. } => Code::TemplateNotReady,
            Self::BuildInProgress(_) => Code::BuildInProgress,
            Self::NoBuild(_) => Code::NoBuild,
            Self::SharedTemplate(_) => Code::Forbidden,
            Self::NameTaken(_) | Self::TenantNameTaken(_) | Self::SnapshotNameTaken(_) => Code::NameTaken,
            Self::TenantNotFound(_) => Code::TenantNotFound,
            Self::TenantInUse { .. } => Code::TenantInUse,
            Self::KeyNotFound(_) => Code::KeyNotFound,
            Self::LastKey(_) => Code::LastKey,
            Self::QuotaExceeded { .. } => Code::QuotaExceeded,
            Self::Invalid { code, .. } | Self::Guest { code, .. } => *code,
            Self::Refused { refusal, .. } => match refusal {
                Refusal::Destroyed => Code::SandboxDestroyed,
                Refusal::Failed => Code::SandboxFailed,
                Refusal::Suspended => Code::SandboxSuspended,
                Refusal::NotYetRunning | Refusal::NotRunning => Code::NotRunning,
                Refusal::NotWakeable => Code::NotWakeable,
                Refusal::WakeInProgress => Code::WakeInProgress,
            },
            Self::NotEphemeral(_) => Code::NotEphemeral,
            Self::NotSuspended { .. } => Code::NotSuspended,
            Self::NotReady { .. } => Code::NotReady,
            Self::NotSuspendable { .. } => Code::NotSuspendable,
            Self::SuspendedDuringExec { .. } => Code::SuspendedDuringExec,
            Self::Failed { .. } => Code::SandboxFailed,
            Self::Unresponsive { .. } => Code::GuestUnresponsive,
            Self::IdempotencyMismatch => Code::IdempotencyMismatch,
            Self::Busy(_) | Self::KeyBusy | Self::CalledOff => Code::Busy,
            Self::WakeFailed { .. } => Code::WakeTimeout,
            Self::DiskFull { .. } => Code::DiskFull,
            Self::InsufficientCapacity { .. } => Code::InsufficientCapacity,
            Self::RuntimeUnavailable(_) => Code::RuntimeUnavailable,
            Self::ShuttingDown => Code::ShuttingDown,
            Self::Store(wakeful_store::Error::InvalidCursor(_)) => Code::InvalidField,
            Self::Driver(wakeful_driver::Error::DiskFull { .. }) => Code::DiskFull,
            Self::Driver(_) | Self::Internal(_) | Self::Store(_) | Self::Network(_) | Self::Io { .. } => Code::Internal,
        }
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Shared(error) => error.kind(),
            Self::Store(source) => source.kind(),
            Self::Driver(source) => source.kind(),
            Self::Network(source) => source.kind(),
            Self::SandboxNotFound(_)
            | Self::TemplateNotFound(_)
            | Self::SnapshotNotFound(_)
            | Self::TenantNotFound(_)
            | Self::KeyNotFound(_) => Kind::NotFound,
            Self::WrongTenant(_) | Self::SharedTemplate(_) => Kind::Denied,
            Self::Invalid { .. } | Self::Guest { .. } => Kind::Invalid,
            Self::TemplateNotReady { .. }
            | Self::BuildInProgress(_)
            | Self::NoBuild(_)
            | Self::NameTaken(_)
            | Self::TenantNameTaken(_)
            | Self::SnapshotNameTaken(_)
            | Self::TenantInUse { .. }
            | Self::LastKey(_)
            | Self::Refused { .. }
            | Self::NotEphemeral(_)
            | Self::NotSuspended { .. }
            | Self::NotSuspendable { .. }
            | Self::IdempotencyMismatch
            | Self::SuspendedDuringExec { .. }
            | Self::Failed { .. } => Kind::Conflict,
            Self::DiskFull { .. } | Self::InsufficientCapacity { .. } | Self::QuotaExceeded { .. } => Kind::Exhausted,
            Self::Unresponsive { .. }
            | Self::Busy(_)
            | Self::CalledOff
            | Self::KeyBusy
            | Self::WakeFailed { .. }
            | Self::NotReady { .. }
            | Self::RuntimeUnavailable(_)
            | Self::ShuttingDown => Kind::Unavailable,
            Self::Internal(_) | Self::Io { .. } => Kind::Internal,
        }
    }

    /// The request field that is wrong, if one is.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Shared(error) => error.field(),
            Self::Invalid { field, .. } => field.as_deref(),
            _ => None,
        }
    }

    /// What to do next, if there is something.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Shared(error) => error.hint(),
            Self::Refused { id, refusal: Refusal::Suspended } => Some(format!("POST /v1/sandboxes/{id}/wake")),
            Self::Refused { id, refusal: Refusal::Failed } | Self::Failed { id, .. } => {
                Some(format!("POST /v1/sandboxes/{id}/wake boots it from its disk, if its failure says bootable"))
            }
            Self::Refused { id, refusal: Refusal::WakeInProgress } => {
                Some(format!("POST /v1/sandboxes/{id}/wake?wait=true waits for the wake under way"))
            }
            Self::SuspendedDuringExec { id, .. } => Some(format!("POST /v1/sandboxes/{id}/wake, or any call on it")),
            Self::NotSuspended { id, state: "running" } => Some(format!("POST /v1/sandboxes/{id}/suspend first")),
            Self::NotSuspendable { .. } => Some("close it, or suspend with memory: false".into()),
            Self::TemplateNotFound(_) => Some("GET /v1/templates lists what there is".into()),
            Self::SnapshotNotFound(_) => Some("GET /v1/snapshots lists what there is".into()),
            Self::SharedTemplate(_) => Some("a template of your own may have the same name".into()),
            Self::TenantNotFound(_) => Some("GET /v1/tenants lists what there is".into()),
            Self::KeyNotFound(_) => Some("GET /v1/keys lists what there is".into()),
            Self::LastKey(_) => Some("make another key first, or listen on a loopback address only".into()),
            Self::QuotaExceeded { limit: Limit::MemoryMb, .. } => {
                Some("suspend a sandbox that runs, or ask for a smaller one".into())
            }
            Self::QuotaExceeded { .. } => Some("destroy a sandbox that is no longer needed".into()),
            Self::BuildInProgress(_) => Some("wait for its end, or cancel it".into()),
            Self::TemplateNotReady { name, .. } => Some(format!("GET /v1/templates/{name} tells how far it is")),
            Self::InsufficientCapacity { fits: Some(size), .. } => Some(format!("size {size} would fit")),
            Self::RuntimeUnavailable(_) => Some("wakeful doctor shows what is missing".into()),
            Self::IdempotencyMismatch => Some("use a new key for a new request".into()),
            Self::Busy(_) | Self::KeyBusy => Some("try again in a second".into()),
            _ => None,
        }
    }
}

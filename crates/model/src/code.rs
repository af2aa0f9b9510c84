//! The stable codes of all problems that a caller can meet: one list for API, clients and documents.

/// A problem's code. Its text is part of the contract and never changes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumIter, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "each name says it; the texts are the contract's")]
pub enum Code {
    // 400
    InvalidJson,
    UnknownField,
    MissingField,
    InvalidField,
    InvalidId,
    InvalidSize,
    InvalidMode,
    InvalidDuration,
    InvalidCombination,
    InvalidEgress,
    InvalidPath,
    InvalidName,
    MissingCommand,
    WorkdirNotFound,
    UnknownUser,
    IsDirectory,
    NotADirectory,
    // 401, 403
    Unauthenticated,
    WrongTenant,
    Forbidden,
    ForeignOrigin,
    // 404, 405
    RouteNotFound,
    MethodNotAllowed,
    SandboxNotFound,
    TemplateNotFound,
    SnapshotNotFound,
    TenantNotFound,
    KeyNotFound,
    PathNotFound,
    ProcessNotFound,
    // 409
    TemplateNotReady,
    BuildInProgress,
    NoBuild,
    NameTaken,
    NotEphemeral,
    NotRunning,
    NotSuspended,
    NotSuspendable,
    NotWakeable,
    SandboxDestroyed,
    SandboxFailed,
    SandboxSuspended,
    SuspendedDuringExec,
    StdinClosed,
    WakeInProgress,
    IdempotencyMismatch,
    TenantInUse,
    LastKey,
    // 413, 422, 429
    BodyTooLarge,
    FileTooLarge,
    NoShell,
    CommandNotFound,
    NotExecutable,
    QuotaExceeded,
    // 500 and above
    Internal,
    UnsupportedByRuntime,
    GuestUnresponsive,
    PortNotOpen,
    BadGateway,
    ShuttingDown,
    Busy,
    RuntimeUnavailable,
    WakeTimeout,
    NotReady,
    InsufficientCapacity,
    DiskFull,
    GuestDiskFull,
}

impl Code {
    /// Its text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

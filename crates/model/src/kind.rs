//! What a caller can do about an error.

/// The kinds of failure that a caller can tell apart. Each crate's error answers one of these; `api` alone turns them
/// into status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request is wrong and will stay wrong.
    Invalid,
    /// Who is asking is not known.
    Unauthenticated,
    /// Who is asking may not.
    Denied,
    /// There is no such thing.
    NotFound,
    /// Not in this state.
    Conflict,
    /// A limit is reached.
    Exhausted,
    /// Not now; later perhaps.
    Unavailable,
    /// Our fault.
    Internal,
}

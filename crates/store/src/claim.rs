//! What a caller asked for under an `Idempotency-Key`.

/// An answer that a repeat gets again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Where the new thing is.
    pub location: Option<String>,
    /// Its body, as it was sent.
    pub body: String,
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of the call and its body.
    pub digest: String,
    /// The id of what the call makes.
    pub subject: String,
    /// What was answered; `None` while the first call is under way, or if a crash came between.
    pub answer: Option<Answer>,
}

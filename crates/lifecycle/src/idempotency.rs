//! Calls that are done once, however often they are sent.
//!
//! ```text
//!   claim ─▶ key and id are durable ─▶ work under that id ─▶ answer kept
//!     │            │ crash                  │ refused
//!     │            ▼                        ▼
//!     │      the id tells whether      the key is free
//!     ▼      the work came to be
//!   a second call with the key waits for the first
//! ```
//!
//! A key belongs to its tenant for 24 hours. What is kept is the answer as it was sent, which holds no secret: env values
//! are in no answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::OwnedMutexGuard;
use tracing::warn;
use wakeful_model::{SandboxId, State};
use wakeful_store::{Answer, Claim};

use crate::crash::{Point, point};
use crate::lifecycle::{Inner, error_chain};
use crate::{Error, Lifecycle, SandboxView};

/// How long a key is remembered.
const KEPT: SignedDuration = SignedDuration::from_hours(24);
/// How long a call waits for the one before it: longer than any create.
const PATIENCE: Duration = Duration::from_secs(240);

type Turn = tokio::sync::Mutex<()>;

/// The calls under way, by tenant and key.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<(String, String), Weak<Turn>>>);

impl Turns {
    async fn take(&self, tenant: &str, key: &str) -> Result<OwnedMutexGuard<()>, Error> {
        let turn = {
            let mut turns = self.0.lock().expect("no panic while it is held");
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.entry((tenant.to_owned(), key.to_owned())).or_default();
            turn.upgrade().unwrap_or_else(|| {
                let fresh = Arc::default();
                *turn = Arc::downgrade(&fresh);
                fresh
            })
        };
        tokio::time::timeout(PATIENCE, turn.lock_owned()).await.map_err(|_| Error::KeyBusy)
    }
}

/// What a key stands for when a call comes with it.
pub enum Claimed {
    /// Nothing yet: do the work, under this id.
    New(Held),
    /// A call that was interrupted: its id tells whether its work came to be.
    Interrupted(Held),
    /// A call that was answered.
    Answered(Answer),
}

/// A key that is ours until this is dropped. Dropped without a word, it stands for a call that was interrupted.
pub struct Held {
    inner: Arc<Inner>,
    tenant: String,
    key: String,
    digest: String,
    subject: String,
    _turn: OwnedMutexGuard<()>,
}

impl Held {
    /// The id of what the call makes.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Keeps the answer for repeats. If that fails, a repeat looks for what was made.
    pub async fn keep(self, answer: &Answer) {
        point(Point::IdempotencyKeep);
        if let Err(error) = self.inner.store.answer_claim(&self.tenant, &self.key, &self.subject, answer).await {
            warn!(error = error_chain(&error), "could not keep the answer of a call with an idempotency key");
        }
    }

    /// The call was refused: the key is free again.
    pub async fn release(self) {
        if let Err(error) = self.inner.store.release_claim(&self.tenant, &self.key, &self.subject).await {
            warn!(error = error_chain(&error), "could not release an idempotency key");
        }
    }

    /// What the id stood for did not come to be: the same call, under another id.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn renew(mut self, subject: String) -> Result<Self, Error> {
        self.inner.store.release_claim(&self.tenant, &self.key, &self.subject).await?;
        self.subject = subject;
        let claim = Claim { digest: self.digest.clone(), subject: self.subject.clone(), answer: None };
        let now = self.inner.now();
        match self.inner.store.claim(&self.tenant, &self.key, &claim, now, expired(now)).await? {
            None => Ok(self),
            Some(_) => Err(Error::Internal("an idempotency key was claimed although it was held".into())),
        }
    }
}

fn expired(now: Timestamp) -> Timestamp {
    now.checked_sub(KEPT).unwrap_or(Timestamp::MIN)
}

/// Forgets keys whose time is over.
pub(crate) async fn sweep(inner: &Inner) {
    if let Err(error) = inner.store.forget_claims(expired(inner.now())).await {
        warn!(error = error_chain(&error), "could not forget old idempotency keys");
    }
}

impl Lifecycle {
    /// Takes a key for a call with this digest, after waiting for a call that has it; `subject` is the id that its work
    /// will have, if it is new.
    ///
    /// # Errors
    /// If the key stands for another call, or the call that has it does not end.
    pub async fn claim(&self, tenant: &str, key: &str, digest: &str, subject: String) -> Result<Claimed, Error> {
        let turn = self.inner.turns.take(tenant, key).await?;
        let claim = Claim { digest: digest.to_owned(), subject, answer: None };
        let now = self.inner.now();
        let before = self.inner.store.claim(tenant, key, &claim, now, expired(now)).await?;
        let held = |subject| Held {
            inner: Arc::clone(&self.inner),
            tenant: tenant.to_owned(),
            key: key.to_owned(),
            digest: digest.to_owned(),
            subject,
            _turn: turn,
        };
        match before {
            None => Ok(Claimed::New(held(claim.subject))),
            Some(other) if other.digest != digest => Err(Error::IdempotencyMismatch),
            Some(Claim { answer: Some(answer), .. }) => Ok(Claimed::Answered(answer)),
            Some(Claim { answer: None, subject, .. }) => Ok(Claimed::Interrupted(held(subject))),
        }
    }

    /// What came of a create under this id, when nothing is open about it any more. `None`: nothing that lives.
    ///
    /// # Errors
    /// If it stays open for too long.
    pub async fn created(&self, tenant: &str, id: &SandboxId) -> Result<Option<SandboxView>, Error> {
        let mut handle = match self.inner.find(tenant, id).await {
            Err(Error::SandboxNotFound(_)) | Ok(Err(_)) => return Ok(None),
            Err(error) => return Err(error),
            Ok(Ok(handle)) => handle,
        };
        let settled = handle.live.wait_for(|live| live.row.state != State::Creating);
        let state = match tokio::time::timeout(PATIENCE, settled).await {
            Err(_) => return Err(Error::Busy(id.clone())),
            // The owner is gone: so is its sandbox.
            Ok(Err(_)) => return Ok(None),
            Ok(Ok(live)) => live.row.state,
        };
        if state == State::Destroyed { Ok(None) } else { self.sandbox(tenant, id).await.map(Some) }
    }
}

//! The control routes, and the small ones that tell how the guest is.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::timeout;
use wakeful_guest_proto::control::{self, Metrics, QuiesceAnswer, Restore, RestoreAnswer, Version};

use crate::connect::{empty, expect_status, json_request, request};
use crate::{Error, Guest};

/// Five seconds of it are the clone hooks'.
const RESTORE: Duration = Duration::from_secs(10);
/// Calls that only read something in the guest's memory; emulated guests run cold code slowly.
const SHORT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: usize = 64 * 1024;
/// The sandbox's whole environment.
const ENV_LIMIT: usize = 2 * 1024 * 1024;

impl Guest {
    /// Repairs clock, entropy and identity. If it names a new secret, the next hello needs that one. Call it twice
    /// after a load: the first runs cold code and sets the clock late.
    ///
    /// # Errors
    /// Any; the guest must not be used before this has worked.
    pub async fn restore(&self, restore: &Restore) -> Result<RestoreAnswer, Error> {
        let request = json_request(Method::POST, control::RESTORE, restore)?;
        self.call("confirm the restore", request, RESTORE, ANSWER_LIMIT).await
    }

    /// Flushes the guest's file systems; true if they are on its disk. The agent's session is over with the answer:
    /// [`close`](Guest::close) the channel next.
    ///
    /// # Errors
    /// [`Error::Late`] if the flush takes longer than the deadline; then the session may be over or not.
    pub async fn quiesce(&self, deadline: Duration) -> Result<bool, Error> {
        let request = request(Method::POST, control::QUIESCE, empty())?;
        let answer: QuiesceAnswer = self.call("quiesce", request, deadline, ANSWER_LIMIT).await?;
        Ok(answer.synced)
    }

    /// Asks the guest to stop every process and to switch itself off. It has only begun when this returns: the engine
    /// ends some seconds later.
    ///
    /// # Errors
    /// [`Error::Refused`] by an agent that does not own its machine.
    pub async fn poweroff(&self) -> Result<(), Error> {
        let request = request(Method::POST, control::POWEROFF, empty())?;
        let _: serde_json::Value = self.call("begin to power off", request, SHORT, ANSWER_LIMIT).await?;
        Ok(())
    }

    /// Which agent this is.
    ///
    /// # Errors
    /// Any.
    pub async fn version(&self) -> Result<Version, Error> {
        let request = request(Method::GET, control::VERSION, empty())?;
        self.call("tell its version", request, SHORT, ANSWER_LIMIT).await
    }

    /// Whether the agent answers at all.
    ///
    /// # Errors
    /// [`Error::Late`], [`Error::Lost`].
    pub async fn health(&self, deadline: Duration) -> Result<(), Error> {
        let request = request(Method::GET, "/health", empty())?;
        let response = timeout(deadline, self.accepted(request));
        let late = |_| Error::Late { attempted: "answer a health request", after: deadline };
        expect_status(&response.await.map_err(late)??, StatusCode::NO_CONTENT)
    }

    /// Load, memory and disk inside.
    ///
    /// # Errors
    /// Any.
    pub async fn metrics(&self) -> Result<Metrics, Error> {
        let request = request(Method::GET, "/metrics", empty())?;
        self.call("tell its metrics", request, SHORT, ANSWER_LIMIT).await
    }

    /// The sandbox's environment as the agent knows it.
    ///
    /// # Errors
    /// Any.
    pub async fn envs(&self) -> Result<BTreeMap<String, String>, Error> {
        let request = request(Method::GET, "/envs", empty())?;
        self.call("tell its environment", request, SHORT, ENV_LIMIT).await
    }
}

//! Snapshots and forks.

use std::time::Duration;

use wakeful_api_types::{CreateSnapshot, ForkRequest, Forked, Snapshot, SnapshotList};

use crate::send::CALL;
use crate::{Client, Error};

/// A child that has to be booted takes the longest, and a few are made at a time.
const CHILD: Duration = Duration::from_secs(15);

impl Client {
    /// `POST …/fork`: makes children, as many as can be made.
    ///
    /// # Errors
    /// See [`Error`]; also if not one child came to be.
    pub async fn fork(&self, id: &str, fork: &ForkRequest) -> Result<Forked, Error> {
        let request = self.post(&["v1", "sandboxes", id, "fork"], fork)?;
        self.json(request.timeout(CALL.saturating_add(CHILD.saturating_mul(fork.count.unwrap_or(1))))).await
    }

    /// `POST …/snapshots`: keeps a copy of a sandbox.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_snapshot(&self, sandbox: &str, new: &CreateSnapshot) -> Result<Snapshot, Error> {
        self.json(self.post(&["v1", "sandboxes", sandbox, "snapshots"], new)?).await
    }

    /// `GET /v1/snapshots`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn snapshots(&self) -> Result<SnapshotList, Error> {
        self.json(self.get(&["v1", "snapshots"])?).await
    }

    /// `GET /v1/snapshots/{id}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        self.json(self.get(&["v1", "snapshots", id])?).await
    }

    /// `DELETE /v1/snapshots/{id}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_snapshot(&self, id: &str) -> Result<(), Error> {
        self.nothing(self.delete(&["v1", "snapshots", id])?).await
    }
}

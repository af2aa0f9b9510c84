//! The control routes, and the small ones that tell how the guest is.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::timeout;
use wakeful_guest_proto::control::{
    self, Busy, Grow, Grown, MAX_BUSY, MAX_LEASE_MS, MAX_LEASE_NAME, MAX_OBSTACLE_PATH, MAX_OBSTACLES,
    MAX_PROCESS_NAME, Metrics, Obstacles, QuiesceAnswer, Restore, RestoreAnswer, Version,
};

use crate::connect::{empty, expect_status, json_request, request};
use crate::{Error, Guest};

/// Five seconds of it are the clone hooks'.
const RESTORE: Duration = Duration::from_secs(10);
/// Calls that only read something in the guest's memory; emulated guests run cold code slowly.
const SHORT: Duration = Duration::from_secs(5);
/// A thousand block groups, in an emulated guest with a slow disk.
const GROWN: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: usize = 64 * 1024;
/// As many paths as there can be, each as long as it can be.
const OBSTACLES_LIMIT: usize = 512 * 1024;
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

    /// Who inside would be disturbed by a sleep. An agent that is too old to know says that nobody is.
    ///
    /// # Errors
    /// Any but a refusal for that reason.
    pub async fn busy(&self, deadline: Duration) -> Result<Busy, Error> {
        let request = request(Method::GET, control::BUSY, empty())?;
        match self.call("tell whether it is busy", request, deadline, ANSWER_LIMIT).await {
            Ok(busy) => Ok(within_bounds(busy)),
            Err(Error::Refused { code, .. }) if code == "404" => Ok(Busy::default()),
            Err(error) => Err(error),
        }
    }

    /// What inside an engine could not save: asked before a suspend, fork or snapshot with memory, where the engine's
    /// capabilities say so. An agent that is too old to know says that there is nothing.
    ///
    /// # Errors
    /// Any but a refusal for that reason.
    pub async fn obstacles(&self, deadline: Duration) -> Result<Obstacles, Error> {
        let request = request(Method::GET, control::OBSTACLES, empty())?;
        match self.call("look for what cannot be saved", request, deadline, OBSTACLES_LIMIT).await {
            Ok(obstacles) => Ok(fit_to_show(obstacles)),
            Err(Error::Refused { code, .. }) if code == "404" => Ok(Obstacles::default()),
            Err(error) => Err(error),
        }
    }

    /// Has the guest's file system grown to a disk that has so many bytes now; its size afterwards. Nothing from an agent that
    /// is too old to do it.
    ///
    /// # Errors
    /// Any but a refusal for that reason.
    pub async fn grow(&self, bytes: u64) -> Result<Option<u64>, Error> {
        let request = json_request(Method::POST, control::GROW, &Grow { bytes })?;
        match self.call::<Grown>("grow its file system", request, GROWN, ANSWER_LIMIT).await {
            Ok(grown) => Ok(Some(grown.bytes)),
            Err(Error::Refused { code, .. }) if code == "404" => Ok(None),
            Err(error) => Err(error),
        }
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

/// What a guest can claim at most: names are shown to people, and nobody is busy for longer than a lease can last.
fn within_bounds(mut busy: Busy) -> Busy {
    busy.leases.truncate(MAX_BUSY);
    busy.keep_awake.truncate(MAX_BUSY);
    busy.leases.retain(|lease| lease.ttl_ms > 0);
    for lease in &mut busy.leases {
        lease.ttl_ms = lease.ttl_ms.min(MAX_LEASE_MS);
        lease.name = lease.name.chars().filter(|c| !c.is_control()).take(MAX_LEASE_NAME).collect();
    }
    busy
}

/// Names and paths are shown to people.
fn fit_to_show(mut said: Obstacles) -> Obstacles {
    let shown = |text: &str, most| text.chars().filter(|c| !c.is_control()).take(most).collect::<String>();
    said.obstacles.truncate(MAX_OBSTACLES);
    for obstacle in &mut said.obstacles {
        obstacle.process = shown(&obstacle.process, MAX_PROCESS_NAME);
        obstacle.path = shown(&obstacle.path, MAX_OBSTACLE_PATH);
    }
    said
}

#[cfg(test)]
mod tests {
    use wakeful_guest_proto::control::{BusyLease, Obstacle, ObstacleKind};

    use super::*;

    #[test]
    fn claims_are_bounded() {
        let lease = |name: &str, ttl_ms| BusyLease { name: name.to_owned(), ttl_ms, since_ms: u64::MAX };
        let mut claimed =
            Busy { leases: vec![lease("a\u{1b}[2J", u64::MAX), lease("over", 0)], keep_awake: Vec::new() };
        claimed.leases.extend((0..1000).map(|n| lease(&n.to_string(), 1)));
        claimed.keep_awake.resize(1000, Default::default());
        let busy = within_bounds(claimed);
        assert_eq!((busy.leases.len(), busy.keep_awake.len()), (MAX_BUSY - 1, MAX_BUSY));
        assert_eq!((busy.leases[0].name.as_str(), busy.leases[0].ttl_ms), ("a[2J", MAX_LEASE_MS));
    }
    #[test]
    fn obstacles_are_bounded() {
        let long = "/\u{1b}[2J".repeat(1000);
        let one = Obstacle { pid: 1, process: long.clone(), kind: ObstacleKind::File, path: long };
        let said = fit_to_show(Obstacles { obstacles: vec![one; 1000] });
        assert_eq!(said.obstacles.len(), MAX_OBSTACLES);
        assert_eq!(said.obstacles[0].path.chars().count(), MAX_OBSTACLE_PATH);
        assert_eq!(said.obstacles[0].process.chars().count(), MAX_PROCESS_NAME);
        assert!(!said.obstacles[0].path.contains('\u{1b}'));
    }
}

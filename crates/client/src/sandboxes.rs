//! Sandboxes and their commands.

use std::time::Duration;

use reqwest::StatusCode;
use wakeful_api_types::{
    CreateSandbox, DurationText, ExecuteRequest, ExecuteResponse, KeepaliveRequest, Sandbox, SandboxList,
    SuspendRequest,
};

use crate::send::CALL;
use crate::{Client, Error};

/// The server kills a command after five minutes at most, unless it is configured otherwise.
const LONGEST_COMMAND: Duration = Duration::from_secs(300);

/// Which sandboxes to list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// In this state; without one: all that are not destroyed.
    pub status: Option<String>,
    /// Of this mode.
    pub mode: Option<String>,
    /// Of this template.
    pub template: Option<String>,
    /// With all of these labels.
    pub metadata: Vec<(String, String)>,
    /// At most so many a page.
    pub limit: Option<u32>,
    /// Where the last page ended.
    pub cursor: Option<String>,
}

impl ListQuery {
    fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                pairs.push((name.to_owned(), value));
            }
        };
        add("status", self.status.clone());
        add("mode", self.mode.clone());
        add("template", self.template.clone());
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("cursor", self.cursor.clone());
        pairs.extend(self.metadata.iter().map(|(key, value)| (format!("metadata.{key}"), value.clone())));
        pairs
    }
}

impl Client {
    /// `POST /v1/sandboxes`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_sandbox(&self, new: &CreateSandbox) -> Result<Sandbox, Error> {
        self.json(self.post(&["v1", "sandboxes"], new)?).await
    }

    /// `GET /v1/sandboxes/{id}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox, Error> {
        self.json(self.get(&["v1", "sandboxes", id])?).await
    }

    /// `GET /v1/sandboxes`: one page.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn sandboxes(&self, query: &ListQuery) -> Result<SandboxList, Error> {
        self.json(self.get(&["v1", "sandboxes"])?.query(&query.pairs())).await
    }

    /// All pages of `GET /v1/sandboxes`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn all_sandboxes(&self, query: &ListQuery) -> Result<Vec<Sandbox>, Error> {
        let mut query = query.clone();
        let mut all = Vec::new();
        loop {
            let page = self.sandboxes(&query).await?;
            let ended = page.sandboxes.is_empty();
            all.extend(page.sandboxes);
            match page.next_cursor {
                Some(cursor) if !ended => query.cursor = Some(cursor),
                _ => return Ok(all),
            }
        }
    }

    /// `DELETE /v1/sandboxes/{id}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn destroy_sandbox(&self, id: &str) -> Result<(), Error> {
        self.nothing(self.delete(&["v1", "sandboxes", id])?).await
    }

    /// `POST …/keepalive`; without a timeout: as created.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn keepalive(&self, id: &str, timeout: Option<DurationText>) -> Result<Sandbox, Error> {
        self.json(self.post(&["v1", "sandboxes", id, "keepalive"], &KeepaliveRequest { timeout })?).await
    }

    /// `POST …/suspend`, with its memory or without; answered after the commit.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn suspend(&self, id: &str, memory: bool) -> Result<Sandbox, Error> {
        self.json(self.post(&["v1", "sandboxes", id, "suspend"], &SuspendRequest { memory: Some(memory) })?).await
    }

    /// `POST …/suspend?wait=false`; answered when it has begun.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn begin_suspend(&self, id: &str, memory: bool) -> Result<Sandbox, Error> {
        let request = self.post(&["v1", "sandboxes", id, "suspend"], &SuspendRequest { memory: Some(memory) })?;
        self.json(request.query(&[("wait", "false")])).await
    }

    /// `POST …/wake`. `wait`: join a wake that is under way, instead of a conflict.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn wake(&self, id: &str, wait: bool) -> Result<Sandbox, Error> {
        let request = self.post(&["v1", "sandboxes", id, "wake"], &serde_json::Map::new())?;
        self.json(request.query(&[("wait", wait)])).await
    }

    /// `POST …/execute`: runs a command and waits for its end.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn execute(&self, id: &str, execute: &ExecuteRequest) -> Result<ExecuteResponse, Error> {
        let longest = execute.timeout.as_ref().and_then(|text| text.parse().ok()).unwrap_or(LONGEST_COMMAND);
        let request = self.post(&["v1", "sandboxes", id, "execute"], execute)?;
        self.json(request.timeout(CALL.saturating_add(longest.max(LONGEST_COMMAND)))).await
    }

    /// Whether there is such a sandbox, in whatever state.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn sandbox_exists(&self, id: &str) -> Result<bool, Error> {
        match self.sandbox(id).await {
            Ok(_) => Ok(true),
            Err(Error::Problem(problem)) if problem.status == StatusCode::NOT_FOUND.as_u16() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

//! What happens to files.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Method;
use serde::{Deserialize, Serialize};

use crate::{Client, Error};

/// A server says at least `keepalive` every 15 s.
const SILENCE: Duration = Duration::from_secs(50);

/// Something that happened to a file, or to the watch itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// `create`, `write`, `remove`, `rename`, `chmod`; of the watch: `overflow`, `suspended`, `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Which file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Why, as in problems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Changes as they happen.
pub type Changes = BoxStream<'static, Result<Change, Error>>;

impl Client {
    /// `GET …/files/{path}?watch=true`. Keepalives are left out.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn watch(&self, id: &str, path: &str, recursive: bool) -> Result<Changes, Error> {
        let query = [("watch", "true"), ("recursive", if recursive { "true" } else { "false" })];
        let request = self.request(Method::GET, self.address.file(id, path)?).query(&query);
        let changes = self.lines::<Change>(self.begun(request).await?, SILENCE);
        let said = |change: &Result<Change, Error>| !matches!(change, Ok(change) if change.kind == "keepalive");
        Ok(changes.filter(move |change| std::future::ready(said(change))).boxed())
    }
}

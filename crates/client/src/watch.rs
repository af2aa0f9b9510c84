//! What happens to files.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Method;
use wakeful_api_types::FileEvent;

use crate::{Client, Error};

/// A server says at least `keepalive` every 15 s.
const SILENCE: Duration = Duration::from_secs(50);

/// What happens, as it happens. The last one is [`FileEvent::Suspended`] or [`FileEvent::Error`]; if none of them came, the
/// connection was lost.
pub type Changes = BoxStream<'static, Result<FileEvent, Error>>;

impl Client {
    /// `GET …/files/{path}?watch=true`. Keepalives are left out.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn watch(&self, id: &str, path: &str, recursive: bool) -> Result<Changes, Error> {
        let query = [("watch", "true"), ("recursive", if recursive { "true" } else { "false" })];
        let request = self.request(Method::GET, self.address.file(id, path)?).query(&query);
        let changes = self.lines::<FileEvent>(self.begun(request).await?, SILENCE);
        Ok(changes.filter(|event| std::future::ready(!matches!(event, Ok(FileEvent::Keepalive)))).boxed())
    }
}

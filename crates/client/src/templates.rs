//! Templates and their builds.

use std::io;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use reqwest::Method;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;
use wakeful_api_types::{BuildEvent, CreateTemplate, Template, TemplateList};

use crate::{Client, Error};

/// Longest line of a build log.
const LINE: usize = 1 << 20;

/// The lines of a build, as they come; the last one is [`BuildEvent::End`].
pub type BuildEvents = BoxStream<'static, Result<BuildEvent, Error>>;

impl Client {
    /// `POST /v1/templates`: begins a build.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_template(&self, new: &CreateTemplate) -> Result<Template, Error> {
        self.json(self.post(&["v1", "templates"], new)?).await
    }

    /// `GET /v1/templates`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn templates(&self) -> Result<TemplateList, Error> {
        self.json(self.get(&["v1", "templates"])?).await
    }

    /// `GET /v1/templates/{name}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn template(&self, name: &str) -> Result<Template, Error> {
        self.json(self.get(&["v1", "templates", name])?).await
    }

    /// `DELETE /v1/templates/{name}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_template(&self, name: &str) -> Result<(), Error> {
        self.nothing(self.delete(&["v1", "templates", name])?).await
    }

    /// `GET /v1/templates/{name}/logs`. `follow`: stay until the build has ended.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn template_log(&self, name: &str, follow: bool) -> Result<BuildEvents, Error> {
        let url = self.address.join(&["v1", "templates", name, "logs"])?;
        let response = self.send(self.request(Method::GET, url).query(&[("follow", follow)])).await?;
        let client = self.clone();
        let reader = StreamReader::new(response.bytes_stream().map_err(io::Error::other).boxed());
        let lines = FramedRead::new(reader, LinesCodec::new_with_max_length(LINE));
        let events = lines.map(move |line| {
            let line = line.map_err(|e| client.garbled(format!("the log broke off: {e}")))?;
            serde_json::from_str(&line).map_err(|e| client.garbled(e.to_string()))
        });
        Ok(events.boxed())
    }
}

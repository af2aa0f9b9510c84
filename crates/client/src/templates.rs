//! Templates, their builds, and what they are built from.

use std::time::Duration;

use futures_util::stream::BoxStream;
use reqwest::header::{CONTENT_LENGTH, HeaderValue};
use reqwest::{Body, Method};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;
use wakeful_api_types::{
    BuildEvent, CreateTemplate, PruneRequest, Pruned, RebuildTemplate, Template, TemplateList, Upload, Usage,
};

use crate::{Client, Error};

/// A piece of an upload.
const PIECE: usize = 256 << 10;
/// A build waits for its turn behind others, and its steps may be silent for as long as they take. Who follows one asks
/// now and then how it stands.
const SILENCE: Duration = Duration::from_secs(24 * 3600);

/// The lines of a build, as they come; the last one is [`BuildEvent::End`].
pub type BuildEvents = BoxStream<'static, Result<BuildEvent, Error>>;

impl Client {
    /// `POST /v1/uploads`: what a template is to be built from. It need not be held in memory, and is not; `length` is told
    /// to the server where it is known.
    ///
    /// # Errors
    /// See [`Error`]. If `content` fails, nothing is kept.
    pub async fn upload_source(
        &self,
        content: impl AsyncRead + Send + 'static,
        length: Option<u64>,
    ) -> Result<Upload, Error> {
        let request = self.patient(Method::POST, self.address.join(&["v1", "uploads"])?);
        let request = match length {
            Some(length) => request.header(CONTENT_LENGTH, HeaderValue::from(length)),
            None => request,
        };
        self.json(request.body(Body::wrap_stream(ReaderStream::with_capacity(content, PIECE)))).await
    }

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

    /// `POST /v1/templates/{name}/rebuild`: begins another build.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn rebuild_template(&self, name: &str, rebuild: &RebuildTemplate) -> Result<Template, Error> {
        self.json(self.post(&["v1", "templates", name, "rebuild"], rebuild)?).await
    }

    /// `POST /v1/templates/{name}/cancel`: ends the build that is under way, and waits for that.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn cancel_build(&self, name: &str) -> Result<Template, Error> {
        self.json(self.post(&["v1", "templates", name, "cancel"], &serde_json::json!({}))?).await
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
        let response = self.send(self.patient(Method::GET, url).query(&[("follow", follow)])).await?;
        Ok(self.lines(response, SILENCE))
    }

    /// `POST /v1/prune`: removes what nobody needs.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn prune(&self, prune: &PruneRequest) -> Result<Pruned, Error> {
        self.json(self.post(&["v1", "prune"], prune)?).await
    }

    /// `GET /v1/df`: what lies in the server's data directory.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn usage(&self) -> Result<Usage, Error> {
        self.json(self.get(&["v1", "df"])?).await
    }
}

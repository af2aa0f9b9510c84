//! Files in a sandbox, as streams.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use reqwest::header::{CONTENT_LENGTH, HeaderValue, LAST_MODIFIED, RANGE};
use reqwest::{Body, Method};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;
use wakeful_api_types::{FileEntry, FileList, WrittenFile};

use crate::send::CALL;
use crate::{Client, Error};

/// A piece of an upload.
const PIECE: usize = 64 << 10;

/// How a file is to be written.
#[derive(Clone, Debug, Default)]
pub struct Upload {
    /// Its permission bits in octal, `0644` if absent.
    pub mode: Option<String>,
    /// Its owner, the template's user if absent.
    pub user: Option<String>,
}

/// A file on its way.
pub struct Download {
    /// How many bytes will come.
    pub length: Option<u64>,
    /// Its `Last-Modified`.
    pub modified: Option<String>,
    /// The bytes. An error in between means that the rest will not come.
    pub content: BoxStream<'static, Result<Bytes, Error>>,
}

impl Client {
    /// `PUT …/files/{path}`: `length` bytes of `content`. It need not be held in memory, and is not.
    ///
    /// # Errors
    /// See [`Error`]. If `content` ends early or fails, the file is not written.
    pub async fn upload(
        &self,
        id: &str,
        path: &str,
        length: u64,
        content: impl AsyncRead + Send + 'static,
        how: &Upload,
    ) -> Result<WrittenFile, Error> {
        let mut request = self
            .request(Method::PUT, self.address.file(id, path)?)
            .header(CONTENT_LENGTH, HeaderValue::from(length))
            .body(Body::wrap_stream(ReaderStream::with_capacity(content, PIECE)));
        for (name, value) in [("mode", &how.mode), ("user", &how.user)] {
            if let Some(value) = value {
                request = request.query(&[(name, value)]);
            }
        }
        self.json(request).await
    }

    /// `GET …/files/{path}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn download(&self, id: &str, path: &str) -> Result<Download, Error> {
        self.fetch(id, path, None).await
    }

    /// `GET …/files/{path}` with a `Range`: from `first` to `last`, both included.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn download_range(&self, id: &str, path: &str, first: u64, last: Option<u64>) -> Result<Download, Error> {
        let last = last.map(|last| last.to_string()).unwrap_or_default();
        self.fetch(id, path, Some(format!("bytes={first}-{last}"))).await
    }

    async fn fetch(&self, id: &str, path: &str, range: Option<String>) -> Result<Download, Error> {
        let mut request = self.request(Method::GET, self.address.file(id, path)?);
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let response = self.send(request).await?;
        let modified = response.headers().get(LAST_MODIFIED).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let length = response.content_length();
        let client = self.clone();
        let content = response.bytes_stream().map_err(move |e| client.lost(e)).boxed();
        Ok(Download { length, modified, content })
    }

    /// `GET …/files/{path}?list=true`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list_directory(&self, id: &str, path: &str) -> Result<FileList, Error> {
        self.json(self.file(Method::GET, id, path, "list", "true")?).await
    }

    /// `GET …/files/{path}?stat=true`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn stat(&self, id: &str, path: &str) -> Result<FileEntry, Error> {
        self.json(self.file(Method::GET, id, path, "stat", "true")?).await
    }

    /// `POST …/files/{path}?mkdir=true`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn make_directory(&self, id: &str, path: &str) -> Result<FileEntry, Error> {
        self.json(self.file(Method::POST, id, path, "mkdir", "true")?).await
    }

    /// `POST …/files/{path}?move_to=`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn move_file(&self, id: &str, path: &str, to: &str) -> Result<FileEntry, Error> {
        self.json(self.file(Method::POST, id, path, "move_to", to)?).await
    }

    /// `DELETE …/files/{path}`: all of it; no error if there is none.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn remove_file(&self, id: &str, path: &str) -> Result<(), Error> {
        self.nothing(self.request(Method::DELETE, self.address.file(id, path)?).timeout(CALL)).await
    }

    fn file(
        &self,
        method: Method,
        id: &str,
        path: &str,
        name: &str,
        value: &str,
    ) -> Result<reqwest::RequestBuilder, Error> {
        Ok(self.request(method, self.address.file(id, path)?).query(&[(name, value)]).timeout(CALL))
    }
}

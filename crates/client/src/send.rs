//! Sending a request and reading its answer.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wakeful_api_types::{Health, Info, Problem};

use crate::address::Address;
use crate::{Error, tls};

/// A daemon that does not even take the connection is not there.
const CONNECT: Duration = Duration::from_secs(5);
/// A cold boot under emulation, behind a minute of waiting for another operation.
pub(crate) const CALL: Duration = Duration::from_secs(240);
/// Between two pieces of a stream.
const SILENCE: Duration = Duration::from_secs(600);
/// How soon a silent connection is asked whether its other end is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// A JSON answer: two outputs of 8 MiB, each byte of which may be escaped.
const ANSWER: usize = 128 << 20;

/// A server's address and credentials. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    /// For what may take any time: a process reads its input when it likes.
    patient: reqwest::Client,
    pub(crate) address: Address,
    authorization: Option<HeaderValue>,
    agent: HeaderValue,
    tenant: Option<HeaderValue>,
}

impl Client {
    /// A client of the server at `url`, such as `http://127.0.0.1:8080`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the address or the key cannot be used.
    pub fn new(url: &str, api_key: Option<&str>) -> Result<Self, Error> {
        Self::with_authority(url, api_key, None)
    }

    /// As [`new`](Self::new); an https server may also be known by these certificates, in PEM.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if there is no certificate.
    pub fn with_authority(url: &str, api_key: Option<&str>, authority: Option<&[u8]>) -> Result<Self, Error> {
        let address = Address::parse(url)?;
        let tls = tls::config(address.secure, authority)?;
        let build = |mut builder: reqwest::ClientBuilder| {
            if address.loopback {
                builder = builder.no_proxy();
            }
            builder
                .tls_backend_preconfigured(tls.clone())
                .build()
                .map_err(|source| Error::Unreachable { url: address.as_str().into(), source })
        };
        let builder = || reqwest::Client::builder().connect_timeout(CONNECT);
        let (http, patient) = (build(builder().read_timeout(SILENCE))?, build(builder().tcp_keepalive(KEEPALIVE))?);
        let authorization = api_key
            .map(|key| {
                let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                    .map_err(|_| Error::Invalid { detail: "the API key has characters that no key has".into() })?;
                value.set_sensitive(true);
                Ok(value)
            })
            .transpose()?;
        let agent = HeaderValue::from_static(concat!("wakeful-client/", env!("CARGO_PKG_VERSION")));
        Ok(Self { http, patient, address, authorization, agent, tenant: None })
    }

    /// The same with another `User-Agent`; the server takes one that begins with `wakeful-cli/` for the command line.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no header value.
    pub fn with_user_agent(mut self, agent: &str) -> Result<Self, Error> {
        self.agent = HeaderValue::try_from(agent)
            .map_err(|_| Error::Invalid { detail: format!("{agent:?} is not a user agent") })?;
        Ok(self)
    }

    /// The same, for an admin who acts in this tenant.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no tenant's name.
    pub fn in_tenant(mut self, tenant: &str) -> Result<Self, Error> {
        let name = HeaderValue::try_from(tenant);
        self.tenant = Some(name.map_err(|_| Error::Invalid { detail: format!("{tenant:?} is no tenant") })?);
        Ok(self)
    }

    /// The server's address.
    #[must_use]
    pub fn url(&self) -> &str {
        self.address.as_str()
    }

    /// `GET /healthz`. A draining server is [`Error::Problem`] no less than one that refuses.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn health(&self) -> Result<Health, Error> {
        self.json(self.request(Method::GET, self.address.join(&["healthz"])?).timeout(Duration::from_secs(10))).await
    }

    /// `GET /v1/info`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn info(&self) -> Result<Info, Error> {
        self.json(self.get(&["v1", "info"])?).await
    }

    pub(crate) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.with_headers(self.http.request(method, url))
    }

    /// One whose answer may take any time.
    pub(crate) fn patient(&self, method: Method, url: Url) -> RequestBuilder {
        self.with_headers(self.patient.request(method, url))
    }

    fn with_headers(&self, request: RequestBuilder) -> RequestBuilder {
        let mut request = request.header(USER_AGENT, self.agent.clone());
        if let Some(tenant) = &self.tenant {
            request = request.header("x-wakeful-tenant", tenant.clone());
        }
        match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }

    pub(crate) fn get(&self, segments: &[&str]) -> Result<RequestBuilder, Error> {
        Ok(self.request(Method::GET, self.address.join(segments)?).timeout(CALL))
    }

    pub(crate) fn delete(&self, segments: &[&str]) -> Result<RequestBuilder, Error> {
        Ok(self.request(Method::DELETE, self.address.join(segments)?).timeout(CALL))
    }

    pub(crate) fn post(&self, segments: &[&str], body: &impl Serialize) -> Result<RequestBuilder, Error> {
        Ok(self.request(Method::POST, self.address.join(segments)?).timeout(CALL).json(body))
    }

    pub(crate) fn lost(&self, source: reqwest::Error) -> Error {
        Error::Unreachable { url: self.url().to_owned(), source }
    }

    pub(crate) fn garbled(&self, detail: impl Into<String>) -> Error {
        Error::Protocol { url: self.url().to_owned(), detail: detail.into() }
    }

    /// Sends, and turns a refusal into its problem.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        let response = request.send().await.map_err(|e| self.lost(e))?;
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let body = self.whole(response).await?;
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(Error::Problem(Box::new(problem))),
            Err(_) => Err(self.garbled(format!("status {status} without a problem"))),
        }
    }

    /// Sends, and reads the answer as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        let response = self.send(request).await?;
        let body = self.whole(response).await?;
        serde_json::from_slice(&body).map_err(|e| self.garbled(e.to_string()))
    }

    /// Sends, and wants nothing back.
    pub(crate) async fn nothing(&self, request: RequestBuilder) -> Result<(), Error> {
        let response = self.send(request).await?;
        match response.status() {
            StatusCode::NO_CONTENT => Ok(()),
            status => Err(self.garbled(format!("status {status} where there should be no content"))),
        }
    }

    /// All of an answer, bounded: what listens there may be anything.
    async fn whole(&self, mut response: Response) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.lost(e))? {
            if body.len() + chunk.len() > ANSWER {
                return Err(self.garbled("it is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

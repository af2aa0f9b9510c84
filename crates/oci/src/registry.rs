//! One repository of one registry, spoken to over HTTP.
//!
//! `oci-client` would do this too, but reads manifests and blobs without a bound and follows redirects from https to http;
//! what is needed is small, so it is written here. Redirects are followed by hand: a registry hands blobs out by sending its
//! clients to object storage, and neither a password nor a token goes along, nor does anything that began with TLS go on
//! without.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE, WWW_AUTHENTICATE};
use reqwest::{Client, Response, StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::challenge::{Challenge, parse_challenges};
use crate::credentials::{self, Kept};
use crate::error::{chain, tame};
use crate::reference::split_port;
use crate::{Credentials, Error, Reference, Settings, blocking, tls};

const CONNECT: Duration = Duration::from_secs(10);
/// For what is small: to the last byte.
const DOCUMENT: Duration = Duration::from_secs(60);
const REDIRECTS: usize = 5;
const ANSWER_MAX: u64 = 64 << 10;

pub(crate) struct Registry {
    http: Client,
    base: Url,
    name: String,
    repository: String,
    insecure: Vec<String>,
    credentials: Option<Credentials>,
    /// Docker's file names a helper program for this registry.
    helper: bool,
    /// What the last challenge was answered with. One repository and one scope, so one.
    pass: Mutex<Option<HeaderValue>>,
}

/// What is asked for.
pub(crate) struct Ask<'a> {
    pub(crate) url: Url,
    /// For messages.
    pub(crate) what: &'a str,
    pub(crate) accept: Option<&'static str>,
    /// From which byte on.
    pub(crate) from: u64,
}

pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    pub(crate) headers: HeaderMap,
}

/// A few tries within seconds: a registry that is away for longer is unreachable.
pub(crate) fn patience() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(5))
        .with_max_times(5)
        .with_jitter()
}

impl Registry {
    pub(crate) async fn connect(reference: &Reference, settings: &Settings) -> Result<Self, Error> {
        let name = reference.registry().to_owned();
        let host = settings.aliases.get(&name).cloned().unwrap_or_else(|| name.clone());
        let wrong = |detail: &str| Error::Settings { detail: format!("{host:?} is no registry's host: {detail}") };
        let secure = Url::parse(&format!("https://{host}/")).map_err(|error| wrong(&error.to_string()))?;
        if secure.path() != "/" || !secure.username().is_empty() || secure.host_str().is_none() {
            return Err(wrong("host or host:port is wanted"));
        }
        let mut plain = secure.clone();
        if secure.port().is_none() && split_port(&host).1 == Some("443") {
            // The port that goes without saying for https must be said for http.
            let _ = plain.set_port(Some(443));
        }
        let _ = plain.set_scheme("http");
        let (tls, kept) = {
            let (authority, file) = (settings.authority.clone(), settings.docker_config.clone());
            let names = [name.clone(), host.clone()];
            let given = settings.credentials.clone();
            blocking(move || {
                let kept = match (given, file) {
                    (Some(given), _) => Kept::These(given),
                    (None, Some(file)) => credentials::from_docker(&file, &[&names[0], &names[1]])?,
                    (None, None) => Kept::Nothing,
                };
                Ok((tls::config(authority.as_deref())?, kept))
            })
            .await?
        };
        let mut builder = Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(settings.silence)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("wakeful/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls);
        if loopback(&secure) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| Error::Settings { detail: describe(error) })?;
        let mut registry = Self {
            http,
            base: secure,
            name,
            repository: reference.repository().into(),
            insecure: settings.insecure.clone(),
            helper: matches!(kept, Kept::Helper),
            credentials: if let Kept::These(credentials) = kept { Some(credentials) } else { None },
            pass: Mutex::new(None),
        };
        let without_tls = listed(&registry.insecure, &plain)
            || loopback(&plain) && !registry.answers(&registry.base).await && registry.answers(&plain).await;
        if without_tls {
            registry.base = plain;
        }
        Ok(registry)
    }

    /// Whether a registry is there; nothing secret is said.
    async fn answers(&self, base: &Url) -> bool {
        let Ok(url) = base.join("v2/") else { return false };
        let answer = tokio::time::timeout(DOCUMENT, self.http.get(url).send()).await;
        // A TLS server says "bad request" to those who speak without.
        matches!(answer, Ok(Ok(response)) if response.status() != StatusCode::BAD_REQUEST)
    }

    pub(crate) fn url(&self, kind: &str, version: &str) -> Result<Url, Error> {
        let path = format!("v2/{}/{kind}/{version}", self.repository);
        self.base.join(&path).map_err(|error| self.unreachable(error.to_string()))
    }

    fn unreachable(&self, detail: String) -> Error {
        Error::Unreachable { registry: self.name.clone(), detail }
    }

    pub(crate) fn broken(&self, error: reqwest::Error) -> Error {
        self.unreachable(describe(error))
    }

    /// A small answer, whole. Tried again while the fault may pass.
    pub(crate) async fn document(&self, ask: &Ask<'_>, max: u64) -> Result<Document, Error> {
        let once = || async {
            let all = async {
                let response = self.get(ask).await?;
                let headers = response.headers().clone();
                let bytes = self.body(response, max).await?;
                let bytes = bytes.ok_or_else(|| Error::TooLarge {
                    image: format!("{}/{}", self.name, self.repository),
                    what: ask.what.into(),
                    limit: max,
                    unit: "bytes",
                })?;
                Ok(Document { bytes, headers })
            };
            let late = |_| self.unreachable(format!("{} did not come within {DOCUMENT:?}", ask.what));
            tokio::time::timeout(DOCUMENT, all).await.map_err(late)?
        };
        once.retry(patience()).when(Error::transient).await
    }

    /// `None` if it is longer.
    async fn body(&self, mut response: Response, max: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(error))? {
            if bytes.len() as u64 + chunk.len() as u64 > max {
                return Ok(None);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Some(bytes))
    }

    /// An answer that is a success; its body is still to come.
    pub(crate) async fn get(&self, ask: &Ask<'_>) -> Result<Response, Error> {
        // Twice, since a pass that somebody else got meanwhile may be spent by the time it is used here.
        let mut renewals = 0;
        loop {
            let pass = self.pass.lock().await.clone();
            let (response, strayed) = self.follow(ask, pass.as_ref()).await?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            if status == StatusCode::UNAUTHORIZED && !strayed {
                if renewals == 2 {
                    return Err(self.unauthorized());
                }
                renewals += 1;
                self.renew(response.headers(), pass.as_ref()).await?;
                continue;
            }
            return Err(self.refusal(ask, response, strayed).await);
        }
    }

    /// Sends the request and goes where it is sent, at most [`REDIRECTS`] times. Also says whether another host answered.
    async fn follow(&self, ask: &Ask<'_>, pass: Option<&HeaderValue>) -> Result<(Response, bool), Error> {
        let mut url = ask.url.clone();
        let mut strayed = false;
        for _ in 0..=REDIRECTS {
            let mut request = self.http.get(url.clone());
            if let Some(accept) = ask.accept {
                request = request.header(ACCEPT, accept);
            }
            if ask.from > 0 {
                request = request.header(RANGE, format!("bytes={}-", ask.from));
            }
            if let Some(pass) = pass.filter(|_| !strayed) {
                request = request.header(AUTHORIZATION, pass.clone());
            }
            let response = request.send().await.map_err(|error| self.broken(error))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, strayed));
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            let next = next.ok_or_else(|| self.lost(ask.what, "it does not say where"))?;
            self.permit(&url, &next, ask.what)?;
            // Once away, a pass stays away too, wherever the next redirect leads.
            strayed |= next.origin() != self.base.origin();
            url = next;
        }
        Err(self.lost(ask.what, "there are too many redirects"))
    }

    /// Whether one may go from here to there.
    fn permit(&self, here: &Url, there: &Url, what: &str) -> Result<(), Error> {
        if !there.username().is_empty() || there.password().is_some() {
            return Err(self.lost(what, "the address carries a password"));
        }
        match (here.scheme(), there.scheme()) {
            (_, "https") => Ok(()),
            ("https", "http") => Err(self.lost(what, "it leads from https to http")),
            ("http", "http") if here.origin() == there.origin() || loopback(there) || listed(&self.insecure, there) => {
                Ok(())
            }
            ("http", "http") => Err(self.lost(what, "it leads to another host without TLS")),
            (_, other) => Err(self.lost(what, &format!("it leads to {:?}", tame(other)))),
        }
    }

    fn lost(&self, what: &str, detail: &str) -> Error {
        Error::Redirect { registry: self.name.clone(), what: what.into(), detail: detail.into() }
    }

    fn unauthorized(&self) -> Error {
        let detail = match (&self.credentials, self.helper) {
            (Some(_), _) => "it refuses the credentials",
            (None, true) => "it needs credentials, and Docker's file leaves them to a helper program, which is not run",
            (None, false) => "it needs credentials",
        };
        Error::Unauthorized { registry: self.name.clone(), repository: self.repository.clone(), detail }
    }

    /// Answers a challenge. `used` was not enough; if somebody has got another pass meanwhile, that is tried first.
    async fn renew(&self, headers: &HeaderMap, used: Option<&HeaderValue>) -> Result<(), Error> {
        let mut pass = self.pass.lock().await;
        if pass.as_ref() != used {
            return Ok(());
        }
        let challenges: Vec<Challenge> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .take(8)
            .filter_map(|value| value.to_str().ok())
            .flat_map(parse_challenges)
            .collect();
        let bearer = challenges.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        let next = if let Some(Challenge::Bearer { realm, service, scope }) = bearer {
            let token = self.token(realm, service.as_deref(), scope.as_deref()).await?;
            SecretString::from(format!("Bearer {}", token.expose_secret()))
        } else if challenges.contains(&Challenge::Basic) {
            self.credentials.as_ref().ok_or_else(|| self.unauthorized())?.basic()
        } else {
            return Err(self.unauthorized());
        };
        let next = self.secret_header(&next)?;
        if used == Some(&next) {
            return Err(self.unauthorized());
        }
        *pass = Some(next);
        Ok(())
    }

    fn secret_header(&self, value: &SecretString) -> Result<HeaderValue, Error> {
        let mut header = HeaderValue::try_from(value.expose_secret()).map_err(|_| self.unauthorized())?;
        header.set_sensitive(true);
        Ok(header)
    }

    async fn token(&self, realm: &str, service: Option<&str>, scope: Option<&str>) -> Result<SecretString, Error> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<SecretString>,
            access_token: Option<SecretString>,
        }
        const WHAT: &str = "a token";
        let mut url = Url::parse(realm).map_err(|_| self.lost(WHAT, "it does not say where"))?;
        self.permit(&self.base, &url, WHAT)?;
        let own = format!("repository:{}:pull", self.repository);
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = service {
                query.append_pair("service", service);
            }
            query.append_pair("scope", scope.unwrap_or(&own));
        }
        let all = async {
            let mut request = self.http.get(url);
            if let Some(credentials) = &self.credentials {
                request = request.header(AUTHORIZATION, self.secret_header(&credentials.basic())?);
            }
            let response = request.send().await.map_err(|error| self.broken(error))?;
            match response.status().as_u16() {
                200..=299 => {}
                401 | 403 => return Err(self.unauthorized()),
                300..=399 => return Err(self.lost(WHAT, "a token's giver must not redirect")),
                status => {
                    let (registry, detail) = (self.name.clone(), String::from("no token was given"));
                    return Err(Error::Refused { registry, what: WHAT.into(), status, detail });
                }
            }
            let bytes = self.body(response, ANSWER_MAX).await?.unwrap_or_default();
            // The parser's own words could quote the token.
            let answer: Answer = serde_json::from_slice(&bytes)
                .map_err(|_| self.unreachable("what it gives out as a token is none".into()))?;
            let token =
                answer.token.into_iter().chain(answer.access_token).find(|token| !token.expose_secret().is_empty());
            token.ok_or_else(|| self.unauthorized())
        };
        // Whoever needs it tries again.
        let late = |_| self.unreachable(format!("no token came within {DOCUMENT:?}"));
        tokio::time::timeout(DOCUMENT, all).await.map_err(late)?
    }

    async fn refusal(&self, ask: &Ask<'_>, response: Response, strayed: bool) -> Error {
        let status = response.status().as_u16();
        let said = self.body(response, ANSWER_MAX).await.ok().flatten().unwrap_or_default();
        let words = words(&said);
        let (registry, repository) = (self.name.clone(), self.repository.clone());
        match status {
            403 if !strayed => {
                Error::Denied { registry, repository, detail: words.unwrap_or_else(|| "it gives no reason".into()) }
            }
            404 if !strayed && said.windows(12).any(|window| window == b"NAME_UNKNOWN") => {
                Error::NoRepository { registry, repository }
            }
            404 => Error::Missing { image: format!("{registry}/{repository}"), what: ask.what.into() },
            _ => {
                let detail = words.unwrap_or_else(|| "it gives no reason".into());
                Error::Refused { registry, what: ask.what.into(), status, detail }
            }
        }
    }

    /// Registries do not agree on what they say when a repository is missing altogether, so its list of tags is asked for.
    pub(crate) async fn no_version(&self, version: &str) -> Error {
        let (registry, repository) = (self.name.clone(), self.repository.clone());
        let known = match self.url("tags", "list") {
            Ok(mut url) => {
                url.set_query(Some("n=1"));
                let ask = Ask { url, what: "its list of tags", accept: None, from: 0 };
                // Any other answer, and none, leaves it at what the registry has said itself.
                !matches!(
                    self.document(&ask, ANSWER_MAX).await,
                    Err(Error::NoRepository { .. } | Error::Missing { .. })
                )
            }
            Err(_) => true,
        };
        if known {
            Error::NoVersion { registry, repository, version: version.into() }
        } else {
            Error::NoRepository { registry, repository }
        }
    }
}

/// What a registry says about a failure.
fn words(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let first = serde_json::from_slice::<Answer>(body).ok()?.errors.into_iter().next()?;
    let text = if first.message.is_empty() { first.code } else { first.message };
    Some(tame(&text)).filter(|text| !text.is_empty())
}

/// Without the address: those of object storage carry signatures.
fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    if error.is_timeout() {
        return "it does not answer in time".into();
    }
    tame(&chain(&error))
}

fn loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An entry without a port means all of them.
fn listed(entries: &[String], url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default();
    entries.iter().any(|entry| match split_port(entry) {
        (name, None) => name.eq_ignore_ascii_case(host),
        (name, Some(said)) => name.eq_ignore_ascii_case(host) && said.parse().ok() == port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn who_is_spoken_to_without_tls() {
        for (text, wanted) in [
            ("http://localhost:5000/", true),
            ("http://127.9.9.9/", true),
            ("http://[::1]:80/", true),
            ("http://localhost.example/", false),
            ("http://10.0.0.1/", false),
        ] {
            assert_eq!(loopback(&url(text)), wanted, "{text}");
        }
        let entries = ["plain.invalid".to_owned(), "other.invalid:5000".into()];
        for (text, wanted) in [
            ("http://plain.invalid:1/", true),
            ("http://other.invalid:5000/", true),
            ("http://other.invalid/", false),
            ("http://xplain.invalid/", false),
        ] {
            assert_eq!(listed(&entries, &url(text)), wanted, "{text}");
        }
    }

    #[test]
    fn words_of_a_registry() {
        assert_eq!(words(br#"{"errors":[{"code":"DENIED","message":"no\u001b[2J"}]}"#).as_deref(), Some("no [2J"));
        assert_eq!(words(br#"{"errors":[{"code":"DENIED"}]}"#).as_deref(), Some("DENIED"));
        for nothing in ["", "{}", r#"{"errors":[]}"#, "<html>"] {
            assert_eq!(words(nothing.as_bytes()), None);
        }
    }
}

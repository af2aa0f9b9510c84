//! A web page must not drive a local daemon; with keys, pages of everywhere may call.
//!
//! Without keys, whoever reaches the port is admin. A page in this machine's browser reaches it too, by a plain
//! cross-origin request (it sends its `Origin`) or by a name of its own that resolves to 127.0.0.1 (it sends that name as
//! `Host`). Both are refused. Previews are pages of strangers as well: they lie under the domain, so an origin must be the
//! API's own host and not merely under it.
//!
//! With keys, a page has nothing but what its user gave it: there are no cookies here, and a browser adds no key by
//! itself. So any origin may call (`Access-Control-Allow-Origin: *`), and the host's name is no longer looked at.

use std::net::IpAddr;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use wakeful_model::Code;

use crate::ApiConfig;
use crate::problem::Problem;

/// How long a browser may remember what it was allowed.
const REMEMBER: &str = "600";
/// What a page may read of an answer beside its body.
const READABLE: &str = "X-Request-Id, Location, Retry-After, Content-Range, Last-Modified, WWW-Authenticate";

/// The answer to a browser that asks whether a page may call, where there are keys.
pub(crate) fn preflight(request: &Request) -> Option<Response> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    allow_all(answer);
    let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    // As asked: `*` would not include Authorization, and SDKs have headers of their own.
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBER));
    answer.insert(header::VARY, HeaderValue::from_static("Access-Control-Request-Headers"));
    Some(response)
}

/// Lets pages of every origin read an answer. Only where there are keys.
pub(crate) fn allow_all(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(READABLE));
}

/// Where there are no keys: refuses hosts and origins that are not ours.
pub(crate) fn refuse_strangers(config: &ApiConfig, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |what: &str, value: &str| {
        let value: String = value.chars().take(200).collect();
        Problem::new(Code::ForeignOrigin, format!("{what} {value:?} is not this server's"))
            .hint("without API keys only this machine's own programs are served, under a loopback name")
    };
    // HTTP/2 has the host in the request's target.
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    for host in authority.into_iter().chain(headers.get_all(header::HOST).iter().map(|value| value.as_bytes())) {
        let text = String::from_utf8_lossy(host);
        let name = split_port(&text).0;
        if !is_loopback(name) && !is_under(name, &config.domain) {
            return Err(refused("host", &text));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let text = String::from_utf8_lossy(origin.as_bytes());
        if !is_own_origin(&text, config) {
            return Err(refused("origin", &text));
        }
    }
    Ok(())
}

/// For previews: refuses pages that are neither this preview's own nor the API's.
pub(crate) fn refuse_other_pages(config: &ApiConfig, host: &str, headers: &HeaderMap) -> Result<(), Problem> {
    for origin in headers.get_all(header::ORIGIN) {
        let text = String::from_utf8_lossy(origin.as_bytes());
        let name = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let own = name.is_some_and(|name| name.eq_ignore_ascii_case(host));
        if !own && !is_own_origin(&text, config) {
            let text: String = text.chars().take(200).collect();
            return Err(Problem::new(Code::ForeignOrigin, format!("origin {text:?} is not this preview's"))
                .hint("a public port is open to pages from everywhere"));
        }
    }
    Ok(())
}

fn is_own_origin(origin: &str, config: &ApiConfig) -> bool {
    let (rest, default_port) = match (origin.strip_prefix("http://"), origin.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80),
        (None, Some(rest)) => (rest, 443),
        (None, None) => return false,
    };
    let (name, port) = split_port(rest);
    let port = match port {
        Some(text) => text.parse().ok(),
        None => Some(default_port),
    };
    let ours = is_loopback(name) || same_name(name, &config.domain);
    ours && port.is_some_and(|port| config.ports.contains(&port))
}

/// Host and port of `host[:port]`, also of `[::1]:8080`.
fn split_port(text: &str) -> (&str, Option<&str>) {
    if let Some(rest) = text.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => (text, None),
        };
    }
    match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    }
}

fn is_loopback(name: &str) -> bool {
    same_name(name, "localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn same_name(name: &str, other: &str) -> bool {
    name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case(other)
}

fn is_under(name: &str, domain: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let Some(at) = name.len().checked_sub(domain.len()) else { return false };
    !domain.is_empty()
        && name.is_char_boundary(at)
        && name[at..].eq_ignore_ascii_case(domain)
        && (at == 0 || name[..at].ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn served(host: Option<&str>, origin: Option<&str>) -> bool {
        let config = ApiConfig { domain: "sandboxes.example".into(), ports: vec![8080], ..ApiConfig::default() };
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
        }
        refuse_strangers(&config, &Uri::from_static("/v1/info"), &headers).is_ok()
    }

    #[test]
    fn hosts() {
        for host in [
            "localhost:8080",
            "LOCALHOST",
            "localhost.",
            "127.0.0.1:8080",
            "127.1.2.3",
            "[::1]:8080",
            "[::1]",
            "sandboxes.example",
            "3000-abc.Sandboxes.Example:8080",
        ] {
            assert!(served(Some(host), None), "{host}");
        }
        for host in [
            "evil.example",
            "evilsandboxes.example",
            "10.0.0.1:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "[::2]:8080",
            "[::1",
            "0.0.0.0",
            "é.example",
        ] {
            assert!(!served(Some(host), None), "{host}");
        }
        assert!(served(None, None));
    }

    #[test]
    fn origins() {
        for origin in
            ["http://localhost:8080", "http://127.0.0.1:8080", "http://[::1]:8080", "http://sandboxes.example:8080"]
        {
            assert!(served(Some("localhost:8080"), Some(origin)), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://localhost:3000",
            "http://localhost",
            "https://localhost",
            "http://evil.example:8080",
            "http://3000-abc.sandboxes.example:8080",
            "file://",
            "localhost:8080",
            "http://localhost:8080x",
        ] {
            assert!(!served(Some("localhost:8080"), Some(origin)), "{origin}");
        }
    }

    #[test]
    fn the_target_counts_as_host() {
        let config = ApiConfig { domain: "localhost".into(), ..ApiConfig::default() };
        let uri = Uri::from_static("http://evil.example/v1/info");
        assert!(refuse_strangers(&config, &uri, &HeaderMap::new()).is_err());
    }
}

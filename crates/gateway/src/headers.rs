//! What of a request reaches the service, and what of its answer the client.

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::forward::{Form, Sender};
use crate::session::COOKIE;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// Pages in the path form share the API's origin, so they get none of their own rights there.
const SANDBOXED: HeaderValue = HeaderValue::from_static("sandbox allow-scripts allow-forms");

/// Between two neighbours only, whatever `Connection` says.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    header::PROXY_AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What an answer in the path form must not do to the origin that it shares.
const OF_THE_ORIGIN: [HeaderName; 5] = [
    header::SET_COOKIE,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    header::STRICT_TRANSPORT_SECURITY,
    header::ALT_SVC,
];

/// What must come before a body, since it is looked at, taken out or changed there.
const NEVER_AT_THE_END: [HeaderName; 12] = [
    header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    header::COOKIE,
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_SECURITY_POLICY,
    header::EXPECT,
    header::FORWARDED,
    header::LOCATION,
    header::TE,
    header::TRAILER,
];

fn without_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn remove_prefixed(headers: &mut HeaderMap, prefix: &str) {
    let ours: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// For the service. The API's credentials must be gone already: only it knows them.
pub(crate) fn to_service(headers: &mut HeaderMap, host: &HeaderValue, sender: &Sender, form: &Form) {
    // Its length is told in another way, and two ways could differ.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let trailers = headers.get_all(header::TE).iter().any(|value| {
        value.to_str().is_ok_and(|text| text.split(',').any(|word| word.trim().eq_ignore_ascii_case("trailers")))
    });
    without_hops(headers);
    headers.remove(header::TE);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // The client was told to go on when its body was first wanted.
    headers.remove(header::EXPECT);
    remove_prefixed(headers, "x-wakeful-");
    forwarded(headers, host, sender);
    match form {
        Form::Host => {
            without_cookie(headers, COOKIE);
            headers.remove(X_FORWARDED_PREFIX);
        }
        Form::Path { prefix } => {
            headers.remove(header::COOKIE);
            headers.remove(X_FORWARDED_PREFIX);
            headers.extend(HeaderValue::try_from(prefix).ok().map(|prefix| (X_FORWARDED_PREFIX, prefix)));
        }
    }
    headers.insert(header::HOST, host.clone());
}

/// A neighbour on this machine may be a proxy, which knows more; what others claim about themselves is dropped.
fn forwarded(headers: &mut HeaderMap, host: &HeaderValue, sender: &Sender) {
    let near = sender.address.is_some_and(|address| address.is_loopback());
    let chain: Vec<String> = headers
        .get_all(X_FORWARDED_FOR)
        .iter()
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .filter(|_| near)
        .chain(sender.address.map(|address: IpAddr| address.to_string()))
        .collect();
    headers.remove(X_FORWARDED_FOR);
    headers.remove(header::FORWARDED);
    headers
        .extend(HeaderValue::try_from(chain.join(", ")).ok().filter(|v| !v.is_empty()).map(|v| (X_FORWARDED_FOR, v)));
    if !near || !headers.contains_key(X_FORWARDED_HOST) {
        headers.insert(X_FORWARDED_HOST, host.clone());
    }
    if !near || !headers.contains_key(X_FORWARDED_PROTO) {
        let proto = if sender.secure { "https" } else { "http" };
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(proto));
    }
}

/// Takes one cookie out of a request, and leaves the others as they are, in one header as HTTP/1.1 wants it.
pub fn without_cookie(headers: &mut HeaderMap, name: &str) {
    let mut kept: Vec<u8> = Vec::new();
    for value in headers.get_all(header::COOKIE) {
        for pair in value.as_bytes().split(|byte| *byte == b';') {
            let pair = pair.trim_ascii();
            let named = pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
            if pair.is_empty() || named == name.as_bytes() {
                continue;
            }
            if !kept.is_empty() {
                kept.extend_from_slice(b"; ");
            }
            kept.extend_from_slice(pair);
        }
    }
    headers.remove(header::COOKIE);
    if !kept.is_empty() {
        headers.extend(HeaderValue::from_bytes(&kept).ok().map(|value| (header::COOKIE, value)));
    }
}

/// For the client.
pub(crate) fn to_client(headers: &mut HeaderMap, form: &Form) {
    without_hops(headers);
    remove_prefixed(headers, "x-wakeful-");
    match form {
        Form::Host => {
            let cookies: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().filter_map(own_cookie).collect();
            headers.remove(header::SET_COOKIE);
            for cookie in cookies {
                headers.append(header::SET_COOKIE, cookie);
            }
        }
        Form::Path { .. } => {
            for name in &OF_THE_ORIGIN {
                headers.remove(name);
            }
            // First ours, then whatever it has beside: policies only ever forbid more.
            let theirs: Vec<HeaderValue> = headers.get_all(header::CONTENT_SECURITY_POLICY).iter().cloned().collect();
            headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOXED);
            for policy in theirs {
                headers.append(header::CONTENT_SECURITY_POLICY, policy);
            }
        }
    }
}

/// Trailers, either way.
pub(crate) fn at_the_end(trailers: &mut HeaderMap) {
    without_hops(trailers);
    remove_prefixed(trailers, "x-wakeful-");
    remove_prefixed(trailers, "x-forwarded-");
    for name in NEVER_AT_THE_END.iter().chain(&OF_THE_ORIGIN) {
        trailers.remove(name);
    }
}

/// A cookie as a preview may set it: not the one that we come in by, and for its own host only, or previews of different
/// people could set each other's.
fn own_cookie(cookie: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
    let pair = parts.next().unwrap_or_default();
    if pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii() == COOKIE.as_bytes() {
        return None;
    }
    let mut kept = pair.to_vec();
    for part in parts {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        if !name.eq_ignore_ascii_case(b"domain") {
            kept.push(b';');
            kept.extend_from_slice(part);
        }
    }
    HeaderValue::from_bytes(&kept).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn told(headers: &HeaderMap) -> Vec<String> {
        let mut all: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        all.sort();
        all
    }

    fn sent(pairs: &[(&str, &str)], address: &str, form: &Form) -> Vec<String> {
        let mut headers = map(pairs);
        let sender = Sender { address: address.parse().ok(), secure: true };
        to_service(&mut headers, &HeaderValue::from_static("h:1"), &sender, form);
        told(&headers)
    }

    #[test]
    fn what_reaches_a_service() {
        let ours = ["host: h:1", "x-forwarded-for: 192.0.2.1", "x-forwarded-host: h:1", "x-forwarded-proto: https"];
        let claims = [
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "gzip"),
            ("expect", "100-continue"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("x-wakeful-tenant", "acme"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "gopher"),
            ("x-forwarded-prefix", "/x"),
            ("forwarded", "for=x"),
            ("cookie", "wakeful_preview=secret"),
        ];
        assert_eq!(sent(&claims, "192.0.2.1", &Form::Host), ours);
        let near = sent(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-proto", "http")], "127.0.0.1", &Form::Host);
        assert_eq!(
            near[1..],
            ["x-forwarded-for: 10.0.0.1, 127.0.0.1", "x-forwarded-host: h:1", "x-forwarded-proto: http"]
        );
        let path = sent(&[("cookie", "a=1"), ("te", "x, Trailers")], "192.0.2.1", &Form::Path { prefix: "/p".into() });
        assert_eq!(path[1], "te: trailers");
        assert!(path.contains(&"x-forwarded-prefix: /p".to_owned()) && !path.iter().any(|h| h.starts_with("cookie")));
    }

    #[test]
    fn what_passes_at_the_end() {
        let mut trailers = map(&[
            ("grpc-status", "0"),
            ("x-sum", "1"),
            ("authorization", "Bearer x"),
            ("x-api-key", "x"),
            ("cookie", "wakeful_preview=x"),
            ("set-cookie", "wakeful_preview=x"),
            ("x-wakeful-tenant", "x"),
            ("x-forwarded-for", "x"),
            ("content-length", "3"),
            ("transfer-encoding", "chunked"),
        ]);
        at_the_end(&mut trailers);
        assert_eq!(told(&trailers), ["grpc-status: 0", "x-sum: 1"]);
    }

    #[test]
    fn one_cookie_is_taken_out() {
        for (pairs, left) in [
            (&["a=1; wakeful_preview=x; b=2"][..], Some("a=1; b=2")),
            (&["wakeful_preview=x"], None),
            (&["a=1", "wakeful_preview=x;wakeful_preview=y", "b=\"2;\""], Some("a=1; b=\"2; \"")),
            (&["wakeful_preview2=1; xwakeful_preview=2"], Some("wakeful_preview2=1; xwakeful_preview=2")),
        ] {
            let mut headers = map(&pairs.iter().map(|pair| ("cookie", *pair)).collect::<Vec<_>>());
            without_cookie(&mut headers, COOKIE);
            assert_eq!(headers.get(header::COOKIE).map(|value| value.to_str().unwrap()), left);
            assert!(headers.get_all(header::COOKIE).iter().count() <= 1);
        }
    }

    #[test]
    fn what_reaches_a_client() {
        let answer = [
            ("set-cookie", "a=1; Path=/; Domain=.example; HttpOnly"),
            ("set-cookie", "wakeful_preview=evil"),
            ("connection", "upgrade"),
            ("upgrade", "x"),
            ("x-wakeful-x", "1"),
            ("content-security-policy", "default-src 'self'"),
        ];
        let mut headers = map(&answer);
        to_client(&mut headers, &Form::Host);
        assert_eq!(
            told(&headers),
            ["content-security-policy: default-src 'self'", "set-cookie: a=1; Path=/; HttpOnly"]
        );
        let mut headers = map(&answer);
        to_client(&mut headers, &Form::Path { prefix: String::new() });
        assert_eq!(headers.get(header::CONTENT_SECURITY_POLICY), Some(&SANDBOXED));
        assert_eq!((headers.len(), headers.get_all(header::CONTENT_SECURITY_POLICY).iter().count()), (2, 2));
    }
}

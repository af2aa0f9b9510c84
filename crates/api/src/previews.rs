//! Requests for a port inside a sandbox, by host name and by path: who may, and then on to the gateway.
//!
//! ```text
//!   public                     everybody
//!   private, keys              a key of the tenant with sandbox:write, or the cookie of this very port
//!   private, no keys           whoever reaches us, save pages of other origins
//! ```
//!
//! By host name a preview has an origin of its own, and cookies. By path it shares the API's: it gets none, and is told to
//! behave as if it had no origin.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use wakeful_gateway::{COOKIE, Form, Host, Place, Sender};
use wakeful_lifecycle::Error;
use wakeful_model::{Code, SandboxId, Scope};

use crate::authorize::{X_WAKEFUL_TENANT, act_for};
use crate::caller::{Caller, unauthenticated};
use crate::path::Target;
use crate::problem::Problem;
use crate::tcp::Port;
use crate::{ApiConfig, App, Peer, origin, page};

/// The parameter in which a browser brings its ticket.
pub(crate) const TICKET: &str = "wakeful_token";

/// The host that a request is for: HTTP/2 has it in the request's target.
fn host_of(request: &Request) -> &str {
    let named = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    request.uri().authority().map(http::uri::Authority::as_str).or(named).unwrap_or_default()
}

/// Whether a request is for a preview and not for the API.
pub(crate) fn is_for(config: &ApiConfig, request: &Request) -> bool {
    Host::read(host_of(request), &config.domain) != Host::Other
}

/// Everything under `<port>-<bare id>.<domain>`.
pub(crate) async fn by_host(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let page = page::is_wanted(request.headers());
    of_host(app, request).await.map_err(|problem| problem.for_a_browser(page))
}

async fn of_host(app: App, request: Request) -> Result<Response, Problem> {
    let Host::Preview { id, port } = Host::read(host_of(&request), &app.config.domain) else {
        let host: String = host_of(&request).chars().take(200).collect();
        return Err(Problem::new(Code::RouteNotFound, format!("there is no preview {host:?}"))
            .hint("a preview is at <port>-<id without sbx_>.<domain>"));
    };
    let ticket = ticket(request.uri());
    if let Some((ticket, rest)) = &ticket
        && let Some((cookie, seconds)) = app.sessions.redeem(ticket, &id, port)
    {
        let secure = if peer(&request).secure { "; Secure" } else { "" };
        let cookie = format!("{COOKIE}={cookie}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        return Ok(see_other(rest, HeaderValue::try_from(cookie).ok()));
    }
    let host = host_of(&request).to_owned();
    let tenant = admit(&app, &id, port, &host, request.headers()).await?;
    match ticket {
        // It came in without: by a ticket that was good before.
        Some((_, rest)) if request.method() == Method::GET => Ok(see_other(&rest, None)),
        _ => pass_on(&app, Place { tenant, id, port }, request, Form::Host).await,
    }
}

/// Everything below `/v1/sandboxes/{id}/ports/{port}/`.
pub(crate) async fn by_path(
    State(app): State<App>,
    Target(id): Target,
    Port(port): Port,
    request: Request,
) -> Result<Response, Problem> {
    let page = page::is_wanted(request.headers());
    of_path(app, id, port, request).await.map_err(|problem| problem.for_a_browser(page))
}

async fn of_path(app: App, id: SandboxId, port: u16, request: Request) -> Result<Response, Problem> {
    let preview = app.lifecycle.preview(&id, port).await;
    let caller = request.extensions().get::<Caller>();
    let tenant = match preview {
        Ok(preview) if preview.public => preview.tenant,
        // What there is, and what not, is nobody's business who shows no key.
        preview => allowed(caller.ok_or_else(unauthenticated)?, &id, preview.map(|preview| preview.tenant))?,
    };
    // As it was written: whoever wrote the id without its prefix gets it so.
    let prefix = request.uri().path().splitn(7, '/').take(6).collect::<Vec<_>>().join("/");
    pass_on(&app, Place { tenant, id, port }, request, Form::Path { prefix }).await
}

/// The tenant in whose name a request by host name goes on.
async fn admit(app: &App, id: &SandboxId, port: u16, host: &str, headers: &HeaderMap) -> Result<String, Problem> {
    let preview = match app.lifecycle.preview(id, port).await {
        Ok(preview) if preview.public => return Ok(preview.tenant),
        other => other.map(|preview| preview.tenant),
    };
    let own_page = || origin::refuse_other_pages(&app.config, host, headers);
    match app.door.caller(headers) {
        (Some(caller), keys) => {
            if !keys {
                own_page()?;
            }
            let caller = act_for(app, caller, headers.get(X_WAKEFUL_TENANT).cloned()).await?;
            allowed(&caller, id, preview)
        }
        (None, _) => {
            let grant = cookies(headers).find_map(|cookie| app.sessions.check(cookie, id, port));
            if !grant.is_some_and(|grant| app.door.stands_by(&grant.by)) {
                return Err(unauthenticated()
                    .hint("send a key, or open the address that POST …/ports/{port}/session answers with"));
            }
            // Browsers send it along with what other previews of this domain ask for.
            own_page()?;
            Ok(preview?)
        }
    }
}

fn allowed(caller: &Caller, id: &SandboxId, tenant: Result<String, Error>) -> Result<String, Problem> {
    if !caller.allows(Scope::SandboxWrite) {
        return Err(Problem::new(Code::Forbidden, format!("this needs a key with the scope {}", Scope::SandboxWrite)));
    }
    let tenant = tenant?;
    if tenant == *caller.tenant { Ok(tenant) } else { Err(Error::WrongTenant(id.clone()).into()) }
}

pub(crate) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(';')).filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name.trim() == COOKIE).then(|| value.trim())
    })
}

fn peer(request: &Request) -> Sender {
    let peer = request.extensions().get::<Peer>();
    Sender { address: peer.map(|peer| peer.address.ip().to_canonical()), secure: peer.is_some_and(|peer| peer.secure) }
}

async fn pass_on(app: &App, place: Place, mut request: Request, form: Form) -> Result<Response, Problem> {
    app.door.hide_credentials(request.headers_mut());
    let sender = peer(&request);
    Ok(app.gateway.forward(&place, request, &sender, &form).await?.map(Body::new))
}

/// A ticket, and the same target without it.
pub(crate) fn ticket(uri: &Uri) -> Option<(String, String)> {
    let is_ticket = |pair: &&str| pair.split('=').next() == Some(TICKET);
    let query = uri.query()?;
    let ticket = query.split('&').find(is_ticket)?.split_once('=')?.1.to_owned();
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_ticket(pair)).collect();
    let rest = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    // Two slashes at the beginning would be the name of another host.
    Some((ticket, format!("/{}{rest}", uri.path().trim_start_matches('/'))))
}

fn see_other(target: &str, cookie: Option<HeaderValue>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.extend(HeaderValue::try_from(target).ok().map(|target| (header::LOCATION, target)));
    headers.extend(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_taken_out_of_addresses() {
        for (uri, wanted) in [
            ("/?wakeful_token=abc", Some(("abc", "/"))),
            ("/a/b?x=1&wakeful_token=abc&y=2", Some(("abc", "/a/b?x=1&y=2"))),
            ("//evil.example/?wakeful_token=abc", Some(("abc", "/evil.example/"))),
            ("/?wakeful_tokens=abc", None),
            ("/?wakeful_token", None),
            ("/", None),
        ] {
            let found = ticket(&uri.parse().unwrap());
            assert_eq!(found.as_ref().map(|(ticket, rest)| (ticket.as_str(), rest.as_str())), wanted, "{uri}");
        }
    }

    #[test]
    fn cookies_are_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; wakeful_preview=x=y; b=2"));
        headers.append(header::COOKIE, HeaderValue::from_static("wakeful_preview=z; xwakeful_preview=no"));
        assert_eq!(cookies(&headers).collect::<Vec<_>>(), ["x=y", "z"]);
    }

    #[test]
    fn hosts_decide() {
        let config = ApiConfig { domain: "localhost".into(), ..ApiConfig::default() };
        let request = |uri: &str, host: &str| {
            http::Request::builder().uri(uri).header(header::HOST, host).body(Body::empty()).unwrap()
        };
        let preview = "3000-k3v7q2m5x6a4b2c7d5ef.localhost:8080";
        assert!(is_for(&config, &request("/v1/info", preview)));
        assert!(is_for(&config, &request(&format!("http://{preview}/v1/info"), "localhost")));
        assert!(is_for(&config, &request("/", "3000-x.localhost")));
        assert!(!is_for(&config, &request("/", "localhost:8080")));
    }
}

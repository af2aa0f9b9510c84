//! Who may: nobody known, name and password, tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wakeful_oci::{Credentials, Error, Settings};

use crate::House;
use crate::front::{Act, Front, certificate, empty, text};
use crate::layout::Layout;
use crate::registry::{PASSWORD, Registry, USER};

/// `alice:open sesame`.
const BASIC: &str = "Basic YWxpY2U6b3BlbiBzZXNhbWU=";

fn credentials(password: &str) -> Settings {
    let credentials = Credentials { username: USER.into(), password: password.into() };
    Settings { credentials: Some(credentials), ..Settings::default() }
}

#[tokio::test]
async fn name_and_password() {
    let registry = Registry::with_password();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let house = House::new();
    let error = house.pull(&reference).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { detail: "it needs credentials", .. }), "{error}");
    assert_eq!(error.kind(), wakeful_model::Kind::Unauthenticated);
    let error = house.pull_with(&reference, &credentials("wrong")).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { detail: "it refuses the credentials", .. }), "{error}");
    assert!(house.blobs().is_empty());
    let image = house.pull_with(&reference, &credentials(PASSWORD)).await.unwrap();
    house.unpack(&image).unwrap();
    assert!(matches!(house.pull(&reference).await, Err(Error::Unauthorized { .. })), "also when everything is here");
}

#[tokio::test]
async fn from_dockers_file() {
    let registry = Registry::with_password();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let house = House::new();
    let file = house.directory.path().join("config.json");
    let settings = Settings { docker_config: Some(file.clone()), ..Settings::default() };
    let auth = &BASIC["Basic ".len()..];
    for key in [registry.host().to_owned(), format!("https://{}/v1/", registry.host())] {
        std::fs::write(&file, format!(r#"{{"auths": {{"{key}": {{"auth": "{auth}"}}}}}}"#)).unwrap();
        house.pull_with(&reference, &settings).await.unwrap();
    }
    for (content, wanted) in [
        (format!(r#"{{"credHelpers": {{"{}": "x"}}}}"#, registry.host()), "helper program"),
        (r#"{"auths": {"other.invalid": {"auth": "dTpw"}}}"#.into(), "needs credentials"),
        (format!(r#"{{"auths": {{"{}": {{"identitytoken": "x"}}}}}}"#, registry.host()), "identity token"),
        ("nonsense".into(), "not understood"),
    ] {
        std::fs::write(&file, content).unwrap();
        let error = house.pull_with(&reference, &settings).await.unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[tokio::test]
async fn over_tls() {
    let (certificate, key) = certificate();
    let registry = Registry::with_tls(&certificate, &key);
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let house = House::new();
    let error = house.pull_with(&reference, &credentials(PASSWORD)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "an unknown authority, and no way around it: {error}");
    let file = house.directory.path().join("authority.pem");
    std::fs::write(&file, certificate).unwrap();
    let settings = Settings { authority: Some(file), ..credentials(PASSWORD) };
    let image = house.pull_with(&reference, &settings).await.unwrap();
    house.unpack(&image).unwrap();
}

/// A registry that wants a token, each of which is good for so many requests. Whoever is without a password gets none if one
/// is needed.
async fn with_tokens(registry: &Registry, good_for: usize, password: bool) -> (Front, Arc<AtomicUsize>) {
    let given = Arc::new(AtomicUsize::new(0));
    let (tokens, uses) = (Arc::clone(&given), AtomicUsize::new(0));
    let front = Front::start(registry.host(), move |seen| {
        if seen.path == "/token" {
            assert_eq!(seen.query, "service=here&scope=repository%3Ateam%2Fapp%3Apull");
            if password && seen.header("authorization") != Some(BASIC) {
                return empty(401, &[]);
            }
            let number = tokens.fetch_add(1, Ordering::SeqCst) + 1;
            uses.store(0, Ordering::SeqCst);
            return text(200, format!(r#"{{"token": "t{number}", "expires_in": 60}}"#));
        }
        let wanted = format!("Bearer t{}", tokens.load(Ordering::SeqCst));
        let known = seen.header("authorization") == Some(wanted.as_str());
        if known && uses.fetch_add(1, Ordering::SeqCst) < good_for {
            return Act::Forward;
        }
        let realm = format!("http://{}/token", seen.header("host").unwrap());
        let challenge = format!(r#"Bearer realm="{realm}",service="here",scope="repository:team/app:pull""#);
        empty(401, &[("www-authenticate", &challenge)])
    })
    .await;
    (front, given)
}

#[tokio::test]
async fn a_token_for_anybody() {
    let registry = Registry::start();
    Layout::usual().push(&registry, "team/app:v1");
    let (front, given) = with_tokens(&registry, 100, false).await;
    let house = House::new();
    let image = house.pull(&format!("{}/team/app:v1", front.host)).await.unwrap();
    house.unpack(&image).unwrap();
    assert_eq!(given.load(Ordering::SeqCst), 1, "one token is enough");
    assert!(front.seen().iter().all(|seen| seen.path != "/token" || seen.header("authorization").is_none()));
}

#[tokio::test]
async fn a_token_for_those_who_are_known_and_a_new_one_when_it_is_old() {
    let registry = Registry::start();
    Layout::usual().push(&registry, "team/app:v1");
    let (front, given) = with_tokens(&registry, 1, true).await;
    let name = format!("{}/team/app:v1", front.host);
    let house = House::new();
    let error = house.pull(&name).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { detail: "it needs credentials", .. }), "{error}");
    let error = house.pull_with(&name, &credentials("wrong")).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { detail: "it refuses the credentials", .. }), "{error}");
    let settings = Settings { parallel: 1, ..credentials(PASSWORD) };
    house.pull_with(&name, &settings).await.unwrap();
    assert_eq!(given.load(Ordering::SeqCst), 4, "manifest, configuration, two layers");
    let leaked = front.seen().iter().any(|seen| seen.path != "/token" && seen.header("authorization") == Some(BASIC));
    assert!(!leaked, "the password is for the token's giver only");
}

#[tokio::test]
async fn those_who_always_refuse() {
    for (headers, detail) in [
        (vec![("www-authenticate", "Basic realm=\"x\"")], "refuses the credentials"),
        (vec![("www-authenticate", "Negotiate")], "refuses the credentials"),
        (vec![], "refuses the credentials"),
    ] {
        let front = Front::start("127.0.0.1:1", move |_| empty(401, &headers)).await;
        let error = House::new().pull_with(&format!("{}/x", front.host), &credentials("p")).await.unwrap_err();
        assert!(error.to_string().contains(detail), "{error}");
        assert!(front.seen().len() < 6, "it is not asked for ever");
    }
    let front =
        Front::start("127.0.0.1:1", |_| text(403, r#"{"errors":[{"code":"DENIED","message":"not you"}]}"#)).await;
    let error = House::new().pull(&format!("{}/x", front.host)).await.unwrap_err();
    assert!(matches!(&error, Error::Denied { detail, .. } if detail == "not you"), "{error}");
    assert_eq!(error.kind(), wakeful_model::Kind::Denied);
}

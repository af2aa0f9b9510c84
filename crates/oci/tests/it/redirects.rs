//! Registries send their clients to object storage; what may go along and what not.

use wakeful_oci::{Credentials, Error, Settings};

use crate::House;
use crate::front::{Act, Front, Seen, acceptor, certificate, empty};
use crate::layout::Layout;
use crate::registry::{PASSWORD, Registry, USER};

fn known() -> Settings {
    let credentials = Credentials { username: USER.into(), password: PASSWORD.into() };
    Settings { credentials: Some(credentials), ..Settings::default() }
}

/// Sends whoever wants a blob somewhere else, and gives the rest to the registry.
fn blobs_at(base: String) -> impl Fn(&Seen) -> Act + Send + Sync {
    move |seen| {
        if seen.blob() {
            empty(307, &[("location", &format!("{base}{}?signed=secret", seen.path))])
        } else {
            Act::Forward
        }
    }
}

#[tokio::test]
async fn a_password_does_not_go_along() {
    let (registry, open, layout) = (Registry::with_password(), Registry::start(), Layout::usual());
    layout.push(&registry, "team/app:v1");
    layout.push(&open, "team/app:v1");
    let storage = Front::start(open.host(), |_| Act::Forward).await;
    let front = Front::start(registry.host(), blobs_at(format!("http://{}", storage.host))).await;
    let house = House::new();
    let image = house.pull_with(&format!("{}/team/app:v1", front.host), &known()).await.unwrap();
    house.unpack(&image).unwrap();
    assert!(front.seen().iter().any(|seen| seen.header("authorization").is_some()), "the registry has seen it");
    let stored = storage.seen();
    assert!(!stored.is_empty(), "the storage was asked");
    assert!(stored.iter().all(|seen| seen.header("authorization").is_none()), "{stored:?}");
    // A signed address is not for messages.
    let denying = Front::start(open.host(), |_| empty(403, &[])).await;
    let front = Front::start(registry.host(), blobs_at(format!("http://{}", denying.host))).await;
    let error = House::new().pull_with(&format!("{}/team/app:v1", front.host), &known()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 403, .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

#[tokio::test]
async fn a_redirected_download_comes_and_is_continued() {
    let registry = Registry::start();
    let content = crate::layout::noise(2 << 20);
    let layer = crate::layout::Tar::new().file("noise", &content).end();
    let reference = Layout::new().layer(&layer).push(&registry, "large:1");
    let cut = std::sync::atomic::AtomicUsize::new(0);
    let storage = Front::start(registry.host(), move |_| {
        if cut.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1 { Act::Cut(1_200_000) } else { Act::Forward }
    })
    .await;
    let front = Front::start(registry.host(), blobs_at(format!("http://{}", storage.host))).await;
    let house = House::new();
    let image = house.pull(&reference.replace(registry.host(), &front.host)).await.unwrap();
    house.unpack(&image).unwrap();
    let ranges: Vec<_> = storage.seen().iter().filter_map(|seen| seen.header("range").map(str::to_owned)).collect();
    assert!(matches!(&ranges[..], [range] if (1..=1_200_000).contains(&crate::front::start_of(range))), "{ranges:?}");
}

#[tokio::test]
async fn never_from_https_to_http() {
    let registry = Registry::start();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let (certificate, key) = certificate();
    let storage = Front::start(registry.host(), |_| Act::Forward).await;
    let rule = blobs_at(format!("http://{}", storage.host));
    let front = Front::with_tls(acceptor(&certificate, &key), registry.host(), rule).await;
    let house = House::new();
    let file = house.directory.path().join("authority.pem");
    std::fs::write(&file, certificate).unwrap();
    let settings = Settings { authority: Some(file), insecure: vec![storage.host.clone()], ..known() };
    let error = house.pull_with(&reference.replace(registry.host(), &front.host), &settings).await.unwrap_err();
    assert!(matches!(&error, Error::Redirect { detail, .. } if detail.contains("https to http")), "{error}");
    assert!(storage.seen().is_empty());
    assert!(house.blobs().is_empty(), "nothing came, and nothing is left");
}

#[tokio::test]
async fn a_token_is_not_asked_for_without_tls() {
    let (certificate, key) = certificate();
    let giver = Front::start("127.0.0.1:1", |_| empty(500, &[])).await;
    let challenge = format!(r#"Bearer realm="http://{}/token",service="x""#, giver.host);
    let rule = move |_: &Seen| empty(401, &[("www-authenticate", &challenge)]);
    let front = Front::with_tls(acceptor(&certificate, &key), "127.0.0.1:1", rule).await;
    let house = House::new();
    let file = house.directory.path().join("authority.pem");
    std::fs::write(&file, certificate).unwrap();
    let settings = Settings { authority: Some(file), ..known() };
    let error = house.pull_with(&format!("{}/x", front.host), &settings).await.unwrap_err();
    assert!(matches!(error, Error::Redirect { .. }), "{error}");
    assert!(giver.seen().is_empty(), "nobody was asked in the clear");
}

#[tokio::test]
async fn not_for_ever_and_not_anywhere() {
    let registry = Registry::start();
    Layout::usual().push(&registry, "team/app:v1");
    for (to, wanted) in [
        ("", "too many redirects"),
        ("http://storage.invalid", "another host without TLS"),
        ("file://x", "leads to \"file\""),
        ("http://user:word@127.0.0.1:1", "carries a password"),
    ] {
        let front = Front::start(registry.host(), blobs_at(to.to_owned())).await;
        let error = House::new().pull(&format!("{}/team/app:v1", front.host)).await.unwrap_err();
        assert!(matches!(error, Error::Redirect { .. }), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
        assert!(front.blob_requests() <= 6);
    }
    let front = Front::start(registry.host(), |seen| if seen.blob() { empty(302, &[]) } else { Act::Forward }).await;
    let error = House::new().pull(&format!("{}/team/app:v1", front.host)).await.unwrap_err();
    assert!(error.to_string().contains("does not say where"), "{error}");
}

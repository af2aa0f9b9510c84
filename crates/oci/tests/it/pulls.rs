//! Pulls: what comes, what is kept, what breaks and goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use wakeful_oci::{Digest, Error, ImageLimits, Phase, Settings};

use crate::front::{Act, Front, empty, start_of, text};
use crate::layout::{Layout, Tar, noise};
use crate::registry::Registry;
use crate::{House, Told};

#[tokio::test]
async fn everything_comes_and_the_second_time_from_the_cache() {
    let registry = Registry::start();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let front = Front::start(registry.host(), |_| Act::Forward).await;
    let reference = reference.replace(registry.host(), &front.host);
    let house = House::new();
    let told = Told::default();
    let image = house.pull_told(&reference, &Settings::default(), &told).await.unwrap();
    assert_eq!(image.reference, format!("{reference}@{}", image.digest));
    assert_eq!(image.layers.len(), 2);
    assert_eq!(image.config.user.as_deref(), Some("app"));
    assert_eq!(image.config.workdir.as_deref(), Some("/srv"));
    assert_eq!(image.config.entrypoint, ["/start"]);
    assert_eq!(image.config.cmd, ["--now"]);
    assert!(image.config.env.contains(&("GREETING".into(), "hello".into())));
    assert_eq!(image.config.exposed_ports, ["80/tcp"]);
    assert_eq!((image.config.os.as_str(), image.config.architecture.as_str()), ("linux", "amd64"));
    {
        let events = told.0.lock().unwrap();
        for number in 1..=2 {
            let size = image.layers[number - 1].size;
            assert!(events.contains(&(Phase::Pull, number, 2, size, size, false)), "{events:?}");
        }
    }
    house.unpack(&image).unwrap();
    assert_eq!((house.text("etc/name"), house.text("only-below")), ("upper".into(), "1".into()));
    assert_eq!(std::fs::read_link(house.root().join("link")).unwrap().to_str(), Some("etc/name"));
    assert_eq!((house.blobs().len(), house.partials()), (3, 0));

    let before = front.blob_requests();
    assert_eq!(before, 3, "configuration and two layers");
    let told = Told::default();
    let again = house.pull_told(&reference, &Settings::default(), &told).await.unwrap();
    assert_eq!(again, image);
    assert_eq!(front.blob_requests(), before, "everything was in the cache");
    assert!(told.0.lock().unwrap().iter().all(|event| event.5));

    let by_digest = format!("{}/team/app@{}", front.host, image.digest);
    assert_eq!(house.pull(&by_digest).await.unwrap().layers, image.layers);
}

#[tokio::test]
async fn docker_manifests_and_default_registries() {
    let registry = Registry::start();
    let layout = Layout::usual();
    layout.push_with(&registry, "library/app:v1", &["--format", "v2s2"]);
    let house = House::new();
    let settings = Settings { default_registry: Some(format!("{}/library", registry.host())), ..Settings::default() };
    let image = house.pull_with("app:v1", &settings).await.unwrap();
    house.unpack(&image).unwrap();
    assert_eq!(house.text("etc/name"), "upper");
    let aliases = [("images.invalid".to_owned(), registry.host().to_owned())].into();
    let settings = Settings { aliases, ..Settings::default() };
    let alias = house.pull_with("images.invalid/library/app:v1", &settings).await.unwrap();
    assert_eq!(alias.digest, image.digest);
    assert!(alias.reference.starts_with("images.invalid/"));
}

#[tokio::test]
async fn what_is_missing() {
    let registry = Registry::start();
    Layout::usual().push(&registry, "team/app:v1");
    let house = House::new();
    let error = house.pull(&format!("{}/team/app:v2", registry.host())).await.unwrap_err();
    assert!(matches!(&error, Error::NoVersion { version, .. } if version == "v2"), "{error}");
    assert_eq!(error.kind(), wakeful_model::Kind::NotFound);
    let error = house.pull(&format!("{}/team/other:v1", registry.host())).await.unwrap_err();
    assert!(matches!(error, Error::NoRepository { .. }), "{error}");
    let nothing = Digest::of(b"nothing");
    let error = house.pull(&format!("{}/team/app@{nothing}", registry.host())).await.unwrap_err();
    assert!(matches!(error, Error::NoVersion { .. }), "{error}");
    assert!(house.blobs().is_empty());
}

#[tokio::test]
async fn nobody_there() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = House::new().pull(&format!("{free}/x")).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(error.kind(), wakeful_model::Kind::Unavailable);
    let error = House::new().pull("no-such-registry.invalid/x").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_silent_registry_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = silent.local_addr().unwrap();
    let settings = Settings { silence: Duration::from_millis(100), ..Settings::default() };
    let error = House::new().pull_with(&format!("{host}/x"), &settings).await.unwrap_err();
    assert!(error.to_string().contains("in time"), "{error}");
}

/// Cuts the first answer with a layer in it, and has more than one piece to lose.
fn large() -> (Layout, usize) {
    let content = noise(3 << 20);
    (Layout::new().layer(&Tar::new().file("noise", &content).end()), content.len())
}

#[tokio::test]
async fn a_cut_download_goes_on_where_it_was() {
    let registry = Registry::start();
    let (layout, _) = large();
    let reference = layout.push(&registry, "large:1");
    let cuts = AtomicUsize::new(0);
    let front = Front::start(registry.host(), move |seen| {
        let first = seen.blob() && seen.header("range").is_none() && cuts.fetch_add(1, Ordering::SeqCst) == 1;
        if first { Act::Cut(1_500_000) } else { Act::Forward }
    })
    .await;
    let house = House::new();
    let image = house.pull(&reference.replace(registry.host(), &front.host)).await.unwrap();
    let ranges: Vec<_> = front.seen().iter().filter_map(|seen| seen.header("range").map(str::to_owned)).collect();
    assert!(matches!(&ranges[..], [range] if (1..=1_500_000).contains(&start_of(range))), "{ranges:?}");
    assert_eq!(front.blob_requests(), 3, "configuration, layer, the rest of the layer");
    house.unpack(&image).unwrap();
    assert_eq!(std::fs::read(house.root().join("noise")).unwrap(), noise(3 << 20));
    assert_eq!(house.partials(), 0);
}

#[tokio::test]
async fn another_process_continues_and_a_torn_file_is_fetched_anew() {
    let registry = Registry::start();
    let (layout, _) = large();
    let reference = layout.push(&registry, "large:1");
    let whole = House::new().pull(&reference).await.unwrap();
    let stored = std::fs::read(registry.blob(whole.layers[0].digest.hex())).unwrap();
    for (left, ranges, requests) in [(&stored[..1_000_000], 1, 2), (&[7u8; 1_000_000][..], 1, 3)] {
        let front = Front::start(registry.host(), |_| Act::Forward).await;
        let house = House::new();
        let partial = format!("cache/sha256/{}.partial", whole.layers[0].digest.hex());
        std::fs::write(house.directory.path().join(partial), left).unwrap();
        let image = house.pull(&reference.replace(registry.host(), &front.host)).await.unwrap();
        house.unpack(&image).unwrap();
        assert_eq!(front.seen().iter().filter(|seen| seen.header("range") == Some("bytes=1000000-")).count(), ranges);
        assert_eq!(front.blob_requests(), requests);
        assert_eq!(house.partials(), 0);
    }
}

#[tokio::test]
async fn a_server_without_ranges_begins_again() {
    let registry = Registry::start();
    let (layout, _) = large();
    let reference = layout.push(&registry, "large:1");
    let cuts = AtomicUsize::new(0);
    let front = Front::start(registry.host(), move |seen| match seen.header("range") {
        Some(_) => Act::Whole,
        None if seen.blob() && cuts.fetch_add(1, Ordering::SeqCst) == 1 => Act::Cut(2_000_000),
        None => Act::Forward,
    })
    .await;
    let house = House::new();
    let image = house.pull(&reference.replace(registry.host(), &front.host)).await.unwrap();
    house.unpack(&image).unwrap();
    assert_eq!(front.blob_requests(), 3);
}

#[tokio::test]
async fn a_download_that_always_breaks_ends_and_leaves_its_part() {
    let registry = Registry::start();
    let (layout, _) = large();
    let reference = layout.push(&registry, "large:1");
    let large = |seen: &crate::front::Seen| seen.headers.contains_key("range");
    let first = AtomicUsize::new(0);
    let front = Front::start(registry.host(), move |seen| {
        if large(seen) {
            empty(503, &[])
        } else if seen.blob() && first.fetch_add(1, Ordering::SeqCst) == 1 {
            Act::Cut(100_000)
        } else {
            Act::Forward
        }
    })
    .await;
    let house = House::new();
    let error = house.pull(&reference.replace(registry.host(), &front.host)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 503, .. }), "{error}");
    assert_eq!(house.partials(), 1);
    house.pull(&reference).await.unwrap();
    assert_eq!(house.partials(), 0);
}

#[tokio::test]
async fn dropping_it_stops_it() {
    let registry = Registry::start();
    let (layout, _) = large();
    let reference = layout.push(&registry, "large:1");
    let front = Front::start(registry.host(), |_| Act::Forward).await;
    let house = House::new();
    let told = Told::default();
    let name = reference.replace(registry.host(), &front.host);
    {
        let settings = Settings::default();
        let pull = house.pull_told(&name, &settings, &told);
        let begun = async {
            while told.0.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { biased; () = begun => {}, _ = pull => {} }
    }
    let image = house.pull(&name).await.unwrap();
    house.unpack(&image).unwrap();
    assert_eq!(house.partials(), 0);
}

#[tokio::test]
async fn two_at_once_fetch_each_part_once() {
    let registry = Registry::start();
    let (layout, _) = large();
    let reference = layout.push(&registry, "large:1");
    let front = Front::start(registry.host(), |_| Act::Forward).await;
    let house = House::new();
    let name = reference.replace(registry.host(), &front.host);
    let (one, two) = tokio::join!(house.pull(&name), house.pull(&name));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(front.blob_requests(), 2);
}

#[tokio::test]
async fn a_corrupted_layer_is_noticed_and_not_kept() {
    let registry = Registry::start();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let good = House::new().pull(&reference).await.unwrap();
    let layer = &good.layers[1];
    let path = registry.blob(layer.digest.hex());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let house = House::new();
    let error = house.pull(&reference).await.unwrap_err();
    let Error::WrongDigest { expected, got, what, .. } = &error else { panic!("{error}") };
    assert_eq!((expected, got), (&layer.digest, &Digest::of(&bytes)));
    assert!(what.starts_with("layer 2 of 2"), "{what}");
    // The other layer may be here, or a part of it: its download ends with the pull.
    assert!(house.blobs().iter().all(|name| !name.starts_with(layer.digest.hex())), "{:?}", house.blobs());
}

#[tokio::test]
async fn a_layer_of_another_length_is_noticed() {
    let registry = Registry::start();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let changes: [fn(Vec<u8>) -> Vec<u8>; 2] = [
        |mut bytes| {
            bytes.push(0);
            bytes
        },
        |mut bytes| {
            bytes.pop();
            bytes
        },
    ];
    for change in changes {
        let front =
            Front::start(registry.host(), move |seen| if seen.blob() { Act::Change(change) } else { Act::Forward })
                .await;
        let house = House::new();
        let error = house.pull(&reference.replace(registry.host(), &front.host)).await.unwrap_err();
        assert!(matches!(error, Error::WrongSize { .. }), "{error}");
        assert!(house.blobs().is_empty(), "{:?}", house.blobs());
    }
}

#[tokio::test]
async fn a_changed_manifest_is_noticed() {
    let registry = Registry::start();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let image = House::new().pull(&reference).await.unwrap();
    let front = Front::start(registry.host(), |seen| {
        let spoil = |mut bytes: Vec<u8>| {
            bytes.push(b' ');
            bytes
        };
        if seen.path.contains("/manifests/") { Act::Change(spoil) } else { Act::Forward }
    })
    .await;
    for version in [":v1".to_owned(), format!("@{}", image.digest)] {
        let house = House::new();
        let error = house.pull(&format!("{}/team/app{version}", front.host)).await.unwrap_err();
        assert!(matches!(&error, Error::WrongDigest { expected, .. } if *expected == image.digest), "{error}");
        assert!(house.blobs().is_empty());
    }
}

#[tokio::test]
async fn too_much_is_refused_before_it_is_fetched() {
    let registry = Registry::start();
    let (layout, _) = large();
    let reference = layout.push(&registry, "large:1");
    let front = Front::start(registry.host(), |_| Act::Forward).await;
    let name = reference.replace(registry.host(), &front.host);
    let house = House::new();
    for limits in [
        ImageLimits { image_bytes: 1 << 20, ..ImageLimits::default() },
        ImageLimits { layers: 0, ..ImageLimits::default() },
    ] {
        let error = house.pull_with(&name, &Settings { limits, ..Settings::default() }).await.unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        assert_eq!(error.kind(), wakeful_model::Kind::Exhausted);
    }
    assert_eq!(front.blob_requests(), 0);
    let endless = Front::start(registry.host(), |seen| {
        if seen.path.contains("/manifests/") { text(200, vec![b' '; 5 << 20]) } else { Act::Forward }
    })
    .await;
    let error = house.pull(&reference.replace(registry.host(), &endless.host)).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

/// Puts a manifest into the registry by hand.
async fn put(registry: &Registry, name: &str, version: &str, media_type: &str, manifest: &serde_json::Value) -> Digest {
    let body = manifest.to_string();
    let url = format!("http://{}/v2/{name}/manifests/{version}", registry.host());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let sent = client.put(url).header("content-type", media_type).body(body.clone()).send().await.unwrap();
    assert!(sent.status().is_success(), "{}", sent.text().await.unwrap());
    Digest::of(body.as_bytes())
}

#[tokio::test]
async fn of_several_platforms_ours_is_taken() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let registry = Registry::start();
    let layer = |text: &str| Tar::new().file("which", text.as_bytes()).end();
    let ours = Layout::new().layer(&layer("amd64")).push(&registry, "multi:ours");
    let other = Layout::new().layer(&layer("arm64")).config(&["--architecture=arm64"]).push(&registry, "multi:other");
    let house = House::new();
    let image = house.pull(&ours).await.unwrap();

    let error = house.pull(&other).await.unwrap_err();
    let Error::WrongPlatform { found, .. } = &error else { panic!("{error}") };
    assert_eq!(found, &["linux/arm64"]);

    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let fetch = |tag: &'static str| {
        let url = format!("http://{}/v2/multi/manifests/{tag}", registry.host());
        let client = client.clone();
        async move { client.get(url).header("accept", MANIFEST).send().await.unwrap().bytes().await.unwrap() }
    };
    let (arm, amd) = (fetch("other").await, fetch("ours").await);
    let entry = |bytes: &[u8], architecture: &str| {
        json!({"mediaType": MANIFEST, "digest": Digest::of(bytes), "size": bytes.len(),
            "platform": {"os": "linux", "architecture": architecture}})
    };
    let both =
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry(&arm, "arm64"), entry(&amd, "amd64")]});
    let digest = put(&registry, "multi", "both", INDEX, &both).await;
    for name in [format!("{}/multi:both", registry.host()), format!("{}/multi@{digest}", registry.host())] {
        let found = house.pull(&name).await.unwrap();
        assert_eq!(found.digest, image.digest);
        house.unpack(&found).unwrap();
        assert_eq!(house.text("which"), "amd64");
    }
    let neither =
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry(&arm, "arm64"), entry(&arm, "s390x")]});
    put(&registry, "multi", "neither", INDEX, &neither).await;
    let error = house.pull(&format!("{}/multi:neither", registry.host())).await.unwrap_err();
    assert!(error.to_string().ends_with("is not made for linux/amd64, only for linux/arm64, linux/s390x"), "{error}");
    let lies = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry(&arm, "amd64")]});
    put(&registry, "multi", "lies", INDEX, &lies).await;
    let error = house.pull(&format!("{}/multi:lies", registry.host())).await.unwrap_err();
    assert!(matches!(error, Error::WrongPlatform { .. }), "{error}");
}

#[tokio::test]
async fn kinds_that_are_none_of_ours() {
    let registry = Registry::start();
    Layout::usual().push(&registry, "team/app:v1");
    for (body, wanted) in [
        (json!({"schemaVersion": 1, "fsLayers": []}), "schema 1"),
        (json!({"schemaVersion": 2, "mediaType": "application/x-other"}), "application/x-other"),
        (json!({"schemaVersion": 2}), "neither"),
    ] {
        let front = Front::start(registry.host(), move |seen| {
            if seen.path.contains("/manifests/") { text(200, body.to_string()) } else { Act::Forward }
        })
        .await;
        let error = House::new().pull(&format!("{}/team/app:v1", front.host)).await.unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
        assert_eq!(error.kind(), wakeful_model::Kind::Invalid);
    }
}

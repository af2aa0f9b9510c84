//! What an image consists of: image manifests and indexes, of OCI and of Docker (schema 2). Pure; the documents come from
//! strangers and are at most [`DOCUMENT_MAX`] long.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::{Fault, tame};
use crate::{Digest, Platform};

/// No manifest or configuration is longer.
pub(crate) const DOCUMENT_MAX: u64 = 4 << 20;

/// What is asked for, in the order of liking.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const IMAGES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYERS: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// Of one image.
    Image {
        /// What it is started with.
        config: Descriptor,
        /// Its content, lowest first.
        layers: Vec<Descriptor>,
    },
    /// Of the same image for several platforms.
    Index(Vec<Entry>),
}

/// A piece of content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its name.
    pub digest: Digest,
    /// Its length.
    pub size: u64,
}

/// One image of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its manifest.
    pub manifest: Descriptor,
    /// For whom, if that is said.
    pub platform: Option<Platform>,
    /// What it is called in an archive.
    pub names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawManifest {
    schema_version: u64,
    media_type: Option<String>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    urls: Option<Vec<String>>,
    platform: Option<RawPlatform>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct RawPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Image,
    Index,
}

/// Reads a manifest. The type that the registry gave and the one in the document must agree, and a document that could be
/// read as both is refused: two readers must never see two images in it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_manifest(media_type: Option<&str>, bytes: &[u8]) -> Result<Manifest, Fault> {
    let malformed = |detail: String| Fault::Malformed(format!("its manifest {detail}"));
    if bytes.len() as u64 > DOCUMENT_MAX {
        return Err(malformed("is too long".into()));
    }
    let outside = media_type.map(essence).map_or(Ok(None), |essence| match essence {
        // What servers say that do not know better.
        "" | "application/json" | "application/octet-stream" | "text/plain" => Ok(None),
        other => class(other).map(Some),
    })?;
    let raw: RawManifest = serde_json::from_slice(bytes)
        .map_err(|error| malformed(format!("is not understood: {}", tame(&error.to_string()))))?;
    match raw.schema_version {
        1 => return Err(Fault::Schema1),
        2 => {}
        other => return Err(malformed(format!("has the unknown schema version {other}"))),
    }
    let inside = raw.media_type.as_deref().filter(|text| !text.is_empty()).map(class).transpose()?;
    if let (Some(outside), Some(inside)) = (outside, inside)
        && outside != inside
    {
        return Err(malformed("is of another type than the registry says".into()));
    }
    let said = inside.or(outside);
    match (raw.config, raw.layers, raw.manifests) {
        (Some(config), Some(layers), None) if said != Some(Class::Index) => Ok(Manifest::Image {
            config: config.config()?,
            layers: layers.into_iter().map(RawDescriptor::layer).collect::<Result<_, _>>()?,
        }),
        (None, None, Some(manifests)) if said != Some(Class::Image) => Ok(Manifest::Index(
            manifests.into_iter().filter_map(|entry| entry.entry().transpose()).collect::<Result<_, _>>()?,
        )),
        _ => Err(malformed("is neither that of an image nor an index".into())),
    }
}

fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

fn class(media_type: &str) -> Result<Class, Fault> {
    if IMAGES.contains(&media_type) {
        Ok(Class::Image)
    } else if INDEXES.contains(&media_type) {
        Ok(Class::Index)
    } else if media_type.starts_with("application/vnd.docker.distribution.manifest.v1+") {
        Err(Fault::Schema1)
    } else {
        Err(Fault::MediaType(tame(media_type)))
    }
}

impl RawDescriptor {
    fn plain(&self) -> Result<Descriptor, Fault> {
        if self.urls.as_ref().is_some_and(|urls| !urls.is_empty()) {
            return Err(Fault::Foreign);
        }
        let digest =
            self.digest.parse().map_err(|error| Fault::Malformed(format!("its manifest names a part by {error}")))?;
        Ok(Descriptor { digest, size: self.size })
    }

    fn layer(self) -> Result<Descriptor, Fault> {
        let media_type = essence(&self.media_type);
        if media_type.contains(".foreign.") || media_type.contains(".nondistributable.") {
            return Err(Fault::Foreign);
        }
        if !LAYERS.contains(&media_type) {
            return Err(Fault::MediaType(tame(media_type)));
        }
        self.plain()
    }

    fn config(self) -> Result<Descriptor, Fault> {
        let descriptor = self.plain()?;
        // An artifact of some other kind (a chart, a signature) has its own.
        if !CONFIGS.contains(&essence(&self.media_type)) {
            return Err(Fault::MediaType(tame(&self.media_type)));
        }
        if descriptor.size > DOCUMENT_MAX {
            return Err(Fault::Malformed("its configuration is too long".into()));
        }
        Ok(descriptor)
    }

    /// `None` for what an index may hold beside images.
    fn entry(self) -> Result<Option<Entry>, Fault> {
        if !self.media_type.is_empty() && class(essence(&self.media_type)).is_err() {
            return Ok(None);
        }
        let platform = self
            .platform
            .as_ref()
            .filter(|platform| !(platform.os.is_empty() && platform.architecture.is_empty()))
            .map(|platform| Platform { os: tame(&platform.os), architecture: tame(&platform.architecture) });
        let name = |key| self.annotations.as_ref().and_then(|all| all.get(key)).filter(|name| !name.is_empty());
        let names = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
        let names = names.into_iter().filter_map(|key| name(key).map(|name| tame(name))).collect();
        Ok(Some(Entry { manifest: self.plain()?, platform, names }))
    }
}

/// The one for this platform. Variants are not looked at: there is one amd64 that everything here can run.
///
/// # Errors
/// What there is instead.
pub(crate) fn choose<'a>(entries: &'a [Entry], wanted: &Platform) -> Result<&'a Entry, Vec<String>> {
    if let Some(entry) = entries.iter().find(|entry| entry.platform.as_ref() == Some(wanted)) {
        return Ok(entry);
    }
    // The configuration of a lone image says what it is for.
    if let [entry @ Entry { platform: None, .. }] = entries {
        return Ok(entry);
    }
    let mut found: Vec<String> = entries
        .iter()
        // Attestations are entries for nobody.
        .filter(|entry| entry.platform.as_ref().is_none_or(|platform| platform.os != "unknown"))
        .map(|entry| entry.platform.as_ref().map_or_else(|| "an unnamed platform".into(), ToString::to_string))
        .take(32)
        .collect();
    found.sort();
    found.dedup();
    if found.is_empty() {
        found.push("nothing".into());
    }
    Err(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn descriptor(media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": Digest::of(media_type.as_bytes()), "size": 7})
    }

    fn image() -> Value {
        json!({
            "schemaVersion": 2, "mediaType": IMAGES[0], "config": descriptor(CONFIGS[0]),
            "layers": LAYERS.map(descriptor), "unknown": [1]
        })
    }

    fn parse(media_type: Option<&str>, document: &Value) -> Result<Manifest, Fault> {
        parse_manifest(media_type, document.to_string().as_bytes())
    }

    #[test]
    fn images_and_indexes() {
        for media_type in
            [None, Some("application/json"), Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8")]
        {
            assert!(matches!(parse(media_type, &image()), Ok(Manifest::Image { layers, .. }) if layers.len() == 6));
        }
        let mut amd64 = descriptor(IMAGES[1]);
        amd64["platform"] = json!({"os": "linux", "architecture": "amd64", "variant": "v2"});
        let mut arm64 = descriptor(IMAGES[0]);
        arm64["platform"] = json!({"os": "linux", "architecture": "arm64"});
        let mut noise = descriptor(IMAGES[0]);
        noise["platform"] = json!({"os": "unknown", "architecture": "unknown"});
        let both = json!({"schemaVersion": 2, "manifests": [arm64, amd64, noise, descriptor("application/x-chart")]});
        let Ok(Manifest::Index(entries)) = parse(Some(INDEXES[1]), &both) else { panic!() };
        assert_eq!(entries.len(), 3);
        let chosen = choose(&entries, &Platform::default()).unwrap();
        assert_eq!(chosen.manifest.digest, Digest::of(IMAGES[1].as_bytes()));
        let other = Platform { os: "linux".into(), architecture: "s390x".into() };
        assert_eq!(choose(&entries, &other), Err(vec!["linux/amd64".into(), "linux/arm64".into()]));
        assert_eq!(choose(&[], &other), Err(vec!["nothing".into()]));
    }

    #[test]
    fn what_could_be_read_in_two_ways() {
        let mut both = image();
        both["manifests"] = json!([]);
        assert!(matches!(parse(None, &both), Err(Fault::Malformed(_))));
        assert!(matches!(parse(Some(INDEXES[0]), &image()), Err(Fault::Malformed(_))));
        let mut lies = json!({"schemaVersion": 2, "manifests": []});
        lies["mediaType"] = json!(IMAGES[0]);
        assert!(matches!(parse(None, &lies), Err(Fault::Malformed(_))));
        let twice = image().to_string().replacen('{', "{\"layers\": [],", 1);
        assert!(matches!(parse_manifest(None, twice.as_bytes()), Err(Fault::Malformed(_))), "a field given twice");
    }

    #[test]
    fn refusals() {
        assert_eq!(parse(None, &json!({"schemaVersion": 1, "fsLayers": []})), Err(Fault::Schema1));
        let v1 = "application/vnd.docker.distribution.manifest.v1+prettyjws";
        assert_eq!(parse(Some(v1), &json!({})), Err(Fault::Schema1));
        assert!(matches!(parse(Some("text/html"), &image()), Err(Fault::MediaType(_))));
        let with = |edit: &dyn Fn(&mut Value)| {
            let mut document = image();
            edit(&mut document);
            parse(None, &document)
        };
        let foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
        assert_eq!(with(&|d| d["layers"][0]["mediaType"] = json!(foreign)), Err(Fault::Foreign));
        assert_eq!(with(&|d| d["layers"][0]["urls"] = json!(["https://x.invalid"])), Err(Fault::Foreign));
        assert!(matches!(with(&|d| d["layers"][0]["mediaType"] = json!("application/wasm")), Err(Fault::MediaType(_))));
        assert!(matches!(with(&|d| d["config"]["mediaType"] = json!("application/x-chart")), Err(Fault::MediaType(_))));
        assert!(matches!(with(&|d| d["layers"][0]["digest"] = json!("sha512:1")), Err(Fault::Malformed(_))));
        assert!(matches!(with(&|d| d["layers"][0]["size"] = json!(-1)), Err(Fault::Malformed(_))));
        assert!(matches!(with(&|d| d["config"]["size"] = json!(DOCUMENT_MAX + 1)), Err(Fault::Malformed(_))));
        assert!(matches!(with(&|d| d["schemaVersion"] = json!(3)), Err(Fault::Malformed(_))));
        assert!(parse_manifest(None, &vec![b' '; DOCUMENT_MAX as usize + 1]).is_err());
        assert!(parse_manifest(None, "[".repeat(100_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn never_panics(bytes in any::<Vec<u8>>(), media_type in any::<Option<String>>()) {
            let _ = parse_manifest(media_type.as_deref(), &bytes);
        }

        #[test]
        fn nor_with_one_byte_changed(at in 0usize..2000, byte in any::<u8>()) {
            let mut bytes = image().to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse_manifest(None, &bytes);
        }
    }
}

//! An image from a registry: its manifest, its configuration, and its layers side by side into the cache.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::CONTENT_TYPE;

use crate::blob::{Wanted, fetch};
use crate::manifest::{ACCEPT, DOCUMENT_MAX, Descriptor, Manifest, choose};
use crate::registry::{Ask, Document, Registry};
use crate::{
    Cache, Config, Digest, Error, Event, Image, Layer, Phase, Platform, Progress, Reference, Settings, blocking,
    parse_config, parse_manifest,
};

/// Fetches what is not in the cache yet.
///
/// The manifest is asked for every time, also when everything is here: a tag may have moved, and whether somebody may have
/// the image is for the registry to say.
///
/// # Cancel safety
/// Dropping it stops the downloads; what has come is continued next time.
///
/// # Errors
/// Every one but those of archives.
pub async fn pull(
    reference: &Reference,
    settings: &Settings,
    cache: &Cache,
    platform: &Platform,
    progress: &dyn Progress,
) -> Result<Image, Error> {
    let image = reference.to_string();
    let registry = Registry::connect(reference, settings).await?;
    let (digest, config, layers) = resolve(&registry, reference, platform, &image).await?;
    bounded(&image, &config, &layers, settings.limits)?;

    let (config, diff_ids) = configuration(&registry, cache, &image, &config, progress).await?;
    fits(&image, &config, platform)?;
    let layers = paired(&image, layers, diff_ids)?;

    let (count, registry, name) = (layers.len(), &registry, image.as_str());
    let mut seen = BTreeSet::new();
    // The same layer twice in one image is one download.
    let downloads: Vec<_> = layers
        .iter()
        .enumerate()
        .filter(|(_, layer)| seen.insert(&layer.digest))
        .map(|(index, layer)| one(registry, cache, name, (index + 1, count), layer, progress))
        .collect();
    stream::iter(downloads).buffer_unordered(settings.parallel.max(1)).try_collect::<()>().await?;
    Ok(Image { reference: reference.at(&digest), digest, config, layers })
}

/// The manifest of the one image that is meant.
async fn resolve(
    registry: &Registry,
    reference: &Reference,
    platform: &Platform,
    image: &str,
) -> Result<(Digest, Descriptor, Vec<Descriptor>), Error> {
    let (digest, manifest) = manifest(registry, reference.version(), reference.digest(), None, image).await?;
    let (digest, manifest) = match manifest {
        Manifest::Index(entries) => {
            let entry = choose(&entries, platform).map_err(|found| Error::WrongPlatform {
                image: image.into(),
                wanted: platform.to_string(),
                found,
            })?;
            let Descriptor { digest, size } = &entry.manifest;
            self::manifest(registry, digest.as_str(), Some(digest), Some(*size), image).await?
        }
        image => (digest, image),
    };
    match manifest {
        Manifest::Image { config, layers } => Ok((digest, config, layers)),
        Manifest::Index(_) => {
            Err(Error::Malformed { image: image.into(), detail: "its index leads to another index".into() })
        }
    }
}

async fn manifest(
    registry: &Registry,
    version: &str,
    expected: Option<&Digest>,
    size: Option<u64>,
    image: &str,
) -> Result<(Digest, Manifest), Error> {
    const WHAT: &str = "the manifest";
    let ask = Ask { url: registry.url("manifests", version)?, what: WHAT, accept: Some(ACCEPT), from: 0 };
    let Document { bytes, headers } = match registry.document(&ask, DOCUMENT_MAX).await {
        Err(Error::Missing { .. }) => return Err(registry.no_version(version).await),
        other => other?,
    };
    let got = Digest::of(&bytes);
    // Of a tag the registry says itself what it is; a digest of another kind says nothing here.
    let said = headers.get("docker-content-digest").and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(expected) = expected.cloned().or(said)
        && got != expected
    {
        return Err(Error::WrongDigest { image: image.into(), what: WHAT.into(), expected, got });
    }
    if let Some(expected) = size
        && bytes.len() as u64 != expected
    {
        return Err(Error::WrongSize { image: image.into(), what: WHAT.into(), expected, got: bytes.len() as u64 });
    }
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let manifest = parse_manifest(media_type, &bytes).map_err(|fault| fault.of(image))?;
    Ok((got, manifest))
}

/// Said before anything is fetched.
pub(crate) fn bounded(
    image: &str,
    config: &Descriptor,
    layers: &[Descriptor],
    limits: crate::ImageLimits,
) -> Result<(), Error> {
    let too_large = |what: &str, limit, unit| Error::TooLarge { image: image.into(), what: what.into(), limit, unit };
    if layers.len() > limits.layers {
        return Err(too_large("the list of layers", limits.layers as u64, "layers"));
    }
    let sum = layers.iter().fold(config.size, |sum, layer| sum.saturating_add(layer.size));
    if sum > limits.image_bytes {
        return Err(too_large("the content", limits.image_bytes, "bytes"));
    }
    Ok(())
}

/// A lone image says in its configuration what it is for.
pub(crate) fn fits(image: &str, config: &Config, platform: &Platform) -> Result<(), Error> {
    let same = |said: &str, wanted: &str| said.is_empty() || said == wanted;
    if same(&config.os, &platform.os) && same(&config.architecture, &platform.architecture) {
        return Ok(());
    }
    let found = Platform { os: config.os.clone(), architecture: config.architecture.clone() };
    Err(Error::WrongPlatform { image: image.into(), wanted: platform.to_string(), found: vec![found.to_string()] })
}

/// Each layer with what it must be when it is unpacked.
pub(crate) fn paired(image: &str, layers: Vec<Descriptor>, diff_ids: Vec<Digest>) -> Result<Vec<Layer>, Error> {
    if layers.len() != diff_ids.len() {
        let detail = format!("it has {} layers, and its configuration speaks of {}", layers.len(), diff_ids.len());
        return Err(Error::Malformed { image: image.into(), detail });
    }
    let pair = |(Descriptor { digest, size }, diff_id)| Layer { digest, size, diff_id };
    Ok(layers.into_iter().zip(diff_ids).map(pair).collect())
}

async fn configuration(
    registry: &Registry,
    cache: &Cache,
    image: &str,
    blob: &Descriptor,
    progress: &dyn Progress,
) -> Result<(Config, Vec<Digest>), Error> {
    let report = |_, _| stop(image, progress);
    let wanted = Wanted { image, what: "the configuration", blob, report: &report };
    // Twice, since one that is damaged in the cache is found out only when it is read.
    for _ in 0..2 {
        fetch(registry, cache, &wanted).await?;
        let (cache, blob) = (cache.clone(), blob.clone());
        if let Some(bytes) = blocking(move || cache.read(&blob.digest, blob.size)).await? {
            return parse_config(&bytes).map_err(|fault| fault.of(image));
        }
    }
    Err(Error::Missing { image: image.into(), what: wanted.what.into() })
}

fn stop(image: &str, progress: &dyn Progress) -> Result<(), Error> {
    if progress.cancelled() { Err(Error::Cancelled { image: image.into() }) } else { Ok(()) }
}

async fn one(
    registry: &Registry,
    cache: &Cache,
    image: &str,
    (number, count): (usize, usize),
    layer: &Layer,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let report = |done, cached| {
        let digest = layer.digest.short();
        progress.event(Event {
            phase: Phase::Pull,
            layer: number,
            layers: count,
            digest,
            done,
            total: layer.size,
            cached,
        });
        stop(image, progress)
    };
    let what = format!("layer {number} of {count} ({})", layer.digest.short());
    let blob = Descriptor { digest: layer.digest.clone(), size: layer.size };
    fetch(registry, cache, &Wanted { image, what: &what, blob: &blob, report: &report }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_may_run_anywhere() {
        fn sent<T: Send>(_: T) {}
        let directory = tempfile::tempdir().unwrap();
        let (cache, settings) = (Cache::open(directory.path()).unwrap(), Settings::default());
        let reference = Reference::parse("registry.invalid/x", None).unwrap();
        let platform = Platform::default();
        sent(pull(&reference, &settings, &cache, &platform, &()));
    }
}

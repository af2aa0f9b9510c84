//! What `docker save` writes: `manifest.json` with, for each image, the names of its configuration and layers.

use serde::Deserialize;

use super::Archive;
use super::select::{Candidate, select};
use crate::pull::fits;
use crate::{Digest, Error, Image, parse_config};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Option<Vec<String>>,
}

pub(super) fn open(archive: &Archive<'_>, tag: Option<&str>, manifest: &[u8]) -> Result<Image, Error> {
    let entries: Vec<Entry> = serde_json::from_slice(manifest)
        .map_err(|error| archive.damaged(format!("its manifest.json is not understood: {error}")))?;
    let candidates = entries
        .into_iter()
        .map(|entry| Candidate {
            names: entry.repo_tags.iter().flatten().map(|name| crate::error::tame(name)).collect(),
            identity: entry.config.clone(),
            platform: None,
            what: entry,
        })
        .collect();
    let chosen = select(archive.path, candidates, tag, archive.platform)?;
    let entry = chosen.what;
    let config = archive.small(&entry.config)?.ok_or_else(|| archive.missing("the configuration"))?;
    // Docker's own name for an image is the digest of its configuration, which names every layer's content.
    let digest = Digest::of(&config);
    let name = archive.name();
    let (config, diff_ids) = parse_config(&config).map_err(|fault| fault.of(&name))?;
    fits(&name, &config, archive.platform)?;
    let layers: Vec<_> = entry.layers.unwrap_or_default().into_iter().map(|name| (name, None)).collect();
    if layers.len() > archive.limits.layers {
        let limit = archive.limits.layers as u64;
        return Err(Error::TooLarge { image: name, what: "the list of layers".into(), limit, unit: "layers" });
    }
    let layers = archive.layers(&layers, diff_ids)?;
    Ok(Image { reference: chosen.names.into_iter().next().unwrap_or_default(), digest, config, layers })
}

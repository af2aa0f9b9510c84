//! An OCI layout: `index.json`, and everything it leads to under `blobs/sha256`.

use super::Archive;
use super::select::{Candidate, select};
use crate::manifest::{Descriptor, Manifest, choose};
use crate::pull::{bounded, fits};
use crate::{Digest, Error, Image, parse_config, parse_manifest};

pub(super) fn open(archive: &Archive<'_>, tag: Option<&str>, index: &[u8]) -> Result<Image, Error> {
    let name = archive.name();
    let Manifest::Index(entries) = parse_manifest(None, index).map_err(|fault| fault.of(&name))? else {
        return Err(archive.damaged("its index.json is no index"));
    };
    let candidates = entries
        .into_iter()
        .map(|entry| Candidate {
            names: entry.names,
            identity: entry.manifest.digest.as_str().into(),
            platform: entry.platform,
            what: entry.manifest,
        })
        .collect();
    let chosen = select(archive.path, candidates, tag, archive.platform)?;
    let mut digest = chosen.what.digest.clone();
    let mut manifest = read(archive, &chosen.what)?;
    if let Manifest::Index(entries) = &manifest {
        let entry = choose(entries, archive.platform).map_err(|found| Error::WrongPlatform {
            image: name.clone(),
            wanted: archive.platform.to_string(),
            found,
        })?;
        digest = entry.manifest.digest.clone();
        manifest = read(archive, &entry.manifest)?;
    }
    let Manifest::Image { config, layers } = manifest else {
        return Err(archive.damaged("an index in it leads to another index"));
    };
    bounded(&name, &config, &layers, *archive.limits)?;
    let bytes = blob(archive, &config, "the configuration")?;
    let (config, diff_ids) = parse_config(&bytes).map_err(|fault| fault.of(&name))?;
    fits(&name, &config, archive.platform)?;
    let layers: Vec<_> =
        layers.into_iter().map(|layer| (path(&layer.digest), Some((layer.digest, layer.size)))).collect();
    let layers = archive.layers(&layers, diff_ids)?;
    Ok(Image { reference: chosen.names.into_iter().next().unwrap_or_default(), digest, config, layers })
}

fn path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn read(archive: &Archive<'_>, manifest: &Descriptor) -> Result<Manifest, Error> {
    let bytes = blob(archive, manifest, "the manifest")?;
    parse_manifest(None, &bytes).map_err(|fault| fault.of(&archive.name()))
}

fn blob(archive: &Archive<'_>, descriptor: &Descriptor, what: &str) -> Result<Vec<u8>, Error> {
    let bytes = archive.small(&path(&descriptor.digest))?.ok_or_else(|| archive.missing(what))?;
    let got = Digest::of(&bytes);
    if got != descriptor.digest {
        let expected = descriptor.digest.clone();
        return Err(Error::WrongDigest { image: archive.name(), what: what.into(), expected, got });
    }
    Ok(bytes)
}

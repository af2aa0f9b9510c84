//! Images against a real registry (Debian's `docker-registry`), made with `umoci` and carried with `skopeo`.
#![allow(clippy::disallowed_methods, reason = "tests")]

mod archives;
mod auth;
mod front;
mod hostile;
mod layers;
mod layout;
mod pulls;
mod redirects;
mod registry;

use std::path::Path;
use std::sync::Mutex;

use tempfile::TempDir;
use wakeful_oci::{Cache, Error, Event, Image, Phase, Platform, Progress, Reference, Settings, Summary};

/// A cache and a root of one's own.
struct House {
    directory: TempDir,
    cache: Cache,
}

impl House {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("cache")).unwrap();
        Self { directory, cache }
    }

    async fn pull(&self, reference: &str) -> Result<Image, Error> {
        self.pull_with(reference, &Settings::default()).await
    }

    async fn pull_with(&self, reference: &str, settings: &Settings) -> Result<Image, Error> {
        self.pull_told(reference, settings, &()).await
    }

    async fn pull_told(&self, reference: &str, settings: &Settings, progress: &dyn Progress) -> Result<Image, Error> {
        let reference = Reference::parse(reference, settings.default_registry.as_deref()).unwrap();
        wakeful_oci::pull(&reference, settings, &self.cache, &Platform::default(), progress).await
    }

    fn archive(&self, path: &Path, tag: Option<&str>) -> Result<Image, Error> {
        wakeful_oci::open_archive(path, tag, &self.cache, &Settings::default().limits, &Platform::default(), &())
    }

    /// Into `root` below the house.
    fn unpack(&self, image: &Image) -> Result<Summary, Error> {
        self.unpack_within(image, wakeful_tree::Limits { bytes: 64 << 20, entries: 10_000 })
    }

    fn unpack_within(&self, image: &Image, limits: wakeful_tree::Limits) -> Result<Summary, Error> {
        let root = self.root();
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        wakeful_oci::unpack(image, &self.cache, &root, limits, &())
    }

    fn root(&self) -> std::path::PathBuf {
        self.directory.path().join("root")
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Names in the cache.
    fn blobs(&self) -> Vec<String> {
        let directory = self.directory.path().join("cache/sha256");
        let names =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// Nothing half-done may be left.
    fn partials(&self) -> usize {
        self.blobs().iter().filter(|name| name.ends_with(".partial")).count()
    }
}

/// Phase, layer, of how many, bytes done, of how many, and whether it was cached.
type Said = (Phase, usize, usize, u64, u64, bool);

/// Events as they came.
#[derive(Default)]
struct Told(Mutex<Vec<Said>>);

impl Progress for Told {
    fn event(&self, event: Event<'_>) {
        assert_eq!(event.digest.len(), 12);
        self.0.lock().unwrap().push((event.phase, event.layer, event.layers, event.done, event.total, event.cached));
    }
}

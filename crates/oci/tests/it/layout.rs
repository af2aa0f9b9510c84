//! Images made with `umoci`, and carried to registries and archives with `skopeo`. Layers are tar streams of any kind, also
//! such that no tool would write.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::registry::{PASSWORD, Registry, USER};

/// An OCI layout with one image, `image:test`.
pub(crate) struct Layout {
    directory: TempDir,
    layers: std::cell::Cell<usize>,
}

impl Layout {
    pub(crate) fn new() -> Self {
        let layout = Self { directory: tempfile::tempdir().unwrap(), layers: 0.into() };
        run("umoci", &["init", "--layout", &layout.text()]);
        layout.image("test")
    }

    /// One more image in the same layout.
    pub(crate) fn image(self, tag: &str) -> Self {
        run("umoci", &["new", "--image", &format!("{}:{tag}", self.text())]);
        self
    }

    /// Of the small image that most tests want: two layers and some configuration.
    pub(crate) fn usual() -> Self {
        Self::new()
            .layer(&Tar::new().dir("etc").file("etc/name", b"lower").file("only-below", b"1").end())
            .layer(&Tar::new().file("etc/name", b"upper").symlink("link", "etc/name").end())
            .config(&["--config.user=app", "--config.env=GREETING=hello", "--config.workingdir=/srv"])
            .config(&["--config.entrypoint=/start", "--config.cmd=--now", "--config.exposedports=80/tcp"])
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn text(&self) -> String {
        self.path().to_str().unwrap().into()
    }

    fn name(&self) -> String {
        format!("{}:test", self.text())
    }

    pub(crate) fn layer(self, tar: &[u8]) -> Self {
        self.layers.set(self.layers.get() + 1);
        let file = self.directory.path().join(format!("layer-{}.tar", self.layers.get()));
        std::fs::write(&file, tar).unwrap();
        run("umoci", &["raw", "add-layer", "--image", &self.name(), file.to_str().unwrap()]);
        self
    }

    pub(crate) fn config(self, options: &[&str]) -> Self {
        run("umoci", &[&["config", "--image", &self.name()], options].concat());
        self
    }

    pub(crate) fn push(&self, registry: &Registry, name: &str) -> String {
        self.push_with(registry, name, &[])
    }

    /// Gives the whole reference back.
    pub(crate) fn push_with(&self, registry: &Registry, name: &str, options: &[&str]) -> String {
        let reference = format!("{}/{name}", registry.host());
        let credentials = format!("{USER}:{PASSWORD}");
        let usual = ["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "--dest-creds", &credentials];
        let (from, to) = (format!("oci:{}", self.name()), format!("docker://{reference}"));
        run("skopeo", &[&usual[..], options, &[&from, &to]].concat());
        reference
    }

    /// With `skopeo` to some other place.
    pub(crate) fn copy(&self, to: &str, options: &[&str]) {
        let from = format!("oci:{}", self.name());
        run("skopeo", &[&["--insecure-policy", "copy", "--quiet"], options, &[&from, to]].concat());
    }

    /// A copy with other layers: `plain` or `zstd`.
    pub(crate) fn repacked(&self, kind: &str) -> Self {
        let copy = Self { directory: tempfile::tempdir().unwrap(), layers: 0.into() };
        let to = format!("oci:{}", copy.name());
        if kind == "zstd" {
            self.copy(&to, &["--dest-compress-format", "zstd"]);
        } else {
            let between = format!("dir:{}", copy.directory.path().join("between").display());
            self.copy(&between, &["--dest-decompress"]);
            let usual = ["--insecure-policy", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers"];
            run("skopeo", &[&usual[..], &[&between, &to]].concat());
        }
        copy
    }

    /// All of it in one tar archive.
    pub(crate) fn tar(&self, to: &Path, options: &[&str]) {
        let (directory, to) = (self.text(), to.to_str().unwrap());
        run("tar", &[&["--create", "--file", to, "--directory", &directory], options, &["."]].concat());
    }
}

pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{program} is needed (scripts/host-setup docker-registry skopeo umoci): {error}");
    });
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
}

/// A tar stream, entry by entry.
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    fn entry(mut self, name: &str, kind: tar::EntryType, link: &str, data: &[u8]) -> Self {
        let mut header = tar::Header::new_ustar();
        // Not by `set_path`, which refuses what is wanted here.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(if kind.is_dir() { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, data: &[u8]) -> Self {
        self.entry(name, tar::EntryType::Regular, "", data)
    }

    pub(crate) fn dir(self, name: &str) -> Self {
        self.entry(name, tar::EntryType::Directory, "", b"")
    }

    pub(crate) fn symlink(self, name: &str, to: &str) -> Self {
        self.entry(name, tar::EntryType::Symlink, to, b"")
    }

    pub(crate) fn hardlink(self, name: &str, to: &str) -> Self {
        self.entry(name, tar::EntryType::Link, to, b"")
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// Bytes that do not compress.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

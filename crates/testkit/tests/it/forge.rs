//! Images made on the spot: a root file system around Debian's static busybox, pushed to a registry of the test's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub(crate) use crate::registry::Registry;

/// Commands that the image has beside the shell.
const APPLETS: [&str; 34] = [
    "adduser", "basename", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "echo", "env", "expr", "false", "find",
    "grep", "head", "id", "ln", "ls", "mkdir", "mv", "nc", "printf", "pwd", "rm", "sed", "sh", "sleep", "sort", "tar",
    "touch", "true", "uname", "wc",
];

/// Runs a program that must succeed.
pub(crate) fn tool(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| format!("running {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {args:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where images are made.
pub(crate) struct Forge {
    dir: tempfile::TempDir,
}

impl Forge {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { dir: tempfile::tempdir()? })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A directory with these files; a name that ends in `/` is a directory.
    pub(crate) fn tree(&self, name: &str, files: &[(&str, &str)]) -> Result<PathBuf> {
        let root = self.path(name);
        std::fs::create_dir_all(&root)?;
        for (file, text) in files {
            let path = root.join(file);
            if file.ends_with('/') {
                std::fs::create_dir_all(path)?;
                continue;
            }
            std::fs::create_dir_all(path.parent().unwrap_or(&root))?;
            std::fs::write(path, text)?;
        }
        Ok(root)
    }

    /// A root file system with a shell.
    pub(crate) fn busybox(&self) -> Result<PathBuf> {
        let passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:1001:1001::/home/app:/bin/sh\n";
        let root = self.tree(
            "busybox",
            &[
                ("bin/", ""),
                ("etc/passwd", passwd),
                ("etc/group", "root:x:0:\napp:x:1001:\n"),
                ("root/", ""),
                ("tmp/", ""),
            ],
        )?;
        let busybox = std::fs::copy("/bin/busybox", root.join("bin/busybox"));
        busybox.context("busybox-static is installed by `make test`")?;
        for applet in APPLETS {
            let link = root.join("bin").join(applet);
            if !link.exists() {
                std::os::unix::fs::symlink("busybox", link)?;
            }
        }
        Ok(root)
    }

    /// An image with nothing in it yet: where `umoci` finds it.
    pub(crate) fn image(&self, name: &str) -> Result<String> {
        let layout = self.path(&format!("{name}.oci"));
        let image = format!("{}:latest", layout.display());
        tool("umoci", &["init", "--layout", &layout.display().to_string()])?;
        tool("umoci", &["new", "--image", &image])?;
        Ok(image)
    }

    /// One more layer, of a directory.
    pub(crate) fn layer(&self, image: &str, tree: &Path) -> Result<()> {
        let tar = self.path("layer.tar");
        tool(
            "tar",
            &[
                "-C",
                &tree.display().to_string(),
                "--numeric-owner",
                "--owner=0",
                "--group=0",
                "-cf",
                &tar.display().to_string(),
                ".",
            ],
        )?;
        self.raw_layer(image, &tar)
    }

    /// One more layer, as it is.
    pub(crate) fn raw_layer(&self, image: &str, tar: &Path) -> Result<()> {
        tool("umoci", &["raw", "add-layer", "--image", image, &tar.display().to_string()]).map(drop)
    }

    /// Changes its configuration.
    pub(crate) fn config(&self, image: &str, args: &[&str]) -> Result<()> {
        tool("umoci", &[&["config", "--image", image], args].concat()).map(drop)
    }

    /// Pushes it; what it is called there.
    pub(crate) fn push(&self, image: &str, registry: &Registry, name: &str) -> Result<String> {
        let reference = format!("{}/{name}", registry.host());
        let (from, to) = (format!("oci:{image}"), format!("docker://{reference}"));
        tool("skopeo", &["--insecure-policy", "copy", "--dest-tls-verify=false", &from, &to])?;
        Ok(reference)
    }

    /// The shell's image, in a registry.
    pub(crate) fn push_busybox(&self, registry: &Registry) -> Result<String> {
        let image = self.image("busybox")?;
        self.layer(&image, &self.busybox()?)?;
        self.config(&image, &["--config.env", "PATH=/bin", "--config.cmd", "/bin/sh"])?;
        self.push(&image, registry, "busybox:1")
    }
}

//! The prepared cache, and data directories made from it.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Name of a base's directory form.
const TREE: &str = "root";

/// The built `wakeful`: named by `WAKEFUL_BIN`, else beside the running test.
///
/// # Panics
/// If there is none: `make build` makes it.
#[must_use]
pub fn wakeful_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WAKEFUL_BIN") {
        return path.into();
    }
    let here = std::env::current_exe().expect("this process has a program");
    let found = here.ancestors().map(|dir| dir.join("wakeful")).find(|path| path.is_file());
    found.expect("the program `wakeful` is built: run `make build`")
}

/// Where the prepared data directory is.
#[must_use]
pub fn cache_dir() -> PathBuf {
    std::env::var_os("WAKEFUL_TEST_CACHE").map_or_else(|| PathBuf::from("/var/cache/wakeful-test"), PathBuf::from)
}

/// A fresh data directory with everything that is slow to make; if `disk_mb` is given, on a file system of its own that is
/// no larger. Whoever has it unmounts that.
pub(crate) fn clone_data(disk_mb: Option<u32>) -> Result<tempfile::TempDir> {
    let prepared = cache_dir().join("data");
    ensure!(prepared.join("wakeful.db").is_file(), "{} is not prepared: run `make prepare`", prepared.display());
    // Hard links need one file system, so tests live beside the cache.
    let parent = cache_dir().join("tests");
    fs::create_dir_all(&parent)?;
    let dir = tempfile::Builder::new().prefix("data-").tempdir_in(&parent)?;
    if let Some(disk_mb) = disk_mb {
        let options = CString::new(format!("size={disk_mb}m,mode=0700"))?;
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", rustix::mount::MountFlags::empty(), Some(&*options))
            .context("mounting a small file system")?;
    }
    for name in ["kernels", "engines", "bases", "golden"] {
        let how = if disk_mb.is_some() { copy_file } else { link_file };
        clone_tree(&prepared.join(name), &dir.path().join(name), how).with_context(|| format!("cloning {name}"))?;
    }
    fs::copy(prepared.join("wakeful.db"), dir.path().join("wakeful.db"))?;
    Ok(dir)
}

fn link_file(from: &Path, to: &Path) -> Result<()> {
    Ok(fs::hard_link(from, to)?)
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    // Holes stay holes.
    let mut copy = std::process::Command::new("cp");
    copy.args(["-a", "--sparse=always"]).arg(from).arg(to);
    ensure!(copy.status()?.success(), "copying {}", from.display());
    Ok(())
}

fn clone_tree(from: &Path, to: &Path, how: fn(&Path, &Path) -> Result<()>) -> Result<()> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(from)?.permissions());
    fs::DirBuilder::new().mode(mode & 0o7777).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() && entry.file_name() == TREE {
            // A template's directory has thousands of files, and nobody writes to it.
            std::os::unix::fs::symlink(entry.path(), target)?;
        } else if entry.file_type()?.is_dir() {
            clone_tree(&entry.path(), &target, how)?;
        } else {
            how(&entry.path(), &target)?;
        }
    }
    Ok(())
}

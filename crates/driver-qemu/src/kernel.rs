//! The guest kernel: Debian's cloud kernel, unpacked and not installed.
//!
//! An uncompressed kernel saves half a second of emulated decompression at every boot, so the payload is taken out of the
//! boot image (its place and length are in the boot protocol's header). The virtio drivers are modules in Debian, so the
//! few that a microvm needs are taken along, with what they depend on, in the order in which they must be loaded.
//!
//! ```text
//!   DATA/kernels/current                name of the one in use
//!   DATA/kernels/<digest>/vmlinux   modules/<name>.ko   modules/order   version
//! ```

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;
use wakeful_driver::Error;

use wakeful_confine::files;

const PACKAGE: &str = "linux-image-cloud-amd64";
/// What a guest needs; what these need comes with them.
const WANTED: [&str; 6] = ["virtio_mmio", "virtio_blk", "virtio_console", "virtio_net", "tcp_diag", "overlay"];
/// A kernel is some 60 MB; far more is no kernel.
const LARGEST: u64 = 512 << 20;
const TOOL: Duration = Duration::from_secs(120);

/// A prepared kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its directory.
    pub path: PathBuf,
    /// Digest of kernel and modules; the directory's name.
    pub digest: String,
    /// The package it came from.
    pub version: String,
}

impl Kernel {
    /// Opens a directory with a prepared kernel.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let digest = path.file_name()?.to_str()?.to_owned();
        let version = fs::read_to_string(path.join("version")).ok()?.trim().to_owned();
        let whole = path.join("vmlinux").is_file() && path.join("modules/order").is_file();
        whole.then_some(Self { path, digest, version })
    }

    /// Whether it was made with all that guests of this version want.
    fn has_all(&self) -> bool {
        fs::read_to_string(self.path.join("modules/wanted")).is_ok_and(|wanted| wanted == wanted_text())
    }

    /// The one that was prepared last.
    pub(crate) fn current(data_dir: &Path) -> Option<Self> {
        let kernels = data_dir.join("kernels");
        let name = fs::read_to_string(kernels.join("current")).ok()?;
        let name = name.trim();
        (!name.is_empty() && !name.contains('/')).then(|| Self::open(&kernels.join(name)))?
    }
}

/// Makes sure that there is a guest kernel: downloads, unpacks and keeps Debian's, unless that was done before.
///
/// # Errors
/// `Missing` if the package cannot be had or is not what a kernel package looks like; `DiskFull`.
///
/// # Cancel safety
/// A kernel gets its name only when it is complete; what was under way is removed.
pub async fn prepare_kernel(data_dir: &Path, progress: &(dyn Fn(&str) + Sync)) -> Result<Kernel, Error> {
    let Some(old) = Kernel::current(data_dir) else { return make(data_dir, progress).await };
    if old.has_all() && !is_broken(&old.version) {
        return Ok(old);
    }
    // One that an older version prepared works, with less in it.
    let made = make(data_dir, progress).await;
    made.or_else(|error| {
        tracing::warn!(error = chain(&error), "the guest kernel stays as it is");
        Ok(old)
    })
}

async fn make(data_dir: &Path, progress: &(dyn Fn(&str) + Sync)) -> Result<Kernel, Error> {
    let failed = |source| Error::io("prepare the guest kernel", source);
    let unavailable =
        |error: wakeful_debian::Error| Error::Missing { what: format!("the guest kernel: {}", chain(&error)) };
    let kernels = data_dir.join("kernels");
    files::make_dir(&kernels, 0o700).map_err(failed)?;
    let temporary = tempfile::Builder::new().prefix(files::NEW).tempdir_in(&kernels).map_err(failed)?;
    progress("looking for the kernel package");
    let mut package = wakeful_debian::latest_dependency(PACKAGE, "linux-image-").await.map_err(unavailable)?;
    if is_broken(&package) {
        let known = wakeful_debian::packages("linux-image-").await.map_err(unavailable)?;
        match before(&package, &known) {
            Some(older) => {
                progress(&format!("{package} is known to be broken: {older} instead"));
                package = older;
            }
            None => tracing::warn!(package, "this guest kernel is known to be broken, and there is no older one"),
        }
    }
    progress(&format!("downloading {package}"));
    let unpacked = temporary.path().join("package");
    wakeful_debian::fetch_unpacked(&[&package], &unpacked).await.map_err(unavailable)?;

    let made = temporary.path().join("kernel");
    files::make_dir(&made.join("modules"), 0o755).map_err(failed)?;
    progress("extracting the kernel");
    extract(&unpacked.join("boot"), &made).await?;
    progress("collecting modules");
    let order = modules(&unpacked, &made).await?;
    fs::write(made.join("modules/order"), order.join("\n") + "\n").map_err(failed)?;
    fs::write(made.join("modules/wanted"), wanted_text()).map_err(failed)?;
    fs::write(made.join("version"), format!("{package}\n")).map_err(failed)?;

    progress("keeping the kernel");
    let kept = tokio::task::spawn_blocking(move || keep(&made, &kernels, &order)).await;
    let name = kept.map_err(|error| failed(error.into()))?.map_err(failed)?;
    drop(temporary);
    Kernel::open(&data_dir.join("kernels").join(name)).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
}

/// Kernels that lose a guest: 6.1.192 dereferences nothing in `ext4_mb_load_buddy_gfp` when memory is short, and whoever
/// writes to the disk afterwards waits for ever.
const BROKEN: [&str; 1] = ["linux-image-6.1.0-55-cloud-amd64"];

fn is_broken(package: &str) -> bool {
    BROKEN.contains(&package.trim())
}

/// The newest of `known` that is the same kernel in an older build, and not broken.
fn before(package: &str, known: &[String]) -> Option<String> {
    // linux-image-6.1.0-55-cloud-amd64
    let build = |name: &str| {
        let parts: Vec<&str> = name.split('-').collect();
        let number: u32 = parts.get(3)?.parse().ok()?;
        let rest: Vec<&str> = parts.iter().enumerate().filter(|(at, _)| *at != 3).map(|(_, part)| *part).collect();
        Some((rest.join("-"), number))
    };
    let (line, number) = build(package)?;
    let older = known.iter().filter(|name| !is_broken(name)).filter_map(|name| {
        let (other, build) = build(name)?;
        (other == line && build < number).then_some((build, name))
    });
    older.max().map(|(_, name)| name.clone())
}

fn wanted_text() -> String {
    WANTED.join("\n") + "\n"
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Digest, sync, rename, and only then the pointer to it.
fn keep(made: &Path, kernels: &Path, order: &[String]) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let names = order.iter().map(|name| format!("modules/{name}.ko"));
    let fixed = ["vmlinux", "modules/order", "modules/wanted", "version"].map(str::to_owned);
    for name in fixed.into_iter().chain(names) {
        let path = made.join(&name);
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        let content = fs::read(&path)?;
        hasher.update(name.as_bytes()).update(&(content.len() as u64).to_le_bytes()).update(&content);
        File::open(&path)?.sync_all()?;
    }
    let name = hasher.finalize().to_hex()[..16].to_owned();
    files::sync_dir(&made.join("modules"))?;
    files::sync_dir(made)?;
    let target = kernels.join(&name);
    if Kernel::open(&target).is_none() {
        files::absent_is_fine(fs::remove_dir_all(&target))?;
        match fs::rename(made, &target) {
            // Another process may have been quicker, with the same files.
            Err(error) if Kernel::open(&target).is_none() => return Err(error),
            _ => files::sync_dir(kernels)?,
        }
    }
    files::write(&kernels.join("current"), format!("{name}\n").as_bytes())?;
    Ok(name)
}

async fn extract(boot: &Path, made: &Path) -> Result<(), Error> {
    let failed = |source| Error::io("extract the guest kernel", source);
    let image = find(boot, &|name| name.starts_with("vmlinuz"))
        .ok_or_else(|| Error::Missing { what: "a boot image in the kernel package".to_owned() })?;
    let image = fs::read(&image).map_err(failed)?;
    let payload = payload(&image)
        .ok_or_else(|| Error::Missing { what: "a payload in the kernel package's boot image".to_owned() })?;
    let target = made.join("vmlinux");
    unpack(payload, &target).await?;
    let mut magic = [0; 4];
    let length = File::open(&target)
        .and_then(|mut file| io::Read::read_exact(&mut file, &mut magic).and_then(|()| file.metadata()))
        .map_err(failed)?
        .len();
    if &magic != b"\x7fELF" || length > LARGEST {
        return Err(Error::Missing { what: "an ELF image in the kernel package's boot image".to_owned() });
    }
    Ok(())
}

/// The compressed kernel inside a boot image: number of 512-byte setup sectors at 0x1f1, payload offset and length at
/// 0x248 and 0x24c; the last four bytes are its uncompressed size.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let start = (usize::from(*image.get(0x1f1)?) + 1) * 512 + word(0x248)?;
    let length = word(0x24c)?.checked_sub(4)?;
    image.get(start..start.checked_add(length)?)
}

/// Which program undoes this compression.
fn tool(magic: &[u8]) -> Option<&'static str> {
    match magic {
        [0x02, 0x21, 0x4c, 0x18, ..] => Some("lz4"),
        [0xfd, b'7', b'z', b'X', ..] => Some("xz"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0x1f, 0x8b, ..] => Some("gzip"),
        _ => None,
    }
}

async fn unpack(compressed: &[u8], target: &Path) -> Result<(), Error> {
    let failed = |source| Error::io("unpack a part of the kernel package", source);
    let Some(tool) = tool(compressed) else {
        return fs::write(target, compressed).map_err(failed);
    };
    let mut input = tempfile::tempfile_in(target.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    input.write_all(compressed).and_then(|()| io::Seek::rewind(&mut input)).map_err(failed)?;
    let output = File::create(target).map_err(failed)?;
    let mut command = Command::new(tool);
    command.arg("-dc").stdin(input).stdout(output);
    run(command, tool).await
}

async fn run(mut command: Command, tool: &'static str) -> Result<(), Error> {
    let child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn();
    let child = child.map_err(|_| Error::Missing { what: format!("the program {tool}") })?;
    let output = timeout(TOOL, child.wait_with_output())
        .await
        .map_err(|_| Error::Late { doing: "unpack the guest kernel", after: TOOL })?
        .map_err(|source| Error::Io { doing: format!("run {tool}"), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Io { doing: format!("run {tool}"), source: io::Error::other(said) })
}

/// Takes the wanted modules and all they need; gives their names in load order.
async fn modules(unpacked: &Path, made: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::io("collect the kernel's modules", source);
    let root = ["lib/modules", "usr/lib/modules"].iter().map(|dir| unpacked.join(dir)).find(|dir| dir.is_dir());
    let root = root.ok_or_else(|| Error::Missing { what: "modules in the kernel package".to_owned() })?;
    let (mut available, mut builtin) = (HashMap::new(), String::new());
    walk(&root, &mut |path, name| {
        if name == "modules.builtin" {
            builtin = fs::read_to_string(path).unwrap_or_default();
        } else if let Some((stem, _)) = name.split_once(".ko") {
            available.insert(stem.replace('-', "_"), path.to_owned());
        }
    })
    .map_err(failed)?;
    let builtin: Vec<String> = builtin
        .lines()
        .filter_map(|line| Some(line.rsplit('/').next()?.split_once(".ko")?.0.replace('-', "_")))
        .collect();

    let mut order: Vec<String> = Vec::new();
    // Depth first: a name is put on the order when all that it needs is there.
    let mut stack: Vec<(String, bool)> = WANTED.iter().rev().map(|name| ((*name).to_owned(), false)).collect();
    while let Some((name, ready)) = stack.pop() {
        if order.contains(&name) || builtin.contains(&name) {
            continue;
        }
        let target = made.join("modules").join(format!("{name}.ko"));
        if ready {
            strip(&target).await;
            order.push(name);
            continue;
        }
        let source = available
            .get(&name)
            .ok_or_else(|| Error::Missing { what: format!("the module {name} in the kernel package") })?;
        unpack(&fs::read(source).map_err(failed)?, &target).await?;
        let needs = depends(&fs::read(&target).map_err(failed)?);
        if stack.len() > 200 {
            return Err(Error::Missing { what: format!("an end of what the module {name} depends on") });
        }
        stack.push((name, true));
        stack.extend(needs.into_iter().rev().map(|name| (name, false)));
    }
    Ok(order)
}

/// What a module says that it needs: `depends=a,b` among the zero-terminated strings of its information section.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = &module[at + KEY.len()..];
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(0);
    let value = String::from_utf8_lossy(&value[..end]).into_owned();
    value.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// Debug information is most of a module. Without the tool it stays: that costs memory, not correctness.
async fn strip(module: &Path) {
    let mut command = Command::new("strip");
    command.arg("--strip-debug").arg(module);
    if let Err(error) = run(command, "strip").await {
        tracing::debug!(%error, "module not stripped");
    }
}

fn find(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(wanted))
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&Path, &str)) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), visit)?;
        } else if let Some(name) = entry.file_name().to_str() {
            visit(&entry.path(), name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_kernel_is_passed_over() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let known = names(&[
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-54-cloud-amd64",
            "linux-image-6.1.0-55-cloud-amd64",
            "linux-image-6.1.0-54-amd64",
            "linux-image-6.12.0-54-cloud-amd64",
            "linux-image-cloud-amd64",
        ]);
        assert!(is_broken("linux-image-6.1.0-55-cloud-amd64\n") && !is_broken("linux-image-6.1.0-54-cloud-amd64"));
        let older = before("linux-image-6.1.0-55-cloud-amd64", &known);
        assert_eq!(older.as_deref(), Some("linux-image-6.1.0-54-cloud-amd64"));
        assert_eq!(before("linux-image-cloud-amd64", &known), None);
    }

    #[test]
    fn payload_is_found_and_bounded() {
        let mut image = vec![0; 8192];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x1f1] = 3;
        image[0x248..0x24c].copy_from_slice(&100u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&20u32.to_le_bytes());
        image[4 * 512 + 100] = 0x77;
        assert_eq!(payload(&image).map(|found| (found.len(), found[0])), Some((16, 0x77)));
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
        image[0x24c..0x250].copy_from_slice(&2u32.to_le_bytes());
        assert_eq!(payload(&image), None);
        assert_eq!(payload(b"short"), None);
    }

    #[test]
    fn dependencies_are_read() {
        assert_eq!(depends(b"\0license=GPL\0depends=net-failover,virtio\0name=x\0"), ["net_failover", "virtio"]);
        assert_eq!(depends(b"\0depends=\0"), Vec::<String>::new());
        assert_eq!(depends(b"nothing"), Vec::<String>::new());
    }
}

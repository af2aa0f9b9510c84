//! The checks themselves. Each looks at one thing and never fails: what it cannot find out, it says.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use wakeful_api_types::RuntimeInfo;
use wakeful_driver_qemu::Confinement;

use super::{Check, Status};
use crate::config::{Config, RuntimeChoice};
use crate::paths::Paths;
use crate::runtimes::{CORRECT_BINARY, GVISOR};

const SETUP: &str = "wakeful setup";
const SETUP_GVISOR: &str = "wakeful setup --runtime gvisor";
const MIB: u64 = 1 << 20;
/// Below this a template does not fit.
const LITTLE_SPACE: u64 = 2048 * MIB;
/// Below this a checkpoint may not fit.
const NO_SPACE: u64 = 256 * MIB;

/// All of them, in the order in which a person would fix things.
pub(super) fn all(
    config: &Config,
    paths: &Paths,
    runtimes: &[RuntimeInfo],
    qemu_found: Option<(&Path, &str)>,
) -> Vec<Check> {
    let confinement = Confinement::examine();
    vec![
        root(),
        kernel(),
        kvm(runtimes),
        unless_spared(qemu(config, paths, qemu_found), config, runtimes),
        gvisor(config, paths, runtimes),
        tools(),
        data_dir(paths),
        run_dir(paths),
        cgroups(&confinement),
        namespaces(&confinement),
        seccomp(&confinement),
        network(),
        clock(),
        unless_spared(guest_kernel(config, paths), config, runtimes),
        templates(paths),
        daemon(paths),
    ]
}

/// What QEMU lacks is no failure where sandboxes run on gVisor.
fn unless_spared(check: Check, config: &Config, runtimes: &[RuntimeInfo]) -> Check {
    let spared = config.runtime != RuntimeChoice::Qemu
        && runtimes.iter().any(|runtime| runtime.name == GVISOR && runtime.available);
    match check.status {
        Status::Fail if spared => Check { status: Status::Warn, ..check },
        _ => check,
    }
}

fn root() -> Check {
    if rustix::process::geteuid().is_root() {
        Check::ok("root", "running as root")
    } else {
        Check::fail("root", "not running as root, so engines cannot be given users of their own")
            .fix("sudo wakeful doctor")
    }
}

/// The host's kernel. `PAGEMAP_SCAN` makes suspends quicker, and came with 6.7.
fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    match version(&release) {
        Some(found) if found >= (6, 7) => Check::ok("kernel", format!("{release}, with PAGEMAP_SCAN")),
        Some(_) => Check::warn("kernel", format!("{release}, without PAGEMAP_SCAN: suspends take some 10 ms longer"))
            .fix("boot a kernel of version 6.7 or newer"),
        None => Check::warn("kernel", format!("{release}: its version cannot be read")),
    }
}

/// The first two numbers.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// That the device opens proves nothing, so the probe's word is taken.
fn kvm(runtimes: &[RuntimeInfo]) -> Check {
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    let proven = runtimes.iter().find(|runtime| runtime.accel == "kvm");
    match (device, proven) {
        (Ok(_), Some(runtime)) if runtime.available => Check::ok("kvm", "a probe guest ran under it"),
        (Ok(_), Some(runtime)) => {
            let why = runtime.reason.as_deref().unwrap_or("no probe guest ran under it");
            Check::warn("kvm", format!("/dev/kvm opens, but {why}; QEMU emulates"))
        }
        (Ok(_), None) => Check::warn("kvm", "/dev/kvm opens, but nothing was tried under it; QEMU emulates"),
        (Err(error), _) => Check::warn("kvm", format!("/dev/kvm: {error}; QEMU emulates"))
            .fix("use a machine with (nested) virtualization; nothing else needs to change"),
    }
}

/// The binary that the driver would use.
pub(super) fn find_qemu(config: &Config, paths: &Paths) -> Option<PathBuf> {
    let found = wakeful_driver_qemu::find_qemu(&paths.data, config.qemu.binary.as_deref()).ok();
    found.filter(|path| executable(path))
}

/// Before it, QEMU opens the golden memory file for writing even for a private mapping.
pub(super) fn is_hardened(qemu: &str) -> bool {
    version(qemu) >= Some((8, 2))
}

/// The binary and its version.
fn qemu(config: &Config, paths: &Paths, found: Option<(&Path, &str)>) -> Check {
    let Some((path, found)) = found else {
        return match find_qemu(config, paths) {
            Some(path) => Check::fail("qemu", format!("{} does not tell its version", path.display())).fix(SETUP),
            None => Check::fail("qemu", "qemu-system-x86_64 is not installed").fix(SETUP),
        };
    };
    let path = path.display();
    if is_hardened(found) {
        Check::ok("qemu", format!("{found} ({path}), hardened: engines map golden memory read-only"))
    } else {
        Check::warn("qemu", format!("{found} ({path}), degraded: before 8.2 engines can write to golden memory"))
            .fix("wakeful setup --hardened")
    }
}

/// The runsc that would be used. Whether it works is the runtime's line.
fn gvisor(config: &Config, paths: &Paths, runtimes: &[RuntimeInfo]) -> Check {
    let path = match wakeful_driver_gvisor::find_runsc(&paths.data, config.gvisor.binary.as_deref()) {
        Ok(path) => path,
        Err(error) if config.gvisor.binary.is_some() => {
            return Check::fail("gvisor", crate::runtimes::chain(&error)).fix(CORRECT_BINARY);
        }
        Err(error) => {
            let check = Check::warn("gvisor", crate::runtimes::chain(&error)).fix(SETUP_GVISOR);
            return if config.runtime == RuntimeChoice::Gvisor {
                Check { status: Status::Fail, ..check }
            } else {
                check
            };
        }
    };
    let version =
        runtimes.iter().filter(|runtime| runtime.name == GVISOR).find_map(|runtime| runtime.version.as_deref());
    let walls = if config.gvisor.hardened {
        "hardened: the guest's kernel has no capability and opens no file itself"
    } else {
        "not hardened: the guest's kernel opens its files itself ([gvisor] hardened = true has that done for it)"
    };
    Check::ok("gvisor", format!("{} ({}), {walls}", version.unwrap_or("runsc"), path.display()))
}

fn tools() -> Check {
    let missing = |names: &[&'static str]| -> Vec<&str> {
        names.iter().copied().filter(|name| in_path(name).is_none()).collect()
    };
    let needed = missing(&["mke2fs"]);
    let for_builds = missing(&["mmdebstrap", "apt-get", "dpkg-deb"]);
    if !needed.is_empty() {
        Check::fail("tools", format!("missing: {}", needed.join(", "))).fix(SETUP)
    } else if !for_builds.is_empty() {
        Check::warn("tools", format!("missing for template builds: {}", for_builds.join(", "))).fix(SETUP)
    } else {
        Check::ok("tools", "mke2fs and mmdebstrap are installed")
    }
}

/// What guests need to reach anything.
fn network() -> Check {
    if in_path("nft").is_none() {
        return Check::warn("network", "nft is not installed: guests have no network").fix(SETUP);
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return Check::warn("network", format!("/dev/net/tun: {error}: guests have no network")).fix("modprobe tun");
    }
    Check::ok("network", "nft and /dev/net/tun are there: each guest has a slot with rules of its own")
}

fn data_dir(paths: &Paths) -> Check {
    let path = &paths.data;
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => return Check::fail("data_dir", format!("{shown} is not a directory")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Check::warn("data_dir", format!("{shown} is not there yet")).fix(SETUP);
        }
        Err(error) => return Check::fail("data_dir", format!("{shown}: {error}")),
    };
    let copies = match shares_blocks(path) {
        Ok(true) => "files share blocks (reflink)",
        Ok(false) => "files are copied sparsely (no reflink)",
        Err(error) => return Check::fail("data_dir", format!("{shown} cannot be written: {error}")),
    };
    let free = match rustix::fs::statvfs(path) {
        Ok(space) => space.f_bavail.saturating_mul(space.f_frsize),
        Err(error) => return Check::warn("data_dir", format!("{shown}: free space is not known: {error}")),
    };
    let detail = format!("{shown}, {} MiB free, {copies}", free / MIB);
    if free < NO_SPACE {
        Check::fail("data_dir", detail).fix("make space: suspends will fail")
    } else if free < LITTLE_SPACE {
        Check::warn("data_dir", detail).fix("make space: template builds may fail")
    } else if metadata.permissions().mode() & 0o077 != 0 {
        Check::warn("data_dir", format!("{detail}, readable by others")).fix(format!("chmod 700 {shown}"))
    } else {
        Check::ok("data_dir", detail)
    }
}

/// Whether a copy on this file system costs nothing. Two files, which are removed at once.
fn shares_blocks(dir: &Path) -> std::io::Result<bool> {
    let make = |name: &str| {
        let path = dir.join(format!(".doctor-{}-{name}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        std::io::Result::Ok(file)
    };
    let (from, to) = (make("from")?, make("to")?);
    std::os::unix::fs::FileExt::write_all_at(&from, &[1; 4096], 0)?;
    Ok(rustix::fs::ioctl_ficlone(&to, &from).is_ok())
}

fn run_dir(paths: &Paths) -> Check {
    let shown = paths.run.display();
    if paths.run.is_dir() {
        return Check::ok("run_dir", shown.to_string());
    }
    match rustix::fs::access("/run", rustix::fs::Access::WRITE_OK) {
        Ok(()) => Check::ok("run_dir", format!("{shown} will be made")),
        Err(error) => Check::fail("run_dir", format!("{shown} cannot be made: /run: {error}")),
    }
}

/// What engines are limited by, as it was found by trying.
fn cgroups(found: &Confinement) -> Check {
    let versions: BTreeSet<u32> = found.limits.iter().map(|(_, version)| *version).collect();
    let versions = versions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let names = found.limits.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    match (found.limits.is_empty(), found.unlimited.as_slice()) {
        (true, _) => Check::warn("cgroups", "none can be made: engines may use all of the host")
            .fix("run as root where /sys/fs/cgroup can be written (in a container: --privileged --cgroupns=host)"),
        // limits of the disk are off unless they are configured
        (false, [] | ["io"]) => Check::ok("cgroups", format!("version {versions}: engines are limited in {names}")),
        (false, missing) => {
            let missing = missing.join(", ");
            Check::warn("cgroups", format!("version {versions}: engines are limited in {names}, but not in {missing}"))
                .fix("boot with systemd.unified_cgroup_hierarchy=1")
        }
    }
}

fn namespaces(found: &Confinement) -> Check {
    match &found.namespaces {
        None => Check::ok("namespaces", "engines have a root, a process table and a network of their own"),
        Some(why) => Check::warn("namespaces", format!("degraded: engines see the host's files and processes: {why}"))
            .fix("run as root on a kernel of version 5.12 or newer (in a container: --privileged)"),
    }
}

fn seccomp(found: &Confinement) -> Check {
    match &found.filter {
        None => Check::ok("seccomp", "engines' system calls are filtered"),
        Some(why) => Check::warn("seccomp", format!("degraded: engines' system calls cannot be filtered: {why}"))
            .fix("boot a kernel with CONFIG_SECCOMP_FILTER"),
    }
}

/// Guests are told the rate of the processor's counter, so it should be constant.
fn clock() -> Check {
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    let steady = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
        let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        flags.split_whitespace().any(|flag| flag == "constant_tsc")
    });
    if steady {
        Check::ok("clock", format!("constant TSC, the host uses {source}"))
    } else {
        Check::warn(
            "clock",
            format!("the TSC may change its rate (the host uses {source}): checkpoints may be refused after a reboot"),
        )
    }
}

fn guest_kernel(config: &Config, paths: &Paths) -> Check {
    if let Some(path) = &config.qemu.kernel {
        return if path.join("vmlinux").is_file() {
            Check::ok("guest_kernel", path.display().to_string())
        } else {
            Check::fail("guest_kernel", format!("{} has no vmlinux", path.display()))
                .fix("correct qemu.kernel in the configuration")
        };
    }
    let found: Vec<PathBuf> =
        entries(&paths.data.join("kernels")).filter(|dir| dir.join("vmlinux").is_file()).collect();
    let newest = found.iter().max_by_key(|dir| dir.metadata().and_then(|m| m.modified()).ok());
    match newest {
        Some(dir) => {
            let version = fs::read_to_string(dir.join("version")).unwrap_or_default();
            Check::ok("guest_kernel", format!("{} is prepared", version.trim()))
        }
        None => Check::fail("guest_kernel", "none is prepared").fix(SETUP),
    }
}

/// By what first sandboxes begin from: golden snapshots on QEMU, the trees of bases on gVisor. The database is the daemon's.
fn templates(paths: &Paths) -> Check {
    let golden = |template: &PathBuf| {
        let snapshots = entries(template).flat_map(|size| entries(&size).collect::<Vec<_>>());
        snapshots.filter(|dir| dir.join("manifest.json").is_file()).count()
    };
    let golden: usize = entries(&paths.data.join("golden")).map(|template| golden(&template)).sum();
    let bases: Vec<PathBuf> =
        entries(&paths.data.join("bases")).filter(|dir| dir.join("base.ext4").is_file()).collect();
    let trees = bases.iter().filter(|dir| wakeful_images::tree_of(dir).is_dir()).count();
    if golden + trees == 0 {
        return Check::warn("templates", "none is ready").fix(SETUP);
    }
    Check::ok("templates", format!("{} bases, {golden} golden snapshots (QEMU), {trees} trees (gVisor)", bases.len()))
}

fn daemon(paths: &Paths) -> Check {
    match paths.holder() {
        Ok(Some(holder)) => Check::ok("daemon", format!("{holder} has the data directory")),
        Ok(None) => Check::ok("daemon", "none is running"),
        Err(error) => Check::warn("daemon", format!("it is not known whether one runs: {error}")),
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // root's tools are often not in a user's path
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|path| executable(path))
}

fn executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_programs_say() {
        assert_eq!(version("6.18.44-fc-v445"), Some((6, 18)));
        assert_eq!(version("7.2.18"), Some((7, 2)));
        assert_eq!(version("10.0"), Some((10, 0)));
        assert_eq!(version("new"), None);
        assert!(version("6.10.1") > version("6.7.0"), "numbers, not texts");
    }

    #[test]
    fn an_empty_machine_is_told_to_set_up() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { data: dir.path().join("data"), run: dir.path().join("run") };
        assert_eq!(data_dir(&paths).status, Status::Warn);
        assert_eq!(guest_kernel(&Config::default(), &paths).fix.as_deref(), Some(SETUP));
        assert_eq!(templates(&paths).fix.as_deref(), Some(SETUP));
    }

    #[test]
    fn a_prepared_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { data: dir.path().to_owned(), run: dir.path().join("run") };
        let kernel = paths.data.join("kernels/abc");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("vmlinux"), "").unwrap();
        fs::write(kernel.join("version"), "linux-image-6.1.0-cloud\n").unwrap();
        let golden = paths.data.join("golden/tpl_a/c1-m256-d2048/key");
        fs::create_dir_all(&golden).unwrap();
        fs::write(golden.join("manifest.json"), "{}").unwrap();
        assert_eq!(guest_kernel(&Config::default(), &paths).detail, "linux-image-6.1.0-cloud is prepared");
        assert_eq!(templates(&paths).detail, "0 bases, 1 golden snapshots (QEMU), 0 trees (gVisor)");
        let base = paths.data.join("bases/abc");
        fs::create_dir_all(base.join("root")).unwrap();
        fs::write(base.join("base.ext4"), "").unwrap();
        assert_eq!(templates(&paths).detail, "1 bases, 1 golden snapshots (QEMU), 1 trees (gVisor)");
        let found = data_dir(&paths);
        assert!(found.detail.contains("MiB free"), "{found:?}");
        assert_eq!(entries(&paths.data).filter(|path| path.to_string_lossy().contains("doctor")).count(), 0);
    }

    #[test]
    fn confinement_is_told_in_words() {
        let good = Confinement {
            namespaces: None,
            limits: vec![("memory", 1), ("pids", 1), ("cpu", 2)],
            unlimited: vec!["io"],
            filter: None,
        };
        let told = |found: &Confinement| [cgroups(found), namespaces(found), seccomp(found)];
        assert!(told(&good).iter().all(|check| check.status == Status::Ok));
        assert_eq!(cgroups(&good).detail, "version 1 and 2: engines are limited in memory, pids, cpu");
        let bad = Confinement {
            namespaces: Some("not permitted".into()),
            limits: Vec::new(),
            unlimited: vec!["memory", "pids", "cpu", "io"],
            filter: Some("unknown".into()),
        };
        assert!(told(&bad).iter().all(|check| check.status == Status::Warn && check.fix.is_some()));
        let some = Confinement { limits: vec![("pids", 2)], unlimited: vec!["memory", "cpu", "io"], ..good };
        assert_eq!(cgroups(&some).status, Status::Warn);
        assert!(is_hardened("10.0.2") && is_hardened("8.2.0") && !is_hardened("7.2.22") && !is_hardened("new"));
    }

    #[test]
    fn what_qemu_lacks_is_no_failure_where_gvisor_works() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { data: dir.path().to_owned(), run: dir.path().join("run") };
        let mut runtimes: Vec<RuntimeInfo> =
            crate::runtimes::unprepared("nothing is there").into_iter().map(crate::doctor::in_words).collect();
        let lacks = |choice, runtimes: &[RuntimeInfo]| {
            let config = Config { runtime: choice, ..Config::default() };
            unless_spared(guest_kernel(&config, &paths), &config, runtimes).status
        };
        assert_eq!(lacks(RuntimeChoice::Auto, &runtimes), Status::Fail);
        runtimes[1].available = true;
        assert_eq!(lacks(RuntimeChoice::Auto, &runtimes), Status::Warn);
        assert_eq!(lacks(RuntimeChoice::Qemu, &runtimes), Status::Fail);
    }

    #[test]
    fn a_configured_runsc_that_is_not_there_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { data: dir.path().to_owned(), run: dir.path().join("run") };
        let mut config = Config::default();
        config.gvisor.binary = Some("/nowhere/runsc".into());
        let found = gvisor(&config, &paths, &[]);
        assert!(found.status == Status::Fail && found.detail.contains("/nowhere/runsc") && found.fix.is_some());
    }

    #[test]
    fn every_check_says_something() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { data: dir.path().to_owned(), run: dir.path().join("run") };
        for check in all(&Config::default(), &paths, &[], None) {
            assert!(!check.detail.is_empty(), "{check:?}");
        }
    }
}

//! The guest's init: from an initramfs with nothing but this program to the sandbox's own root, and orderly back out.
//!
//! ```text
//!   initramfs: /init /mods/{order,*.ko} /secret
//!      └─ modules ─▶ vda (base, read-only) + vdb (the sandbox's disk) ─▶ overlay ─▶ becomes "/"
//! ```
//!
//! A duty without which no sandbox can work fails the boot: the kernel log says which, and the machine is switched off,
//! so that the host sees its engine end instead of waiting for an agent that never answers.

use std::ffi::CStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_move, mount_remount, move_mount, open_tree,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::{RebootCommand, finit_module, reboot};

use crate::{disk, network};

/// How long the kernel may take to make a device.
const DEVICE: Duration = Duration::from_secs(10);
/// Between TERM and KILL.
const TERM: Duration = Duration::from_secs(2);
/// Until a host has said what the sandbox is called.
pub(crate) const HOSTNAME: &str = "sandbox";
/// Where this program can be found by those inside, and under which name they look for it.
pub(crate) const COMMAND: &str = "/run/wakeful/bin/wakeful-agent";
pub(crate) const COMMAND_LINK: &str = "/usr/local/bin/wakeful-agent";
/// Marks the line of `/etc/hosts` that is ours to change.
const HOSTS_MARK: &str = "# this sandbox";

/// A duty that could not be done.
#[derive(Debug, thiserror::Error)]
#[error("could not {duty}")]
pub(crate) struct Failed {
    duty: &'static str,
    source: io::Error,
}

trait Duty<T> {
    /// Names what was attempted.
    fn duty(self, duty: &'static str) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Duty<T> for Result<T, E> {
    fn duty(self, duty: &'static str) -> Result<T, Failed> {
        self.map_err(|source| Failed { duty, source: source.into() })
    }
}

/// Says something in the kernel's log, in one write: half lines of several writers would mix. A container has no such log.
pub(crate) fn say(message: &str) {
    let _ = match OpenOptions::new().write(true).open("/dev/kmsg") {
        Ok(mut log) => log.write_all(format!("<3>wakeful-agent: {message}\n").as_bytes()),
        Err(_) => io::stderr().write_all(format!("wakeful-agent: {message}\n").as_bytes()),
    };
}

/// Builds the sandbox's world around the caller and returns the secret of the first hello.
///
/// # Errors
/// The first duty that matters and failed.
pub(crate) fn prepare() -> Result<[u8; 32], Failed> {
    for directory in ["/dev", "/proc", "/sys", "/base", "/disk", "/root"] {
        make_directory(directory, 0o755).duty("make the mount points")?;
    }
    mount("dev", "/dev", "devtmpfs", MountFlags::NOSUID, None).duty("mount /dev")?;
    mount("proc", "/proc", "proc", hardened(), None).duty("mount /proc")?;
    mount("sys", "/sys", "sysfs", hardened(), None).duty("mount /sys")?;
    let secret = fs::read("/secret").duty("read the secret")?;
    let secret = secret.try_into().map_err(|_| ErrorKind::InvalidData).duty("use the secret")?;
    load_modules();
    await_path("/dev/vda").duty("find the base disk")?;
    await_path("/dev/vdb").duty("find the sandbox's disk")?;
    let base = MountFlags::RDONLY | MountFlags::NOATIME;
    mount("/dev/vda", "/base", "ext4", base, Some(c"noload")).duty("mount the base disk")?;
    mount("/dev/vdb", "/disk", "ext4", MountFlags::NOATIME, None).duty("mount the sandbox's disk")?;
    disk::keep("/dev/vdb", "/disk").duty("keep the disk")?;
    follow_disk();
    make_directory("/disk/upper", 0o755).duty("make the overlay")?;
    make_directory("/disk/work", 0o755).duty("make the overlay")?;
    let layers: &CStr = c"lowerdir=/base,upperdir=/disk/upper,workdir=/disk/work";
    mount("overlay", "/root", "overlay", MountFlags::NOATIME, Some(layers)).duty("mount the overlay")?;
    // While it has a path that leads to it.
    let program =
        open_tree(rustix::fs::CWD, "/init", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC);
    enter_root()?;
    furnish()?;
    if let Err(error) = program.map_err(io::Error::from).and_then(|program| offer_command(&program)) {
        say(&format!("the agent is no command: {error}"));
    }
    Ok(secret)
}

/// The file system as large as its disk. Not fatal: the sandbox has what it had.
fn follow_disk() {
    if let Err(error) = disk::grow() {
        say(&format!("the disk is larger than its file system: {error}"));
    }
}

fn hardened() -> MountFlags {
    MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC
}

/// Moves the overlay over "/". `pivot_root` cannot leave an initramfs.
fn enter_root() -> Result<(), Failed> {
    for (from, to) in [("/dev", "/root/dev"), ("/proc", "/root/proc"), ("/sys", "/root/sys")] {
        make_directory(to, 0o755).duty("make the mount points of the root")?;
        mount_move(from, to).duty("move the kernel's file systems")?;
    }
    // Otherwise they stay in memory for good, the secret among them. Init itself does so anyway, and a file without a name
    // cannot be mounted.
    let _ = fs::remove_dir_all("/mods");
    let _ = fs::remove_file("/secret");
    rustix::process::chdir("/root").duty("enter the root")?;
    mount_move(".", "/").duty("move the root")?;
    rustix::process::chroot(".").duty("change the root")?;
    rustix::process::chdir("/").duty("enter the root")
}

/// What programs expect around them. Of these only what an image may do without is allowed to fail.
fn furnish() -> Result<(), Failed> {
    make_directory("/dev/shm", 0o1777).duty("make /dev/shm")?;
    mount("shm", "/dev/shm", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=1777"))
        .duty("mount /dev/shm")?;
    make_directory("/dev/pts", 0o755).duty("make /dev/pts")?;
    let terminals = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("pts", "/dev/pts", "devpts", terminals, Some(c"mode=620,gid=5,ptmxmode=666")).duty("mount /dev/pts")?;
    make_directory("/run", 0o755).duty("make /run")?;
    mount("run", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755")).duty("mount /run")?;
    mount("cgroup", "/sys/fs/cgroup", "cgroup2", hardened(), None).duty("mount cgroups")?;
    make_directory("/sys/fs/cgroup/wakeful", 0o755).duty("make the processes' cgroup")?;
    // On the disk, not in memory: what a build leaves there must not count as dirty pages.
    make_directory("/tmp", 0o1777).duty("make /tmp")?;
    fs::set_permissions("/tmp", Permissions::from_mode(0o1777)).duty("open /tmp to all")?;
    for (link, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        let _ = symlink(format!("/proc/self/{target}"), format!("/dev/{link}"));
    }
    wakeful_sys::guest::raise_loopback().duty("raise the loopback interface")?;
    if let Err(error) = network::raise_card() {
        say(&format!("no network: {error}"));
    }
    if let Err(error) = network::write_resolver() {
        say(&format!("no names: {error}"));
    }
    set_hostname(HOSTNAME).duty("set the host name")?;
    publish_hostname(HOSTNAME);
    // The kernel's own default for init is too low for a build, and for an agent with hundreds of streams.
    let files = Rlimit { current: Some(65_536), maximum: Some(524_288) };
    setrlimit(Resource::Nofile, files).duty("raise the limit of open files")
}

/// Makes this program a command for those inside, who need it for leases. A mount of the very file that init runs from,
/// so that it takes no memory twice; `/run` keeps it off the sandbox's disk, where only the link is, and only if the image
/// has such a directory and nothing else there.
fn offer_command(program: &OwnedFd) -> io::Result<()> {
    make_directory("/run/wakeful", 0o755)?;
    make_directory("/run/wakeful/bin", 0o755)?;
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o755).open(COMMAND)?;
    move_mount(program, "", rustix::fs::CWD, COMMAND, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    match symlink(COMMAND, COMMAND_LINK) {
        Err(error) if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Err(error),
        _ => Ok(()),
    }
}

/// One line of `/mods/order` is one module. A failure is only said: the duty that needed it will fail and say more.
fn load_modules() {
    let order = fs::read_to_string("/mods/order").unwrap_or_default();
    for name in order.split_ascii_whitespace() {
        let loaded = File::open(format!("/mods/{name}.ko")).and_then(|file| Ok(finit_module(&file, c"", 0)?));
        match loaded {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => say(&format!("module {name}: {error}")),
        }
    }
}

fn make_directory(path: &str, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Devices appear from the kernel's own threads; there is nothing to wait on before /dev has them.
fn await_path(path: &str) -> io::Result<()> {
    await_ready(DEVICE, || match fs::symlink_metadata(path) {
        Ok(_) => Ok(Some(())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })
}

/// Asks every millisecond until there is an answer or the time is over.
pub(crate) fn await_ready<T>(at_most: Duration, mut ask: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
    let deadline = Instant::now() + at_most;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        nap(Duration::from_millis(1));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "called where there is no runtime: before it starts, after all is over, in threads of their own"
)]
pub(crate) fn nap(time: Duration) {
    std::thread::sleep(time);
}

/// Names the machine.
pub(crate) fn set_hostname(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}

/// What a restored guest does without being waited for: it costs an emulated one more than all the rest of a restore,
/// and the sandbox is right without it.
pub(crate) fn settle(name: &str, woken: bool) {
    if woken && let Err(error) = network::abort_outside() {
        say(&format!("connections of before stay: {error}"));
    }
    publish_hostname(name);
    follow_disk();
}

/// Makes the machine's name resolve: `sudo` and many runtimes look their own host up. Not fatal, since an image may have
/// made the file what it likes, and a name that does not resolve is a nuisance only.
pub(crate) fn publish_hostname(name: &str) {
    let path = Path::new("/etc/hosts");
    let before = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(_) => return,
    };
    let after = hosts_with(&before, name);
    if after != before {
        let _ = fs::create_dir_all("/etc");
        // Written over, not truncated: names have one length, so that no block is given back and taken again.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let _ = file.and_then(|mut file| {
            file.write_all(after.as_bytes())?;
            if after.len() == before.len() { Ok(()) } else { file.set_len(after.len() as u64) }
        });
    }
}

/// The hosts file with our one line changed or added; the image's own lines stay as they are.
fn hosts_with(text: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    if text.trim().is_empty() {
        out.push_str("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    }
    for line in text.lines().filter(|line| !line.ends_with(HOSTS_MARK)) {
        out.push_str(line);
        out.push('\n');
    }
    out.push_str(&format!("127.0.1.1 {name} {HOSTS_MARK}\n"));
    out
}

/// Ends every other process: kindly, then at once.
pub(crate) fn end_everyone() {
    let (term, kill) = (rustix::process::Signal::TERM, rustix::process::Signal::KILL);
    if wakeful_sys::guest::signal_everyone(term.as_raw()).is_ok() {
        let _ = await_ready(TERM, || Ok(if others_alive() { None } else { Some(()) }));
        let _ = wakeful_sys::guest::signal_everyone(kill.as_raw());
        let _ = await_ready(TERM, || Ok(if others_alive() { None } else { Some(()) }));
    }
}

/// Ends every process, writes the disk out, and switches the machine off. Returns only if that failed.
pub(crate) fn power_off() {
    end_everyone();
    rustix::fs::sync();
    // Best effort: after the sync the journal would repair whatever a busy file system leaves.
    let read_only = MountFlags::RDONLY | MountFlags::NOATIME;
    let _ = mount_remount("/", read_only, c"");
    if let Some(disk) = disk::mounted() {
        let _ = mount_remount(format!("/proc/self/fd/{}", disk.as_raw_fd()), read_only, c"");
    }
    switch_off();
}

/// The end, in order of preference. Without a power switch in the machine (microvm has none that the kernel knows)
/// "power off" would halt the processor for ever; a restart ends the engine, because engines run with `-no-reboot`.
fn switch_off() {
    let result = reboot(RebootCommand::Restart);
    say(&format!("could not switch off: {result:?}"));
}

/// The boot has failed: says why and switches off.
pub(crate) fn give_up(why: &str) -> ! {
    say(why);
    rustix::fs::sync();
    switch_off();
    // Init that ends makes the kernel panic, which with `panic=-1` is a restart as well.
    std::process::exit(1)
}

/// Whether any process with a program of its own is left besides init. Kernel threads have no command line.
fn others_alive() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.parse::<u32>().ok());
        pid.is_some_and(|pid| pid != 1) && fs::read(entry.path().join("cmdline")).is_ok_and(|line| !line.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_gets_one_line_and_keeps_the_rest() {
        let fresh = hosts_with("", "one");
        assert_eq!(
            fresh,
            "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 one # this sandbox\n"
        );
        assert_eq!(hosts_with(&fresh, "one"), fresh);
        assert_eq!(hosts_with(&fresh, "two"), fresh.replace("one", "two"));
        assert_eq!(hosts_with("10.0.0.1 db", "a"), "10.0.0.1 db\n127.0.1.1 a # this sandbox\n");
    }

    #[test]
    fn waiting_has_an_end() {
        let begun = Instant::now();
        let late = await_ready::<()>(Duration::from_millis(20), || Ok(None));
        assert_eq!(late.expect_err("nothing came").kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

//! Engines that their guest has taken over: what they reach from inside the jail, and what they would reach without it.
//!
//! The program `escapee.c` is started in the place of QEMU by the very code that starts QEMU, while a real engine of
//! another sandbox runs, and tries what it is told. The same program, started by hand as root, shows that each of its
//! attempts can succeed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use wakeful_driver::{Card, Driver as _, Error, Image, ImageFile, Place, Source};
use wakeful_driver_contract::shell;
use wakeful_driver_qemu::{Confinement, Qemu, QemuConfig, prepare_kernel};
use wakeful_sys::{pidfd, spawn};

use crate::lab::{self, MACHINE, QemuLab};

/// An escapee, with a golden snapshot that it can "load".
struct Escapee {
    qemu: Arc<Qemu>,
    program: PathBuf,
    place: Place,
    golden: PathBuf,
    image: Image,
    dir: tempfile::TempDir,
    _run: tempfile::TempDir,
}

impl Escapee {
    /// One that says it is this version of QEMU.
    async fn new(lab: &QemuLab, version: &str) -> Self {
        let cache = lab.data();
        let (dir, run) = (tempfile::tempdir_in(cache.join("tmp")).expect("can be made"), lab::run_dir());
        let program = dir.path().join("escapee");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/escapee.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", &format!("-DVERSION=\"{version}\""), "-o"])
            .arg(&program)
            .arg(source)
            .status();
        assert!(compiled.expect("there is a compiler: Rust needs one to link").success());
        let kernel = prepare_kernel(cache, &|_| ()).await.expect("the kernel is there").path;
        let data = dir.path().join("data");
        let config =
            QemuConfig { binary: Some(program.clone()), kernel: Some(kernel), ..lab::config(&data, run.path()) };
        let qemu = Arc::new(Qemu::open(config).await.expect("it passes for QEMU"));

        let golden = dir.path().join("golden");
        fs::create_dir(&golden).expect("can be made");
        for (name, bytes) in [("mem", u64::from(MACHINE.memory_mb) << 20), ("overlay.ext4", 1 << 20)] {
            let file = File::create(golden.join(name)).expect("can be made");
            file.set_len(bytes).expect("can be resized");
        }
        fs::write(golden.join("dev.state"), "state").expect("can be written");
        let engine = fs::read_dir(data.join("engines")).expect("is there").flatten().map(|entry| entry.file_name());
        let engine = engine.map(|name| name.to_string_lossy().into_owned()).find(|name| name.starts_with("qemu-"));
        let digest = blake3::hash(b"state").to_hex().to_string();
        let image = Image {
            engine: qemu.engine().key.clone(),
            files: vec![ImageFile { name: "dev.state".into(), bytes: 5, digest, bulk_digest: None }],
            base: None,
            detail: serde_json::json!({
                "engine": engine.expect("it is kept"),
                "accel": "tcg",
                "machine": {"cpu": MACHINE.cpu, "memory_mb": MACHINE.memory_mb, "disk_mb": MACHINE.disk_mb},
            }),
        };
        let place = Place { name: "escapee".into(), run: run.path().join("escapee"), data: dir.path().join("place") };
        Self { qemu, program, place, golden, image, dir, _run: run }
    }

    /// What comes of each line of a plan inside the jail.
    async fn in_jail(&self, plan: &str) -> BTreeMap<String, String> {
        let _ = fs::remove_dir_all(&self.place.data);
        fs::create_dir(&self.place.data).expect("can be made");
        let disk = self.dir.path().join("plan");
        fs::write(&disk, plan).expect("can be written");
        let source = Source::Clone { golden: &self.golden, image: &self.image };
        let launched = self.qemu.launch(&self.place, MACHINE, &disk, Card::Unplugged, source).await;
        let Err(error) = launched else { panic!("it has no monitor") };
        assert!(matches!(error, Error::Ended { .. } | Error::Unfit { .. }), "{error:?}");
        assert!(!self.place.run.exists());
        results(&fs::read_to_string(self.place.data.join("console.log")).expect("it was started"))
    }

    /// The same as root, without any wall.
    fn outside(&self, plan: &str) -> BTreeMap<String, String> {
        let disk = self.dir.path().join("plan");
        fs::write(&disk, plan).expect("can be written");
        // With a directory among its descriptors, as a careless parent would leave one.
        let done = Command::new("/bin/sh")
            .args(["-c", r#"exec 9<. "$0" "$@""#])
            .arg(&self.program)
            .args(["fd=0,set=1", "fd=2,set=2"])
            .stdin(File::open(disk).expect("is there"))
            .stderr(Stdio::from(File::create(self.dir.path().join("disk")).expect("can be made")))
            .output();
        results(&String::from_utf8(done.expect("it runs").stdout).expect("is text"))
    }
}

fn results(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(label, outcome)| (label.to_owned(), outcome.to_owned())).collect()
}

/// What is tried, and the only outcome that is right in the jail.
#[derive(Default)]
struct Plan {
    lines: String,
    expected: BTreeMap<String, String>,
}

impl Plan {
    fn expect(&mut self, outcome: &str, label: &str, verb: &str, argument: impl std::fmt::Display) {
        writeln!(self.lines, "{label} {verb} {argument}").expect("a text");
        assert!(self.expected.insert(label.to_owned(), outcome.to_owned()).is_none(), "{label} twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escaped_engine_reaches_nothing() {
    let lab = lab::open().await;
    let (victim, engine, _guest) = lab.started("victim").await;
    let escapee = Escapee::new(&lab, "10.0.2").await;
    let dir = escapee.dir.path();
    let checkpoint = dir.join("mem.diff");
    for path in [&checkpoint, &dir.join("wakeful.db"), &dir.join("admin.token")] {
        fs::write(path, "secret").expect("can be written");
    }
    let address = SocketAddr::from_abstract_name(b"wakeful-escapee-test").expect("a name");
    let _abstract = UnixListener::bind_addr(&address).expect("nobody has it");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = tcp.local_addr().expect("it is bound").port();
    let (pid, inside) = (engine.pid(), dir.join("inside"));
    fs::create_dir(&inside).expect("can be made");

    let mut plan = Plan::default();
    // Files of others have no name here.
    plan.expect("ENOENT", "disk", "read", victim.place.data.join("overlay.ext4").display());
    plan.expect("ENOENT", "console", "write", victim.place.data.join("console.log").display());
    plan.expect("ENOENT", "checkpoint", "read", checkpoint.display());
    plan.expect("ENOENT", "golden", "write", lab.golden.join("mem").display());
    plan.expect("ENOENT", "own-golden", "write", escapee.golden.join("mem").display());
    plan.expect("ENOENT", "database", "read", dir.join("wakeful.db").display());
    plan.expect("ENOENT", "token", "read", dir.join("admin.token").display());
    plan.expect("ENOENT", "passwords", "read", "/etc/passwd");
    plan.expect("ENOENT", "kernel", "read", "/sys/kernel");
    plan.expect("EACCES", "golden-by-descriptor", "rewrite", inode(&escapee.golden.join("mem")));
    plan.expect("ok 0", "directories", "directories", 0);
    plan.expect("EROFS", "root", "create", "/new");
    plan.expect("EACCES", "engine", "write", "/engine.json");
    plan.expect("EFBIG", "grow", "grow", "DISK");
    // Nor have sockets, and there is no network.
    plan.expect("EPERM", "monitor", "unix", victim.place.run.join("qmp").display());
    plan.expect("EPERM", "agent", "unix", victim.place.run.join("agent").display());
    plan.expect("EPERM", "abstract", "abstract", "wakeful-escapee-test");
    plan.expect("EPERM", "tcp", "tcp", port);
    // It is alone.
    plan.expect("ok 1", "processes", "processes", 0);
    plan.expect("ENOENT", "proc", "read", format!("/proc/{pid}/maps"));
    plan.expect("ESRCH", "kill", "kill", pid);
    plan.expect("EPERM", "trace", "trace", pid);
    plan.expect("EPERM", "peek", "peek", pid);
    // And stays who it is.
    plan.expect("EPERM", "capabilities", "capabilities", 0);
    plan.expect("EPERM", "become-root", "root", 0);
    plan.expect("EPERM", "unshare", "unshare", 0x0400_0000);
    plan.expect("EPERM", "user-namespace", "clone", 0x1000_0000);
    plan.expect("EPERM", "mount", "mount", inside.display());
    plan.expect("EPERM", "mknod", "mknod", inside.join("device").display());
    for (label, call) in [
        ("bpf", 321),
        ("perf", 298),
        ("userfaultfd", 323),
        ("by-handle", 304),
        ("swap", 167),
        ("module", 175),
        ("another-abi", 0x4000_0000 + 39),
    ] {
        plan.expect("EPERM", label, "syscall", call);
    }
    plan.expect("ENOSYS", "clone3", "syscall", 435);
    plan.expect("EPERM", "chroot", "chroot", inside.display());

    assert_eq!(escapee.in_jail(&plan.lines).await, plan.expected);
    let outside = escapee.outside(&plan.lines);
    for (label, outcome) in &plan.expected {
        assert_ne!(outside[label], *outcome, "{label} proves nothing");
    }
    for label in ["disk", "golden", "database", "monitor", "abstract", "tcp", "proc", "kill", "trace", "peek", "mount"]
    {
        assert!(outside[label].starts_with("ok"), "{label}: {}", outside[label]);
    }
    assert!(engine.pause().await.is_ok(), "the victim has noticed nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escaped_engine_uses_no_more_than_it_may() {
    let lab = lab::open().await;
    let escapee = Escapee::new(&lab, "10.0.2").await;
    let name =
        format!("/wakeful/{}.escapee", escapee.place.run.parent().and_then(Path::file_name).expect("a name").display());
    let plan = format!("confined confined {name}\nmemory memory 400\nmultiply multiply 400\nfits memory 280\n");
    let found = escapee.in_jail(&plan).await;
    let limited = Confinement::examine().limits;
    let has = |controller| limited.iter().any(|(name, _)| *name == controller);
    if has("memory") && has("pids") {
        // 128 MiB of guest, 64 of translated code, 128 beside; and some hundred threads.
        let expected = [("confined", "ok"), ("memory", "signal 9"), ("multiply", "EAGAIN"), ("fits", "ok")];
        assert_eq!(found, expected.map(|(label, outcome)| (label.to_owned(), outcome.to_owned())).into());
    }
    let outside = escapee.outside(&plan.replace(&format!("confined confined {name}\n"), ""));
    assert_eq!(outside["memory"], "ok");
    assert_eq!(outside["multiply"], "ok 400");
    assert_eq!(cgroups(&escapee.place.run), Vec::<PathBuf>::new());
}

/// Before 8.2 QEMU needs to open golden memory for writing, so whoever takes it over can. That is what `doctor` calls
/// degraded, and this is the only wall that the version makes a difference to.
#[tokio::test(flavor = "multi_thread")]
async fn golden_memory_is_read_only_where_the_engine_allows_it() {
    let lab = lab::open().await;
    for (version, outcome) in [("7.2.22", "ok"), ("8.2.0", "EACCES")] {
        let escapee = Escapee::new(&lab, version).await;
        let plan = format!("golden rewrite {}\n", inode(&escapee.golden.join("mem")));
        assert_eq!(escapee.in_jail(&plan).await["golden"], outcome, "{version}");
    }
}

/// The whole way with a QEMU that needs no right to write: golden, clone, suspend, wake, compaction, boot.
#[tokio::test(flavor = "multi_thread")]
async fn a_hardened_engine_never_may_write_to_a_base() {
    let lab = QemuLab::hardened().await;
    let rights = |path: &Path| {
        let meta = fs::metadata(path).expect("is there");
        (meta.uid(), meta.gid(), meta.mode() & 0o777)
    };
    assert_eq!(rights(&lab.golden.join("mem")), (0, 0, 0o444));
    let before = fs::metadata(lab.golden.join("mem")).and_then(|meta| meta.modified()).expect("is there");
    let (mut sandbox, engine, guest) = lab.started("hardened").await;
    let status = fs::read_to_string(format!("/proc/{}/status", engine.pid())).expect("it lives");
    assert!(status.lines().any(|line| line.trim_end() == "Groups:"), "no group is shared: {status}");
    shell(&guest, "echo kept > /dev/shm/kept").await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(1)).await;
    engine.kill().await.expect("can be killed");
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(1), image: &image };
    let engine = sandbox.launch(source).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(shell(&guest, "cat /dev/shm/kept").await, "kept");
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(2)).await;
    engine.kill().await.expect("can be killed");

    // Over a base of its own.
    let folded =
        sandbox.driver.compact(&sandbox.place, &sandbox.checkpoint(2), &image).await.expect("can be compacted");
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(2), image: &folded };
    let engine = sandbox.launch(source).await.expect("can be woken");
    let uid = fs::metadata(format!("/proc/{}", engine.pid())).expect("it lives").uid();
    assert_eq!(rights(&sandbox.place.data.join("mem.base")), (0, uid, 0o440));
    let guest = sandbox.go(&*engine).await;
    assert_eq!(shell(&guest, "cat /dev/shm/kept").await, "kept");
    let after = fs::metadata(lab.golden.join("mem")).and_then(|meta| meta.modified()).expect("is there");
    assert_eq!(before, after);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_may_use_all_its_memory_and_an_engine_no_more() {
    let lab = lab::open().await;
    let (sandbox, engine, guest) = lab.started("memory").await;
    let limits = cgroups(&sandbox.place.run);
    let Some(memory) = limits.iter().find(|dir| dir.join("cgroup.procs").exists() && limit_file(dir).exists()) else {
        return; // nothing is limited here, which `doctor` says
    };
    let members = fs::read_to_string(memory.join("cgroup.procs")).expect("is there");
    assert_eq!(members.trim(), engine.pid().to_string());
    // Most of what it has, twice, in memory and on the disk: none of it ends the engine.
    for _ in 0..2 {
        shell(&guest, "head -c 40000000 /dev/zero > /dev/shm/a; : > /dev/shm/a; head -c 15000000 /dev/zero > /tmp/b")
            .await;
    }
    drop(guest);
    assert!(!cgroups(&sandbox.place.run).is_empty() && engine.resume().await.is_ok());

    // Less than the guest believes to have: the host must end it, and say so.
    let (sandbox, engine, guest) = lab.started("less-memory").await;
    let limits = cgroups(&sandbox.place.run);
    let limit = limits.iter().map(|dir| limit_file(dir)).find(|file| file.exists()).expect("as the other has");
    // Refused while more than this is in use.
    let fits = |mb: &u64| fs::write(&limit, (mb << 20).to_string()).is_ok();
    assert!((16..256).step_by(8).any(|mb| fits(&mb)));
    let eat = shell_unchecked(&guest, "head -c 55000000 /dev/zero > /dev/shm/a");
    let exit = tokio::time::timeout(std::time::Duration::from_secs(60), engine.exited());
    let (exit, _) = tokio::join!(exit, eat);
    let exit = exit.expect("it ends");
    assert!(exit.out_of_memory, "{exit:?}");
    sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
    assert_eq!(cgroups(&sandbox.place.run), Vec::<PathBuf>::new());
}

async fn shell_unchecked(guest: &wakeful_guest_client::Guest, line: &str) {
    let exec = wakeful_guest_client::Exec {
        timeout: Some(std::time::Duration::from_secs(60)),
        ..wakeful_guest_client::Exec::shell(line)
    };
    let _ = guest.exec(&exec).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_are_apart_and_leave_nothing() {
    let lab = lab::open().await;
    let (one, first, _a) = lab.started("apart-1").await;
    let (two, second, _b) = lab.started("apart-2").await;
    let of = |pid: u32, what: &str| fs::read_link(format!("/proc/{pid}/ns/{what}")).expect("it lives");
    for what in ["mnt", "pid", "net", "ipc", "uts"] {
        let (a, b) = (of(first.pid(), what), of(second.pid(), what));
        assert!(a != b && a != of(std::process::id(), what), "{what}: {}", a.display());
    }
    let uid = |pid: u32| fs::metadata(format!("/proc/{pid}")).expect("it lives").uid();
    assert_ne!(uid(first.pid()), uid(second.pid()));
    let status = fs::read_to_string(format!("/proc/{}/status", first.pid())).expect("it lives");
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.contains("CapBnd:\t0000000000000000"), "{status}");
    let claims = [first.pid(), second.pid()].map(|pid| PathBuf::from(format!("/run/wakeful/uids/{}", uid(pid))));
    assert!(claims.iter().all(|claim| claim.exists()));
    for (sandbox, engine) in [(&one, &first), (&two, &second)] {
        engine.kill().await.expect("can be killed");
        sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
        assert_eq!(cgroups(&sandbox.place.run), Vec::<PathBuf>::new());
    }
    assert!(claims.iter().all(|claim| !claim.exists()));
}

/// Where version 2 is mounted, a process is in its cgroup before its first instruction.
#[test]
fn a_process_is_born_in_its_cgroup() {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("is there");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let Some(mount) = mount.and_then(|line| line.split(' ').nth(1)) else { return };
    let dir = Path::new(mount).join(format!("wakeful-test.{}", std::process::id()));
    fs::create_dir(&dir).expect("tests run as root");
    let (cradle, said) = (File::open(&dir).expect("is there"), tempfile::tempfile().expect("can be made"));
    let spawned = spawn::spawn(&spawn::Spec {
        program: Path::new("/bin/cat"),
        args: &["/proc/self/cgroup".into()],
        env: &[],
        inherit: &[],
        output: &said,
        pid_file: File::options().write(true).open("/dev/null").expect("is there").as_fd(),
        identity: None,
        walls: None,
        cgroup: Some(cradle.as_fd()),
        longest_file: None,
        filter: &[],
    });
    let ended = spawned.and_then(|child| {
        let ended = pidfd::wait_ended(&child.pidfd, std::time::Duration::from_secs(20));
        let _ = pidfd::reap(&child.pidfd);
        ended
    });
    fs::remove_dir(&dir).expect("nobody is in it");
    assert!(ended.expect("it starts"));
    let mut text = String::new();
    (&said).rewind().expect("a file");
    (&said).read_to_string(&mut text).expect("is text");
    let expected = format!("0::/{}", dir.file_name().expect("a name").display());
    assert!(text.lines().any(|line| line == expected), "{text}");
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("is there").ino()
}

/// The cgroups of the engine in this run directory, wherever they are mounted.
fn cgroups(run: &Path) -> Vec<PathBuf> {
    let word = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let name = format!("wakeful/{}.{}", word(run.parent().expect("not the root")), word(run));
    let mounts = fs::read_to_string("/proc/self/mounts").expect("is there");
    let mounts = mounts.lines().filter(|line| line.contains(" cgroup")).filter_map(|line| line.split(' ').nth(1));
    mounts.map(|mount| Path::new(mount).join(&name)).filter(|dir| dir.exists()).collect()
}

fn limit_file(dir: &Path) -> PathBuf {
    let (one, two) = (dir.join("memory.limit_in_bytes"), dir.join("memory.max"));
    if one.exists() { one } else { two }
}

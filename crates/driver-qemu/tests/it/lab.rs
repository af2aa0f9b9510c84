//! What the tests share: a prepared data directory and one golden snapshot, kept between runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use wakeful_driver::{Card, Driver, Engine, Image, Inspector, Machine, Place, Source};
use wakeful_driver_contract::{Lab, RealLab, Sandbox, cache};
use wakeful_driver_gvisor::{GvisorConfig, GvisorInspector};
use wakeful_driver_qemu::{Accel, Qemu, QemuConfig, QemuInspector, fetch_hardened, prepare_kernel};
use wakeful_guest_client::Guest;

pub(crate) const MACHINE: Machine = Machine { cpu: 1, memory_mb: 128, disk_mb: 64 };
/// An emulated boot on shared cores.
const BOOT: Duration = Duration::from_secs(90);
/// A golden snapshot's secret is known to all its clones, until the first contact with each.
const GOLDEN_SECRET: [u8; 32] = [7; 32];

/// A driver, a golden snapshot and a root file system.
pub(crate) struct QemuLab {
    pub(crate) qemu: Arc<Qemu>,
    pub(crate) golden: PathBuf,
    pub(crate) image: Image,
    pub(crate) base: PathBuf,
    work: tempfile::TempDir,
    run: tempfile::TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hardened {
    Yes,
    No,
}

pub(crate) fn config(data: &Path, run: &Path) -> QemuConfig {
    QemuConfig { accel: Accel::Tcg, ..QemuConfig::new(data, run) }
}

/// Socket paths are short only under /run.
pub(crate) fn run_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("wakeful-it-").tempdir_in("/run").expect("tests run as root")
}

/// With the QEMU that is installed.
pub(crate) async fn open() -> Arc<QemuLab> {
    Arc::new(QemuLab::open_in(cache("driver-qemu"), Hardened::No).await)
}

impl QemuLab {
    /// With one that maps golden memory read-only, as `wakeful setup --hardened` gets it.
    pub(crate) async fn hardened() -> Arc<Self> {
        Arc::new(Self::open_in(cache("driver-qemu/hardened"), Hardened::Yes).await)
    }

    /// Prepares what is missing; one process at a time does it, the others wait.
    async fn open_in(cache: PathBuf, hardened: Hardened) -> Self {
        fs::create_dir_all(&cache).expect("the cache can be made");
        let lock = File::create(cache.join("lock")).expect("can be made");
        let lock = tokio::task::spawn_blocking(move || {
            flock(&lock, FlockOperation::LockExclusive).expect("can be locked");
            lock
        })
        .await
        .expect("the thread ends");
        prepare_kernel(&cache, &|step| eprintln(step)).await.expect("the kernel can be had");
        if hardened == Hardened::Yes {
            fetch_hardened(&cache).await.expect("the release has backports");
        }
        let run = run_dir();
        let qemu = Arc::new(Qemu::open(config(&cache, run.path())).await.expect("all is prepared"));
        let base = cache.join("base-2.ext4");
        if !base.exists() {
            make_base(&cache, &base).await;
        }
        let golden = cache.join(format!("golden-2-{}-{MACHINE}", qemu.engine().golden_key));
        let account = golden.join("image.json");
        if !account.exists() {
            forget_old(&cache);
            let image = make_golden(&qemu, &golden, &base, run.path()).await;
            fs::write(&account, serde_json::to_vec(&image).expect("is data")).expect("can be written");
        }
        let image = serde_json::from_slice(&fs::read(&account).expect("is there")).expect("is an account");
        let tmp = cache.join("tmp");
        fs::create_dir_all(&tmp).expect("can be made");
        drop(lock);
        let work = tempfile::tempdir_in(tmp).expect("can be made");
        Self { qemu, golden, image, base, work, run }
    }

    /// A running clone that has answered.
    pub(crate) async fn started(self: &Arc<Self>, name: &str) -> (Sandbox, Arc<dyn Engine>, Guest) {
        let lab: Arc<dyn Lab> = Arc::clone(self) as Arc<dyn Lab>;
        Sandbox::started(&lab, name).await
    }

    /// The data directory that all tests share.
    pub(crate) fn data(&self) -> &Path {
        self.golden.parent().expect("the cache")
    }

    pub(crate) fn run_dir(&self) -> &Path {
        self.run.path()
    }
}

#[expect(clippy::print_stderr, reason = "the first run downloads, and takes its time")]
fn eprintln(step: &str) {
    eprintln!("{step}");
}

/// Of other kernels and agents: each new agent makes a new one.
fn forget_old(cache: &Path) {
    for entry in fs::read_dir(cache).expect("is there").flatten() {
        if entry.file_name().to_string_lossy().starts_with("golden-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A few of this host's own programs with their libraries: enough for a shell that makes and checks data.
async fn make_base(cache: &Path, base: &Path) {
    let tree = tempfile::tempdir_in(cache).expect("can be made");
    for dir in ["dev", "proc", "sys", "run", "tmp", "etc", "root", "var", "home", "bin", "lib64", "usr/bin"] {
        fs::create_dir_all(tree.path().join(dir)).expect("can be made");
    }
    fs::write(tree.path().join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("can be written");
    fs::write(tree.path().join("etc/group"), "root:x:0:\n").expect("can be written");
    for program in ["/bin/sh", "/bin/cat", "/usr/bin/head", "/usr/bin/md5sum", "/bin/sleep"] {
        copy_into(tree.path(), program);
        let listed = tokio::process::Command::new("ldd").arg(program).output().await.expect("ldd is there");
        let listed = String::from_utf8(listed.stdout).expect("is text");
        for library in listed.split_ascii_whitespace().filter(|word| word.starts_with('/')) {
            copy_into(tree.path(), library);
        }
    }
    let new = cache.join("base.new");
    let file = File::create(&new).expect("can be made");
    file.set_len(32 << 20).expect("can be resized");
    let status = tokio::process::Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"])
        .arg(tree.path())
        .arg(&new)
        .status()
        .await
        .expect("mke2fs is installed");
    assert!(status.success());
    fs::rename(new, base).expect("can be renamed");
}

fn copy_into(tree: &Path, path: &str) {
    let target = tree.join(path.trim_start_matches('/'));
    fs::create_dir_all(target.parent().expect("is below the root")).expect("can be made");
    fs::copy(path, target).expect("can be copied");
}

async fn make_golden(qemu: &Arc<Qemu>, golden: &Path, base: &Path, run: &Path) -> Image {
    let _ = fs::remove_dir_all(golden);
    fs::create_dir(golden).expect("can be made");
    let place = Place { name: "golden".to_owned(), run: run.join("golden"), data: golden.to_owned() };
    let source = Source::Golden { secret: GOLDEN_SECRET };
    let engine = qemu.launch(&place, MACHINE, base, Card::Unplugged, source).await.expect("can be booted");
    let stream = engine.connect().await.expect("the socket listens");
    let guest = Guest::connect(stream, &GOLDEN_SECRET, BOOT).await.expect("it answers");
    guest.version().await.expect("it answers");
    assert!(guest.quiesce(Duration::from_secs(10)).await.expect("it answers"));
    guest.close().await;
    engine.disconnected().await.expect("it sees that");
    engine.pause().await.expect("it stops");
    let image = engine.save(golden).await.expect("can be saved");
    engine.kill().await.expect("can be killed");
    qemu.reap(&place).await.expect("can be reaped");
    image
}

#[async_trait]
impl Lab for QemuLab {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.qemu) as Arc<dyn Driver>
    }

    async fn reopened(&self) -> Arc<dyn Driver> {
        Arc::new(Qemu::open(config(self.data(), self.run_dir())).await.expect("all is prepared"))
    }

    fn machine(&self) -> Machine {
        MACHINE
    }

    fn base(&self) -> &Path {
        &self.base
    }

    fn golden(&self) -> Option<(&Path, &Image, [u8; 32])> {
        Some((&self.golden, &self.image, GOLDEN_SECRET))
    }

    async fn card(&self) -> Card {
        Card::Unplugged
    }

    fn work(&self) -> &Path {
        self.work.path()
    }

    fn run(&self) -> &Path {
        self.run.path()
    }
}

#[async_trait]
impl RealLab for QemuLab {
    fn inspector(&self) -> Arc<dyn Inspector> {
        Arc::new(QemuInspector::new(&config(self.data(), self.run_dir())))
    }

    fn foreign(&self) -> Arc<dyn Inspector> {
        Arc::new(GvisorInspector::new(&GvisorConfig::new(self.data(), self.run_dir())))
    }

    fn processors(&self) -> u32 {
        // One more than it has, for what works beside it.
        MACHINE.cpu + 1
    }
}

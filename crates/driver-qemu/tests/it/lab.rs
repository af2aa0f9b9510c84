//! What the tests share: a prepared data directory and one golden snapshot, kept between runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use wakeful_driver::{Card, Driver, Engine, Image, Machine, Place, Source};
use wakeful_driver_qemu::{Accel, Qemu, QemuConfig, fetch_hardened, prepare_kernel};
use wakeful_guest_client::{Exec, Guest};
use wakeful_guest_proto::control::Restore;

pub(crate) const MACHINE: Machine = Machine { cpu: 1, memory_mb: 128, disk_mb: 64 };
/// An emulated boot on shared cores.
const BOOT: Duration = Duration::from_secs(90);
/// A golden snapshot's secret is known to all its clones, until the first contact with each.
const GOLDEN_SECRET: [u8; 32] = [7; 32];

/// A driver, a golden snapshot and a root file system.
pub(crate) struct Lab {
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

fn cache() -> PathBuf {
    let dir = std::env::var_os("WAKEFUL_TEST_CACHE").map_or_else(|| "/var/cache/wakeful-test".into(), PathBuf::from);
    dir.join("driver-qemu")
}

pub(crate) fn config(data: &Path, run: &Path) -> QemuConfig {
    QemuConfig { accel: Accel::Tcg, ..QemuConfig::new(data, run) }
}

/// Socket paths are short only under /run.
pub(crate) fn run_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("wakeful-it-").tempdir_in("/run").expect("tests run as root")
}

impl Lab {
    /// With the QEMU that is installed.
    pub(crate) async fn open() -> Self {
        Self::open_in(cache(), Hardened::No).await
    }

    /// With one that maps golden memory read-only, as `wakeful setup --hardened` gets it.
    pub(crate) async fn hardened() -> Self {
        Self::open_in(cache().join("hardened"), Hardened::Yes).await
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

    /// An empty place for one engine; whatever is in it at the end is reaped.
    pub(crate) fn sandbox(&self, name: &str) -> Sandbox {
        let place = Place { name: name.to_owned(), run: self.run.path().join(name), data: self.work.path().join(name) };
        fs::create_dir(&place.data).expect("can be made");
        Sandbox { qemu: self.qemu.clone(), base: self.base.clone(), place, secret: GOLDEN_SECRET }
    }

    /// A running clone that has answered.
    pub(crate) async fn clone(&self, name: &str) -> (Sandbox, Arc<dyn Engine>, Guest) {
        let mut sandbox = self.sandbox(name);
        let source = Source::Clone { golden: &self.golden, image: &self.image };
        let engine = sandbox.launch(source).await.expect("can be cloned");
        let guest = sandbox.go(&*engine).await;
        (sandbox, engine, guest)
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
    let sandbox = Sandbox { qemu: qemu.clone(), base: base.to_owned(), place, secret: GOLDEN_SECRET };
    let engine = sandbox.launch(Source::Golden { secret: GOLDEN_SECRET }).await.expect("can be booted");
    let guest = hello(&*engine, &GOLDEN_SECRET, BOOT).await;
    guest.version().await.expect("it answers");
    let image = sandbox.suspend(&*engine, guest, golden).await;
    engine.kill().await.expect("can be killed");
    image
}

async fn hello(engine: &dyn Engine, secret: &[u8; 32], deadline: Duration) -> Guest {
    let stream = engine.connect().await.expect("the socket listens");
    match Guest::connect(stream, secret, deadline).await {
        Ok(guest) => guest,
        Err(error) => {
            let exit = tokio::time::timeout(Duration::from_secs(1), engine.exited()).await;
            panic!("no hello: {error}; engine: {exit:?}");
        }
    }
}

/// One place, reaped at the end of its test, whichever way that ends.
pub(crate) struct Sandbox {
    pub(crate) qemu: Arc<Qemu>,
    pub(crate) base: PathBuf,
    pub(crate) place: Place,
    pub(crate) secret: [u8; 32],
}

impl Sandbox {
    pub(crate) async fn launch(&self, source: Source<'_>) -> Result<Arc<dyn Engine>, wakeful_driver::Error> {
        self.qemu.launch(&self.place, MACHINE, &self.base, Card::Unplugged, source).await
    }

    /// From "loaded and stopped" to "the agent has confirmed", with a new secret.
    pub(crate) async fn go(&mut self, engine: &dyn Engine) -> Guest {
        engine.resume().await.expect("it runs");
        let guest = hello(engine, &self.secret, BOOT).await;
        self.restore(&guest, None).await;
        guest
    }

    pub(crate) async fn restore(&mut self, guest: &Guest, env: Option<BTreeMap<String, String>>) {
        let (mut entropy, mut secret) = ([0; 64], [0; 32]);
        getrandom::fill(&mut entropy).expect("there is entropy");
        getrandom::fill(&mut secret).expect("there is entropy");
        for _ in 0..2 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            let restore = Restore {
                time_unix_ns: u64::try_from(now.as_nanos()).expect("before 2554"),
                entropy_base64: base64(&entropy),
                hostname: Some("sandbox".to_owned()),
                env: env.clone(),
                clone_generation: None,
                secret: Some(base64(&secret)),
                default_user: Some("root".to_owned()),
                default_workdir: None,
            };
            guest.restore(&restore).await.expect("it confirms");
        }
        self.secret = secret;
    }

    /// Quiesced, closed and seen closed, stopped, saved.
    pub(crate) async fn suspend(&self, engine: &dyn Engine, guest: Guest, into: &Path) -> Image {
        assert!(guest.quiesce(Duration::from_secs(10)).await.expect("it answers"));
        guest.close().await;
        engine.disconnected().await.expect("it sees that");
        engine.pause().await.expect("it stops");
        if into != self.place.data {
            fs::create_dir(into).expect("can be made");
        }
        engine.save(into).await.expect("can be saved")
    }

    pub(crate) fn checkpoint(&self, number: u32) -> PathBuf {
        self.place.data.join(format!("checkpoint-{number}"))
    }

    /// Processes that have this place's lock open.
    pub(crate) fn processes(&self) -> Vec<PathBuf> {
        let lock = self.place.run.join("lock");
        let holders = fs::read_dir("/proc").expect("is there").flatten().filter(|entry| {
            let fds = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
            fds.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.starts_with(&lock)))
        });
        holders.map(|entry| entry.path()).collect()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let (qemu, place) = (self.qemu.clone(), self.place.clone());
        let reaped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("can be made");
            runtime.block_on(qemu.reap(&place))
        });
        let reaped = reaped.join();
        if !std::thread::panicking() {
            reaped.expect("no panic").expect("can be reaped");
        }
    }
}

/// What a line of shell prints; it must end well.
pub(crate) async fn shell(guest: &Guest, line: &str) -> String {
    let done =
        guest.exec(&Exec { timeout: Some(Duration::from_secs(60)), ..Exec::shell(line) }).await.expect("it runs");
    let said = String::from_utf8(done.stdout).expect("is text");
    assert_eq!(done.exit_code, 0, "{line}: {said}{}", String::from_utf8_lossy(&done.stderr));
    said.trim().to_owned()
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

//! One place and what lives in it, driven as a daemon does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use wakeful_confine::cgroup::Cgroups;
use wakeful_driver::{Driver, Engine, Error, Image, Machine, Place, Source};
use wakeful_guest_client::{Exec, Guest};
use wakeful_guest_proto::contact::Repair;

use crate::lab::Lab;

/// An emulated boot on shared cores.
const BOOT: Duration = Duration::from_secs(90);
const CONFIRM: Duration = Duration::from_secs(30);
const QUIESCE: Duration = Duration::from_secs(20);

/// One place, reaped at the end of its test, whichever way that ends.
pub struct Sandbox {
    /// Where it belongs.
    pub lab: Arc<dyn Lab>,
    /// Who launches it.
    pub driver: Arc<dyn Driver>,
    /// Where it is.
    pub place: Place,
    /// What it is launched as.
    pub machine: Machine,
    /// What its agent knows.
    pub secret: [u8; 32],
}

impl Sandbox {
    /// An empty place.
    ///
    /// # Panics
    /// If the name is taken.
    #[must_use]
    pub fn new(lab: &Arc<dyn Lab>, name: &str) -> Self {
        let place = Place { name: name.to_owned(), run: lab.run().join(name), data: lab.work().join(name) };
        fs::create_dir(&place.data).expect("can be made");
        let secret = lab.golden().map_or([7; 32], |(_, _, secret)| secret);
        Self { lab: Arc::clone(lab), driver: lab.driver(), place, machine: lab.machine(), secret }
    }

    /// A new one that runs and has answered.
    pub async fn started(lab: &Arc<dyn Lab>, name: &str) -> (Self, Arc<dyn Engine>, Guest) {
        let mut sandbox = Self::new(lab, name);
        let engine = sandbox.first().await.expect("can be started");
        let guest = sandbox.go(&*engine).await;
        (sandbox, engine, guest)
    }

    /// Its first start: a clone, or a boot where there are none.
    ///
    /// # Errors
    /// As the driver's.
    pub async fn first(&self) -> Result<Arc<dyn Engine>, Error> {
        match self.lab.golden() {
            Some((golden, image, _)) => self.launch(Source::Clone { golden, image }).await,
            None => self.launch(Source::First { secret: self.secret }).await,
        }
    }

    /// With a card of its own.
    ///
    /// # Errors
    /// As the driver's.
    pub async fn launch(&self, source: Source<'_>) -> Result<Arc<dyn Engine>, Error> {
        self.driver.launch(&self.place, self.machine, self.lab.base(), self.lab.card().await, source).await
    }

    /// From this checkpoint; loaded and stopped.
    ///
    /// # Errors
    /// As the driver's.
    pub async fn wake(&self, checkpoint: &Path, image: &Image) -> Result<Arc<dyn Engine>, Error> {
        self.launch(Source::Wake { checkpoint, image }).await
    }

    /// Until its agent has confirmed who it is, with a new secret.
    pub async fn go(&mut self, engine: &dyn Engine) -> Guest {
        engine.resume().await.expect("it runs");
        self.greet(engine).await
    }

    /// As [`Sandbox::go`], for one that runs already.
    pub async fn greet(&mut self, engine: &dyn Engine) -> Guest {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("there is entropy");
        let mut identity = Repair::new(0, [0; 64]);
        identity.hostname = Some("sandbox".to_owned());
        identity.secret = Some(secret);
        identity.default_user = Some("root".to_owned());
        let stream = engine.connect().await.expect("there is a way to the agent");
        match Guest::revive(stream, &self.secret, BOOT, CONFIRM, identity).await {
            Ok(revived) => {
                self.secret = secret;
                revived.guest
            }
            Err(error) => {
                let exit = tokio::time::timeout(Duration::from_secs(1), engine.exited()).await;
                panic!("no hello: {error}; engine: {exit:?}");
            }
        }
    }

    /// Whether somebody inside answers a hello in that time. It is not told anything new.
    pub async fn answers(&self, engine: &dyn Engine, within: Duration) -> bool {
        let stream = engine.connect().await.expect("there is a way to the agent");
        match Guest::connect(stream, &self.secret, within).await {
            Ok(guest) => {
                guest.close().await;
                engine.disconnected().await.expect("it sees that");
                true
            }
            Err(_) => false,
        }
    }

    /// Sets the environment inside.
    pub async fn set_env(&self, guest: &Guest, env: BTreeMap<String, String>) {
        let mut entropy = [0; 64];
        getrandom::fill(&mut entropy).expect("there is entropy");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let mut repair = Repair::new(u64::try_from(now.as_nanos()).expect("before 2554"), entropy);
        repair.env = Some(env);
        guest.restore(&repair.to_restore()).await.expect("it confirms");
    }

    /// Quiesced, closed and seen closed, stopped.
    pub async fn stop(&self, engine: &dyn Engine, guest: Guest) {
        assert!(guest.quiesce(QUIESCE).await.expect("it answers"));
        guest.close().await;
        engine.disconnected().await.expect("it sees that");
        engine.pause().await.expect("it stops");
    }

    /// Stopped and saved.
    pub async fn suspend(&self, engine: &dyn Engine, guest: Guest, into: &Path) -> Image {
        self.stop(engine, guest).await;
        if into != self.place.data {
            fs::create_dir(into).expect("can be made");
        }
        engine.save(into).await.expect("can be saved")
    }

    /// Where a checkpoint of this number goes.
    #[must_use]
    pub fn checkpoint(&self, number: u32) -> PathBuf {
        self.place.data.join(format!("checkpoint-{number}"))
    }

    /// Its disk.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.place.data.join(self.driver.disk_file())
    }

    /// Its processes on the host.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        Cgroups::open().members(&self.place.run)
    }

    /// Ends it and removes its run directory.
    pub async fn end(&self, engine: &dyn Engine) {
        engine.kill().await.expect("can be killed");
        self.driver.reap(&self.place).await.expect("can be reaped");
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let (driver, place) = (Arc::clone(&self.driver), self.place.clone());
        let reaped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("can be made");
            runtime.block_on(driver.reap(&place))
        });
        let reaped = reaped.join();
        if !std::thread::panicking() {
            reaped.expect("no panic").expect("can be reaped");
        }
    }
}

/// One that was started, counts, and was saved as its checkpoint 0; nothing lives in its place.
pub async fn suspended(lab: &Arc<dyn Lab>, name: &str) -> (Sandbox, Image) {
    let (sandbox, engine, guest) = Sandbox::started(lab, name).await;
    lab.begin_count(&sandbox, &guest).await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    sandbox.end(&*engine).await;
    (sandbox, image)
}

/// What a line of shell prints; it must end well.
pub async fn shell(guest: &Guest, line: &str) -> String {
    let exec = Exec { timeout: Some(Duration::from_secs(60)), ..Exec::shell(line) };
    let done = guest.exec(&exec).await.expect("it runs");
    let said = String::from_utf8(done.stdout).expect("is text");
    assert_eq!(done.exit_code, 0, "{line}: {said}{}", String::from_utf8_lossy(&done.stderr));
    said.trim().to_owned()
}

/// Flips a bit of a file; twice is as before.
pub fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().read(true).write(true).open(path).expect("is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("is long enough");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, at).expect("can be written");
}

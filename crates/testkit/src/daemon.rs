//! The daemon under test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use wakeful_client::Client;

use crate::data::{clone_data, wakeful_binary};
use crate::leftovers;

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(60);

/// How to start it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More environment.
    pub env: BTreeMap<String, String>,
    /// Text of a configuration file.
    pub config: Option<String>,
    /// Where it listens, if not on loopback only.
    pub listen: Option<String>,
    /// Its data directory is on a file system of its own, of this size. Only for the first start.
    pub disk_mb: Option<u32>,
}

impl Options {
    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// With this configuration file.
    #[must_use]
    pub fn config(mut self, text: &str) -> Self {
        self.config = Some(text.into());
        self
    }

    /// With so much room for its data.
    #[must_use]
    pub fn disk_mb(mut self, disk_mb: u32) -> Self {
        self.disk_mb = Some(disk_mb);
        self
    }

    /// Listening there.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.into());
        self
    }
}

/// A real daemon over a data directory of its own. Dropped: it, its engines and its files are gone.
pub struct Daemon {
    data: tempfile::TempDir,
    run: PathBuf,
    child: Option<Child>,
    url: String,
    starts: u32,
    /// The data directory is a file system of its own.
    mounted: bool,
}

impl Daemon {
    /// Starts one over a fresh data directory.
    ///
    /// # Errors
    /// If it does not come up; with its log.
    pub async fn start() -> Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// Starts one with options.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(options: Options) -> Result<Self> {
        let data = clone_data(options.disk_mb)?;
        let run = leftovers::run_dir(data.path())?;
        let mounted = options.disk_mb.is_some();
        let mut daemon = Self { data, run, child: None, url: String::new(), starts: 0, mounted };
        daemon.start_again(options).await?;
        Ok(daemon)
    }

    /// Starts it again over the same data, after [`kill`](Self::kill), [`terminate`](Self::terminate) or
    /// [`wait_for_death`](Self::wait_for_death).
    ///
    /// # Errors
    /// If it does not come up; with its log.
    pub async fn start_again(&mut self, options: Options) -> Result<()> {
        ensure!(self.child.is_none(), "it is running");
        self.starts += 1;
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let mut command = Command::new(wakeful_binary());
        command.args(["serve", "--listen", options.listen.as_deref().unwrap_or("127.0.0.1:0")]);
        command.arg("--data-dir").arg(self.data.path());
        command.env("WAKEFUL_LOG", "info").env_remove("WAKEFUL_CONFIG");
        command.env("WAKEFUL_RUNTIME", crate::runtime()).envs(&options.env);
        let config = self.data.path().join("config.toml");
        fs::write(&config, options.config.unwrap_or_default())?;
        command.arg("--config").arg(&config);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().context("starting the daemon")?;
        let began = Instant::now();
        let pid = child.id();
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("the daemon ended at once ({status}):\n{}", self.log());
            }
            // The lock file tells where it listens, and whose word that is.
            let holder: serde_json::Value = fs::read(self.data.path().join("lock"))
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok())
                .unwrap_or_default();
            if holder["pid"] == pid
                && let Some(url) = holder["url"].as_str()
            {
                url.clone_into(&mut self.url);
                if self.client()?.health().await.is_ok() {
                    break;
                }
            }
            if began.elapsed() > START {
                let _ = child.kill();
                let _ = child.wait();
                bail!("the daemon did not answer within {START:?}:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.child = Some(child);
        Ok(())
    }

    /// A client of it.
    ///
    /// # Errors
    /// If it has no address yet.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(&self.url, None)?)
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// A sandbox's directory.
    #[must_use]
    pub fn sandbox_dir(&self, id: &str) -> PathBuf {
        self.data.path().join("sandboxes").join(id)
    }

    /// The `wakeful` command, set up to talk to it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(wakeful_binary());
        command.env("WAKEFUL_URL", &self.url).env_remove("WAKEFUL_API_KEY").env("NO_COLOR", "1");
        command.env("WAKEFUL_RUNTIME", crate::runtime());
        command
    }

    /// The daemon's own process id.
    ///
    /// # Panics
    /// If it is not running.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it is running").id()
    }

    /// Where its engines have their run directories.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Where the cgroup of an engine with this bare id is, in one of the hierarchies.
    #[must_use]
    pub fn cgroup(&self, bare: &str) -> Option<PathBuf> {
        leftovers::cgroup_top().map(|top| top.join(leftovers::cgroup_name(&self.run, bare)))
    }

    /// The file that limits the memory of the engine with this bare id.
    #[must_use]
    pub fn memory_limit(&self, bare: &str) -> Option<PathBuf> {
        let name = leftovers::cgroup_name(&self.run, bare);
        let ours = leftovers::cgroups(&self.run).into_iter().filter(|path| path.ends_with(&name));
        let files = ours.flat_map(|dir| [dir.join("memory.limit_in_bytes"), dir.join("memory.max")]);
        files.into_iter().find(|file| file.exists())
    }

    /// The engine of a sandbox, seen from outside: its process id, if that process is alive.
    #[must_use]
    pub fn engine_pid(&self, id: &str) -> Option<u32> {
        let bare = id.strip_prefix("sbx_").unwrap_or(id);
        let text = fs::read_to_string(self.run.join(bare).join("pid")).ok()?;
        let pid = text.trim().parse().ok()?;
        leftovers::lives(pid).then_some(pid)
    }

    /// All engines of this daemon.
    #[must_use]
    pub fn engines(&self) -> Vec<u32> {
        leftovers::engines(&self.run)
    }

    /// Places that are still there: names of run directories, of sandbox directories, of cgroups and of network slots.
    #[must_use]
    pub fn places(&self) -> Vec<String> {
        let names = |dir: &Path| -> Vec<String> {
            fs::read_dir(dir)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|e| e.path().is_dir())
                .map(|e| e.file_name().to_string_lossy().into_owned())
                // Of the network, slots that are ready for somebody are nobody's leftovers.
                .filter(|name| name != "net")
                .collect()
        };
        let others = [leftovers::cgroups(&self.run), leftovers::slots(&self.run)].concat();
        let others = others.iter().map(|path| path.display().to_string()).collect();
        [names(&self.run), names(&self.data.path().join("sandboxes")), others].concat()
    }

    /// `kill -9`, now.
    ///
    /// # Errors
    /// If it was not running.
    pub fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it is not running")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end; its exit code.
    ///
    /// # Errors
    /// If it does not end within a minute.
    pub async fn terminate(&mut self) -> Result<Option<i32>> {
        let pid = i32::try_from(self.pid())?;
        kill_process(Pid::from_raw(pid).context("a process id")?, Signal::TERM)?;
        Ok(self.end().await?.code())
    }

    /// Waits for it to be killed by its own hand at a crash point.
    ///
    /// # Errors
    /// If it lives on for a minute, or ends in another way.
    pub async fn wait_for_death(&mut self) -> Result<()> {
        let status = self.end().await?;
        ensure!(status.signal() == Some(9), "it ended with {status}, not at the crash point:\n{}", self.log());
        Ok(())
    }

    async fn end(&mut self) -> Result<std::process::ExitStatus> {
        let began = Instant::now();
        let child = self.child.as_mut().context("it is not running")?;
        loop {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return Ok(status);
            }
            ensure!(began.elapsed() < Duration::from_secs(60), "the daemon does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn log_path(&self) -> PathBuf {
        self.data.path().join("daemon.log")
    }

    /// What it has logged, over all starts.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in [self.engines(), leftovers::members(&self.run)].concat() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = wakeful_net::erase_after(&self.run);
        let _ = fs::remove_dir_all(&self.run);
        // A killed engine leaves its cgroup when it is gone, which takes a moment.
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_secs(5)
            && leftovers::cgroups(&self.run).iter().any(|path| fs::remove_dir(path).is_err())
        {
            std::thread::yield_now();
        }
        if std::env::var_os("NEXTEST").is_some() || std::thread::panicking() {
            // Shown by the runner only if the test failed.
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(80).collect();
            for line in tail.iter().rev() {
                #[expect(clippy::print_stderr, reason = "the runner keeps it for a test that failed")]
                {
                    eprintln!("daemon: {line}");
                }
            }
        }
        if self.mounted {
            let _ = rustix::mount::unmount(self.data.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

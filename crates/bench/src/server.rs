//! A private daemon: this very program, over a data directory made of hard links, gone without a trace afterwards.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wakeful_client::Client;
use wakeful_daemon::paths::Paths;
use wakeful_store::{SqliteStore, Store};

use crate::bare::SPAWN;
use crate::bare::gvisor::erase;
use crate::bare::qemu::process_uses;
use crate::{Error, Runtime};

/// How long a start or an end may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is shared with the prepared directory, by hard links, if it is there: files that nobody writes to.
const SHARED: [&str; 5] = ["kernels", "engines", "gvisor", "bases", "golden"];
/// Private directories are kept below this one.
const PLACE: &str = "bench";

/// The daemon, its directories, and whatever else runs on them. Dropped, all of it goes.
pub(crate) struct Server {
    /// Removed at the end; holds the data directory and the bare engines' files.
    dir: Option<TempDir>,
    /// Tells those who sweep that this directory is in use.
    _mark: File,
    run: PathBuf,
    program: PathBuf,
    /// What its new sandboxes run on; its own choice, if not said.
    runtime: Option<Runtime>,
    /// The digests of the templates' bases.
    bases: BTreeMap<String, String>,
    child: Option<Child>,
    url: String,
}

impl Server {
    /// Makes the directories; nothing runs yet.
    pub(crate) async fn prepare(prepared: &Path, program: &Path, runtime: Option<Runtime>) -> Result<Self, Error> {
        let prepared = prepared.canonicalize().unwrap_or_else(|_| prepared.to_owned());
        if !prepared.join("wakeful.db").is_file() {
            return Err(Error::Unprepared { data_dir: prepared, what: "it has no database" });
        }
        let place = prepared.join(PLACE);
        let failed = || Error::io("make a private data directory");
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&place).map_err(failed())?;
        sweep(&place);
        let dir = tempfile::Builder::new().prefix("run-").tempdir_in(&place).map_err(failed())?;
        let mark = File::create(dir.path().join("mark")).map_err(failed())?;
        mark.try_lock().map_err(|error| failed()(error.into()))?;
        let data = dir.path().join("data");
        fs::DirBuilder::new().mode(0o700).create(&data).map_err(failed())?;
        for name in SHARED.into_iter().filter(|name| prepared.join(name).is_dir()) {
            link_tree(&prepared.join(name), &data.join(name)).map_err(failed())?;
        }
        let bases = copy_templates(&prepared, dir.path(), &data).await?;
        let (run, program) = (Paths::of(&data).run, program.to_owned());
        Ok(Self { dir: Some(dir), _mark: mark, run, program, runtime, bases, child: None, url: String::new() })
    }

    fn path(&self) -> &Path {
        self.dir.as_ref().expect("only a drop takes it").path()
    }

    /// The daemon's data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The directory that a template's sandboxes stand on, on an engine that takes one; it is made for the first of them.
    pub(crate) fn tree(&self, template: &str) -> Result<PathBuf, Error> {
        let base = self.bases.get(template).map(|digest| self.data().join("bases").join(digest).join("root"));
        base.filter(|tree| tree.is_dir())
            .ok_or_else(|| Error::engine("have a root", format!("template {template} is no directory")))
    }

    /// What the names of the cgroups begin with that are removed at the end, before a dot.
    pub(crate) fn cgroup_prefix(&self) -> String {
        self.run.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A directory for other files of this run, on the same file system.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf, Error> {
        let dir = self.path().join(name);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).map_err(Error::io("make a directory"))?;
        Ok(dir)
    }

    /// A directory for other sockets: their paths must be short.
    pub(crate) fn sockets(&self) -> Result<PathBuf, Error> {
        let name = self.run.file_name().unwrap_or_default().to_string_lossy().into_owned() + "-bare";
        let dir = self.run.with_file_name(name);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).map_err(Error::io("make a directory"))?;
        Ok(dir)
    }

    /// Starts the daemon and waits for its first answer; how long that took.
    pub(crate) async fn start(&mut self) -> Result<Duration, Error> {
        let failed = || Error::io("start the private daemon");
        let data = self.data();
        let config = self.path().join("config.toml");
        let runtime = self.runtime.map(|runtime| format!("runtime = \"{runtime}\"\n")).unwrap_or_default();
        fs::write(&config, runtime).map_err(failed())?;
        let log = File::options().create(true).append(true).open(self.log_path()).map_err(failed())?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--listen", "127.0.0.1:0"]).arg("--data-dir").arg(&data).arg("--config").arg(&config);
        for name in ["WAKEFUL_LISTEN", "WAKEFUL_DATA_DIR", "WAKEFUL_DATABASE", "WAKEFUL_CONFIG", "WAKEFUL_RUNTIME"] {
            command.env_remove(name);
        }
        // A ^C on the terminal is for us: we end it in order.
        command.process_group(0).stdin(Stdio::null()).stderr(log.try_clone().map_err(failed())?).stdout(log);
        let began = Instant::now();
        let child = {
            let _turn = SPAWN.lock().unwrap_or_else(PoisonError::into_inner);
            command.spawn().map_err(failed())?
        };
        let pid = child.id();
        self.child = Some(child);
        loop {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                return Err(Error::Server { what: format!("ended at once ({status})"), log: self.log() });
            }
            if let Ok(Some(holder)) = Paths::of(&data).holder()
                && holder.pid == Some(pid)
                && let Some(url) = holder.url
            {
                self.url = url;
                if self.client()?.health().await.is_ok() {
                    return Ok(began.elapsed());
                }
            }
            if began.elapsed() > PATIENCE {
                return Err(Error::Server { what: format!("did not answer within {PATIENCE:?}"), log: self.log() });
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// SIGTERM, and its end. Sandboxes that run go on running.
    pub(crate) async fn stop(&mut self) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        signal(child.id(), Signal::TERM);
        let began = Instant::now();
        while child.try_wait().map_err(Error::io("wait for the private daemon"))?.is_none() {
            if began.elapsed() > PATIENCE {
                self.child = Some(child);
                return Err(Error::Server { what: "does not end".to_owned(), log: self.log() });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    pub(crate) fn client(&self) -> Result<Client, Error> {
        Client::new(&self.url, None).map_err(Error::call("reach the private daemon"))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches('/')
    }

    /// The process of a sandbox's engine: some write it themselves, of others it is in the account.
    pub(crate) fn engine(&self, id: &str) -> Result<u32, Error> {
        let run = self.run.join(id.strip_prefix("sbx_").unwrap_or(id));
        let strange = || Error::engine("be found", "nothing says which process it is");
        match fs::read_to_string(run.join("pid")) {
            Ok(text) => text.trim().parse().map_err(|_| strange()),
            Err(_) => {
                let text = fs::read(run.join("engine.json")).map_err(Error::io("find an engine"))?;
                let account: serde_json::Value = serde_json::from_slice(&text).map_err(|_| strange())?;
                account["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).ok_or_else(strange)
            }
        }
    }

    /// The daemon's resident memory, in MB.
    pub(crate) fn resident_mb(&self) -> Result<f64, Error> {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let text = fs::read_to_string(format!("/proc/{pid}/status")).map_err(Error::io("read the daemon's memory"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(f64::NAN);
        Ok(kib * 1024.0 / 1e6)
    }

    /// Engines and places of sandboxes that are still there.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = engines(&self.run).iter().map(|pid| format!("process {pid}")).collect();
        for parent in [self.run.clone(), self.data().join("sandboxes")] {
            let entries = fs::read_dir(parent).into_iter().flatten().flatten();
            // Slots that the network keeps ready are nobody's leftovers.
            let places = entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.ends_with("net"));
            left.extend(places.map(|path| path.display().to_string()));
        }
        left
    }

    fn log_path(&self) -> PathBuf {
        self.path().join("daemon.log")
    }

    /// The end of its log.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        clear(self.path());
        let place = self.path().parent().map(Path::to_owned);
        drop(self.dir.take());
        // It goes too, unless others measure at the same time.
        let _ = place.map(fs::remove_dir);
    }
}

/// Ends what lives on a private directory and removes its sockets; the directory itself is its owner's.
fn clear(dir: &Path) {
    let data = dir.join("data");
    let run = Paths::of(&data).run;
    if let Ok(Some(holder)) = Paths::of(&data).holder()
        && let Some(pid) = holder.pid
        && process_uses(pid, &data)
    {
        signal(pid, Signal::KILL);
    }
    for pid in engines(&run).into_iter().chain(engines(dir)) {
        signal(pid, Signal::KILL);
    }
    remove_cgroups(&run);
    let _ = wakeful_net::erase_after(&run);
    // Ranges of ids are free without their run directory; the names go too.
    for link in fs::read_dir(run.with_file_name("ranges")).into_iter().flatten().flatten() {
        if fs::read_link(link.path()).is_ok_and(|owner| owner.starts_with(&run)) {
            let _ = fs::remove_file(link.path());
        }
    }
    let sockets = run.file_name().unwrap_or_default().to_string_lossy().into_owned() + "-bare";
    for path in [run.with_file_name(sockets), run] {
        let _ = fs::remove_dir_all(path);
    }
}

/// Engines have cgroups, named after the run directory, in every hierarchy that there is; those of killed ones are empty
/// soon. One that stood still in its cgroup dies when that is thawed.
fn remove_cgroups(run: &Path) {
    let prefix = run.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let top = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    let deadline = Instant::now() + Duration::from_secs(2);
    for hierarchy in below.chain([top.to_owned()]) {
        for entry in fs::read_dir(hierarchy.join("wakeful")).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                erase(&entry.path(), deadline);
            }
        }
    }
}

/// Removes what a run has left that was killed: nobody holds its mark any more.
fn sweep(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let dir = entry.path();
        if File::open(dir.join("mark")).is_ok_and(|mark| mark.try_lock().is_ok()) {
            clear(&dir);
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

/// Processes, other than this one, with files open under a directory.
fn engines(dir: &Path) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    pids.filter(|pid| *pid != std::process::id() && process_uses(*pid, dir)).collect()
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// The templates and nothing else, and their bases: the sandboxes of the prepared directory are not ours to wake or destroy.
async fn copy_templates(prepared: &Path, scratch: &Path, data: &Path) -> Result<BTreeMap<String, String>, Error> {
    let failed = || Error::io("copy the database");
    let copy = scratch.join("source.db");
    fs::copy(prepared.join("wakeful.db"), &copy).map_err(failed())?;
    // What a daemon that runs has not folded into the file yet.
    match fs::copy(prepared.join("wakeful.db-wal"), scratch.join("source.db-wal")) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed()(error)),
    }
    let source = SqliteStore::open(&copy).await.map_err(Error::store("open a copy of the database"))?;
    let templates = source.templates(None).await.map_err(Error::store("read the templates"))?;
    source.close().await;
    let target = SqliteStore::open(&data.join("wakeful.db")).await.map_err(Error::store("make a private database"))?;
    for template in &templates {
        target.insert_template(template).await.map_err(Error::store("write a template"))?;
    }
    target.close().await;
    Ok(templates.into_iter().filter_map(|template| Some((template.name, template.base?))).collect())
}

/// A copy of a tree in which every file is the same file.
pub(crate) fn link_tree(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::metadata(from)?;
    fs::create_dir(to)?;
    // A template's directory has directories of other owners; a change of owner takes bits of the mode away.
    chown(to, Some(meta.uid()), Some(meta.gid()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_tree(&entry.path(), &target)?;
        } else {
            fs::hard_link(entry.path(), target)?;
        }
    }
    Ok(())
}

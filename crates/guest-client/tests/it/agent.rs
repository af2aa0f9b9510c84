//! The real agent as an ordinary process, on a socket in a directory of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tokio::net::UnixStream;
use wakeful_guest_client::{Error, Guest};

/// For whatever should take no time at all; the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Ends with the test.
pub(crate) struct Agent {
    child: Child,
    directory: TempDir,
    pub(crate) secret: [u8; 32],
}

impl Agent {
    /// Starts one and waits until it listens.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| Vec::new()).await
    }

    /// The same with more options, made from the directory.
    pub(crate) async fn start_with(options: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let directory = tempfile::Builder::new().prefix("agent-").tempdir_in("/tmp").expect("a directory");
        let secret = *b"an agent's secret of 32 bytes...";
        std::fs::write(directory.path().join("secret"), secret).expect("the secret");
        let mut command = Command::new(binary());
        command.arg("serve").arg("--unix").arg(directory.path().join("socket"));
        command.arg("--secret-file").arg(directory.path().join("secret")).args(options(directory.path()));
        let child = command.stdin(Stdio::null()).spawn().expect("the agent starts");
        let mut agent = Self { child, directory, secret };
        let deadline = Instant::now() + SOON;
        while !agent.socket().exists() {
            assert!(Instant::now() < deadline, "the agent does not listen");
            assert!(agent.child.try_wait().expect("a child").is_none(), "the agent has ended");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        agent
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// A directory that goes away with the agent.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A fresh byte stream to it. It may be refused for a moment between bind and listen.
    pub(crate) async fn dial(&self) -> UnixStream {
        let deadline = Instant::now() + SOON;
        loop {
            match UnixStream::connect(self.socket()).await {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < deadline, "dial: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A channel.
    pub(crate) async fn connect(&self) -> Guest {
        self.connect_with(&self.secret).await.expect("the agent answers")
    }

    /// A channel with some other secret.
    pub(crate) async fn connect_with(&self, secret: &[u8; 32]) -> Result<Guest, Error> {
        Guest::connect(self.dial().await, secret, SOON).await
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent beside this test in the target directory, built if it is not there or older than its sources.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        // target/release/deps/it-…
        let this = std::env::current_exe().expect("our own path");
        let path = this.ancestors().nth(2).expect("a target directory").join("wakeful-agent");
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates");
        let newest = ["agent", "guest-proto", "sys", "tree"].iter().filter_map(|name| newest(&crates.join(name))).max();
        let built = path.metadata().and_then(|file| file.modified()).ok();
        if built < newest {
            let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
            build.args(["build", "--quiet", "--release", "-p", "wakeful-agent"]).current_dir(crates);
            assert!(build.status().expect("cargo runs").success(), "the agent was not built");
            // Cargo leaves the file alone when only comments or times have changed.
            let _ = std::fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        }
        path
    })
}

/// When anything below a directory was changed last.
fn newest(directory: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(directory).ok()?.filter_map(Result::ok);
    let times = entries.filter_map(|entry| match entry.file_type().ok()?.is_dir() {
        true => newest(&entry.path()),
        false => entry.metadata().ok()?.modified().ok(),
    });
    times.max()
}

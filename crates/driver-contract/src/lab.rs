//! What a driver's tests must bring along.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use wakeful_driver::{Card, Driver, Image, Inspector, Machine};
use wakeful_guest_client::Guest;

use crate::sandbox::{Sandbox, shell};

/// What only a guest's memory knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Made up by the guest when it began to count.
    pub token: String,
    /// How far it has come.
    pub number: u64,
}

/// A driver, and what its engines are launched with. Dropped, nothing of it remains.
#[async_trait]
pub trait Lab: Send + Sync {
    /// The driver.
    fn driver(&self) -> Arc<dyn Driver>;

    /// Another one over the same directories, as a later daemon opens it.
    async fn reopened(&self) -> Arc<dyn Driver>;

    /// What engines are launched as.
    fn machine(&self) -> Machine;

    /// What they are launched over.
    fn base(&self) -> &Path;

    /// The golden snapshot that first starts are clones of, and the secret in its memory; none if they are boots.
    fn golden(&self) -> Option<(&Path, &Image, [u8; 32])>;

    /// A card for one launch.
    async fn card(&self) -> Card;

    /// Where data directories are made; for this test alone.
    fn work(&self) -> &Path;

    /// Where run directories are made; for this test alone, and short.
    fn run(&self) -> &Path;

    /// Has the guest count in its memory from now on.
    async fn begin_count(&self, _sandbox: &Sandbox, guest: &Guest) {
        let line = "(token=$(head -c 32 /dev/urandom | md5sum | head -c 32); i=0; \
                    while :; do i=$((i+1)); echo $token $i > /dev/shm/count; sleep 0.05; done) > /dev/null 2>&1 < /dev/null & \
                    while ! test -s /dev/shm/count; do sleep 0.05; done";
        shell(guest, line).await;
    }

    /// How far it has come.
    async fn count(&self, _sandbox: &Sandbox, guest: &Guest) -> Count {
        // Between two counts the file is empty for a moment.
        let line = "while :; do read token n < /dev/shm/count; test -n \"$n\" && break; done; echo $token $n";
        let said = shell(guest, line).await;
        let (token, number) = said.split_once(' ').expect("two words");
        Count { token: token.to_owned(), number: number.parse().expect("a number") }
    }
}

/// A lab with real guests and processes.
#[async_trait]
pub trait RealLab: Lab {
    /// Looks after what this driver's engines leave.
    fn inspector(&self) -> Arc<dyn Inspector>;

    /// Another runtime's.
    fn foreign(&self) -> Arc<dyn Inspector>;

    /// Whether the disk of a running engine can grow on this host; else that is refused, and the next start does it.
    fn grows_awake(&self) -> bool {
        true
    }

    /// Processor time that an engine of this machine may use, in processors.
    fn processors(&self) -> u32;
}

/// Where tests keep what is made once, in a directory of this name.
#[must_use]
pub fn cache(name: &str) -> PathBuf {
    let top = std::env::var_os("WAKEFUL_TEST_CACHE");
    let top = top.map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-cache").into(), PathBuf::from);
    top.join(name)
}

/// A run directory for one test, under a parent that all tests share: what drivers find out about a host is kept there. Paths
/// of sockets are short only under /run.
///
/// # Panics
/// Without root.
#[must_use]
pub fn run_dir() -> PathBuf {
    let mut number = [0; 4];
    getrandom::fill(&mut number).expect("there is entropy");
    let name = format!("{}-{:x}", std::process::id(), u32::from_le_bytes(number));
    let dir = PathBuf::from("/run/wakeful-test").join(name);
    std::fs::create_dir_all(&dir).expect("tests run as root");
    dir
}

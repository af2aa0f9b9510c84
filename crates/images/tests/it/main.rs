//! Images built for real, from the host's own archive.

mod build;
mod cancel;
mod refuse;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use wakeful_images::{Event, Log, Places};

/// Packages are downloaded once for all tests, and kept for the next run.
fn cache() -> PathBuf {
    let kept =
        std::env::var_os("WAKEFUL_TEST_CACHE").map_or_else(|| PathBuf::from("/var/cache/wakeful-test"), PathBuf::from);
    kept.join("packages")
}

/// A build's directories, gone at the end of the test.
struct Site {
    dir: tempfile::TempDir,
    cache: PathBuf,
}

impl Site {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), cache: cache() }
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn bases(&self) -> PathBuf {
        self.dir.path().join("bases")
    }

    fn left_in_work(&self) -> usize {
        entries(&self.work())
    }

    async fn work_is_empty_soon(&self) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.left_in_work() > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(self.left_in_work(), 0);
    }

    fn places<'a>(&'a self, work: &'a Path, bases: &'a Path) -> Places<'a> {
        Places { work, bases, cache: &self.cache }
    }
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Keeps what a build tells.
#[derive(Default)]
struct Kept {
    lines: Mutex<Vec<(&'static str, String)>>,
    fractions: Mutex<Vec<f32>>,
    seen: tokio::sync::Notify,
}

impl Kept {
    fn text(&self) -> String {
        self.lines.lock().unwrap().iter().map(|(step, line)| format!("{step}: {line}\n")).collect()
    }

    fn contains(&self, words: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|(_, line)| line.contains(words))
    }
}

impl Log for Kept {
    fn event(&self, event: Event<'_>) {
        assert!(event.line.len() <= 4096, "lines are bounded");
        self.lines.lock().unwrap().push((event.step, event.line.to_owned()));
        self.fractions.lock().unwrap().extend(event.fraction);
        self.seen.notify_one();
    }
}

//! What an engine that saves processes without their disk cannot save: a file on the disk that a process uses and that has
//! no name any more. An upgrade replaces libraries under running programs, a build removes the directory that a shell is in.
//!
//! ```text
//!   /proc/PID/{exe,cwd,fd/*,maps}  ──▶  "/root/x (deleted)"  ──▶  on a file system in memory?  no: an obstacle
//! ```
//!
//! Found before the engine is touched, because its own refusal comes late and has cut every connection by then. What is
//! missed here (a process in a root of its own, one that starts meanwhile) is refused by the engine; nothing is lost.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wakeful_guest_proto::control::{
    MAX_OBSTACLE_PATH, MAX_OBSTACLES, MAX_PROCESS_NAME, Obstacle, ObstacleKind, Obstacles,
};

const SUFFIX: &[u8] = b" (deleted)";
/// A guest that needs longer has more processes than anybody looks through.
const AT_MOST: Duration = Duration::from_secs(2);
/// Links of descriptors of all processes together.
const MAX_LINKS: usize = 100_000;
/// What is read of one process's map.
const MAX_MAPS: u64 = 4 << 20;
/// Names that the kernel gives to memory.
const MEMORY: [&[u8]; 2] = [b"/memfd:", b"/SYSV"];

/// Looks at every process, this one too. Blocks for a moment.
pub(crate) fn find() -> Obstacles {
    let mut look = Look {
        mounts: Mounts::load(),
        until: Instant::now() + AT_MOST,
        links: MAX_LINKS,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        look.at(pid, &entry.path());
        if look.is_over() {
            break;
        }
    }
    Obstacles { obstacles: look.found }
}

struct Look {
    mounts: Mounts,
    until: Instant,
    links: usize,
    /// The same file is mapped in many pieces, and open by many processes: each is told once a process.
    seen: HashSet<(u32, Vec<u8>)>,
    found: Vec<Obstacle>,
}

impl Look {
    fn is_over(&self) -> bool {
        self.found.len() >= MAX_OBSTACLES || self.links == 0 || Instant::now() >= self.until
    }

    fn at(&mut self, pid: u32, process: &Path) {
        // In this order: what is the program is mapped as well.
        for (name, kind) in [("exe", ObstacleKind::Program), ("cwd", ObstacleKind::Directory)] {
            self.link(pid, kind, &process.join(name));
        }
        self.maps(pid, &process.join("maps"));
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            self.link(pid, ObstacleKind::File, &entry.path());
            self.links = self.links.saturating_sub(1);
            if self.is_over() {
                return;
            }
        }
    }

    fn link(&mut self, pid: u32, kind: ObstacleKind, link: &Path) {
        if let Ok(target) = fs::read_link(link) {
            self.note(pid, kind, target.as_os_str().as_bytes());
        }
    }

    /// `from-to rwxp offset device inode   path`.
    fn maps(&mut self, pid: u32, maps: &Path) {
        let Ok(file) = File::open(maps) else { return };
        let mut lines = BufReader::new(file.take(MAX_MAPS));
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) && !self.is_over() {
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            if text.ends_with(SUFFIX)
                && let Some(at) = text.iter().position(|byte| *byte == b'/')
            {
                self.note(pid, ObstacleKind::Library, &text[at..]);
            }
            line.clear();
        }
    }

    fn note(&mut self, pid: u32, kind: ObstacleKind, name: &[u8]) {
        let Some(path) = name.strip_suffix(SUFFIX) else { return };
        if self.found.len() >= MAX_OBSTACLES
            || !path.starts_with(b"/")
            || MEMORY.iter().any(|memory| path.starts_with(memory))
            || self.mounts.is_memory(path)
            // Somebody may call a file that.
            || fs::symlink_metadata(Path::new(std::ffi::OsStr::from_bytes(name))).is_ok()
            || !self.seen.insert((pid, path.to_vec()))
        {
            return;
        }
        let process = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let shown = |text: &[u8], most| String::from_utf8_lossy(text).trim_end().chars().take(most).collect();
        let (process, path) = (shown(&process, MAX_PROCESS_NAME), shown(path, MAX_OBSTACLE_PATH));
        self.found.push(Obstacle { pid, process, kind, path });
    }
}

/// Which parts of the tree are kept in memory, and so saved with it.
struct Mounts(Vec<(PathBuf, bool)>);

impl Mounts {
    fn load() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/mounts").unwrap_or_default())
    }

    /// `source place type options 0 0`; of two at one place the later one counts.
    fn parse(text: &str) -> Self {
        const MEMORY: [&str; 7] = ["tmpfs", "devtmpfs", "ramfs", "devpts", "proc", "sysfs", "mqueue"];
        let mounts = text.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let place = words.next()?.replace("\\040", " ");
            Some((PathBuf::from(place), MEMORY.contains(&words.next()?)))
        });
        Self(mounts.collect())
    }

    fn is_memory(&self, path: &[u8]) -> bool {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let around = self.0.iter().filter(|(place, _)| path.starts_with(place));
        around.max_by_key(|(place, _)| place.components().count()).is_some_and(|(_, memory)| *memory)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn mounts_in_memory_are_told_from_the_disk() {
        let mounts = Mounts::parse(
            "none / 9p rw 0 0\nnone /tmp tmpfs rw 0 0\nnone /run tmpfs rw 0 0\nx /run/disk 9p ro 0 0\nx /a\\040b tmpfs rw 0 0\n",
        );
        for memory in ["/tmp/x", "/tmp", "/run/x", "/a b/x"] {
            assert!(mounts.is_memory(memory.as_bytes()), "{memory}");
        }
        for disk in ["/root/x", "/tmpx", "/run/disk/x", "/"] {
            assert!(!mounts.is_memory(disk.as_bytes()), "{disk}");
        }
        assert!(!Mounts::parse("").is_memory(b"/x"));
    }

    #[test]
    fn what_has_lost_its_name_is_found() {
        // Beside the build, which is on a disk; a temporary directory may be in memory.
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../target/obstacles-{}", std::process::id()));
        let directory = here.join("gone");
        fs::create_dir_all(&directory).expect("the build's directory is writable");
        let here = here.canonicalize().expect("just made");
        let (program, open, fine) = (here.join("program"), here.join("open"), here.join("kept (deleted)"));
        fs::copy("/bin/sleep", &program).expect("there is one");
        fs::write(&open, "x").expect("writable");
        fs::write(&fine, "x").expect("writable");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec 5<\"$1\" 6<\"$2\"; exec \"$0\" 300"]).args([&program, &open, &fine]);
        let mut child = command.current_dir(here.join("gone")).stdin(Stdio::null()).spawn().expect("starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::read_link(format!("/proc/{}/exe", child.id())).ok().as_deref() != Some(&program) {
            assert!(Instant::now() < deadline, "the program did not start");
            std::thread::yield_now();
        }
        let of_child = || -> Vec<_> {
            let found = find().obstacles.into_iter().filter(|obstacle| obstacle.pid == child.id());
            found.map(|obstacle| (obstacle.kind, PathBuf::from(obstacle.path), obstacle.process)).collect()
        };
        let before = of_child();
        fs::remove_file(&program).expect("ours");
        fs::remove_file(&open).expect("ours");
        fs::remove_dir(&directory).expect("ours");
        let after = of_child();
        child.kill().expect("ours");
        child.wait().expect("ended");
        fs::remove_dir_all(&here).expect("ours");
        assert_eq!(before, []);
        let name = || "program".to_owned();
        let expected = [
            (ObstacleKind::Program, program, name()),
            (ObstacleKind::Directory, here.join("gone"), name()),
            (ObstacleKind::File, open, name()),
        ];
        assert_eq!(after, expected);
    }
}

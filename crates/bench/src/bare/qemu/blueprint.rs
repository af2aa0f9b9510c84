//! What a bare engine is started as: the options of one of our own engines, read off its process.
//!
//! The command line is all that the bare engine takes over from the driver, and it takes it from the outside: the words
//! of `/proc/PID/cmdline`, in which every descriptor is replaced by what it stands for. Files and sockets are then its
//! own. So a driver that changes its options changes them for both.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Error;

/// What a descriptor on the command line stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// The kept engine's directory.
    Engine,
    /// The memory file.
    Memory,
    /// The template's disk.
    Base,
    /// The sandbox's disk.
    Overlay,
    /// The agent's socket.
    Agent,
    /// The monitor's socket.
    Monitor,
    /// The guest's kernel.
    Kernel,
    /// Its first file system.
    Initramfs,
    /// What its card is plugged into.
    Tap,
}

/// A piece of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    /// `/proc/self/fd/N`.
    Path(Role),
    /// `N`.
    Number(Role),
}

/// The files of a golden snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Golden {
    pub(crate) dir: PathBuf,
    pub(crate) secret: [u8; 32],
}

/// Everything that a bare engine is started from.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    /// Options, without the program.
    pub(crate) options: Vec<Vec<Piece>>,
    /// More options, for a card that is plugged into something; empty if ours was not.
    pub(crate) uplink: Vec<Vec<Piece>>,
    pub(crate) engine_dir: PathBuf,
    pub(crate) version: (u32, u32),
    pub(crate) base: PathBuf,
    /// The memory file that our engine maps; a golden snapshot's, unless it was booted.
    pub(crate) memory: PathBuf,
    /// Kernel and initramfs as our engine has them open, if it was booted.
    pub(crate) boot: Option<(PathBuf, PathBuf)>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The first word that is QEMU's, not its loader's.
const FIRST_OPTION: &str = "-no-user-config";

impl Blueprint {
    /// Reads a living engine's command line. Engines are kept below `data`.
    pub(crate) fn of(pid: u32, data: &Path) -> Result<Self, Error> {
        let read = || -> io::Result<(Vec<String>, u32)> {
            let words = fs::read(format!("/proc/{pid}/cmdline"))?;
            let words = words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
            Ok((words.collect(), fs::metadata(format!("/proc/{pid}"))?.uid()))
        };
        let (words, uid) = read().map_err(Error::io("read an engine's command line"))?;
        let first = words.iter().position(|word| word == FIRST_OPTION);
        let first = first.ok_or_else(|| Error::engine("be understood", "its command line has an unknown shape"))?;
        let (options, uplink) = unplugged(&words[first..]);
        let mut found = Vec::new();
        let mut pieces = |words: &[String]| -> Result<Vec<Vec<Piece>>, Error> {
            let each = words.iter().enumerate().filter(|(_, word)| !word.is_empty());
            each.map(|(at, word)| cut(word, words, at, &mut found)).collect()
        };
        let (options, uplink) = (pieces(&options)?, pieces(&uplink)?);
        // An engine closes what it was given as a set and goes on with copies: a file is known by its name.
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let open: Vec<PathBuf> = open.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
        let file = |names: &[&str]| {
            open.iter()
                .find(|path| path.file_name().is_some_and(|name| names.iter().any(|known| name == *known)))
                .cloned()
        };
        let missing = |what: &'static str| Error::engine("be understood", format!("it has no {what} open"));
        let engine_dir = kept_engine(pid, data);
        // A file in memory has no path; it is read through the process that has it open.
        let initramfs = found.iter().find(|(role, _)| *role == Role::Initramfs);
        let initramfs = initramfs.map(|(_, number)| PathBuf::from(format!("/proc/{pid}/fd/{number}")));
        let engine_dir = engine_dir.ok_or_else(|| missing("kept engine"))?;
        let memory = file(&["mem", "mem.base"]).ok_or_else(|| missing("memory"))?;
        // Its group is the one that may map it.
        let gid = fs::metadata(&memory).map_err(Error::io("look at an engine's memory"))?.gid();
        Ok(Self {
            options,
            uplink,
            version: version(&engine_dir),
            engine_dir,
            base: file(&["base.ext4"]).ok_or_else(|| missing("base"))?,
            memory,
            boot: file(&["vmlinux"]).zip(initramfs),
            uid,
            gid,
        })
    }

    /// The golden snapshot that our engine is a clone of.
    pub(crate) fn golden(&self) -> Result<Golden, Error> {
        #[derive(Deserialize)]
        struct Manifest {
            secret: [u8; 32],
        }
        let dir = self.memory.parent().unwrap_or(Path::new("/")).to_owned();
        let text = fs::read(dir.join("manifest.json")).map_err(Error::io("read a golden snapshot's manifest"))?;
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| Error::engine("find its golden snapshot", error))?;
        Ok(Golden { dir, secret: manifest.secret })
    }

    /// The options as text; `place` says what stands for a role.
    pub(crate) fn render(options: &[Vec<Piece>], place: impl Fn(Role) -> (String, String)) -> Vec<String> {
        let word = |pieces: &Vec<Piece>| -> String {
            let each = pieces.iter().map(|piece| match piece {
                Piece::Text(text) => text.clone(),
                Piece::Path(role) => place(*role).0,
                Piece::Number(role) => place(*role).1,
            });
            each.collect()
        };
        options.iter().map(word).collect()
    }
}

/// The directory of the program that a process runs, which may see it as its root: known by the file that it maps.
fn kept_engine(pid: u32, data: &Path) -> Option<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mapped = |inode: u64| maps.lines().any(|line| line.split_ascii_whitespace().nth(4) == Some(&inode.to_string()));
    let kept = fs::read_dir(data.join("engines")).ok()?.flatten().map(|entry| entry.path());
    kept.into_iter().find(|dir| fs::metadata(dir.join("bin/qemu-system-x86_64")).is_ok_and(|meta| mapped(meta.ino())))
}

/// Major and minor number, out of the directory's name: `qemu-7.2.22-9f3a…`.
fn version(engine_dir: &Path) -> (u32, u32) {
    let name = engine_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut numbers = name.split('-').nth(1).unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// All but what the card is plugged into, and that: the card itself is the same with and without.
fn unplugged(words: &[String]) -> (Vec<String>, Vec<String>) {
    let uplink = |at: usize| {
        words[at] == "-netdev"
            && words.get(at + 1).is_some_and(|word| word.starts_with("tap,") || word.contains("netdev=tap"))
    };
    let kept = |at: &usize| !uplink(*at) && !at.checked_sub(1).is_some_and(uplink);
    let (kept, rest): (Vec<usize>, Vec<usize>) = (0..words.len()).partition(kept);
    let all = |places: Vec<usize>| places.into_iter().map(|at| words[at].clone()).collect();
    (all(kept), all(rest))
}

/// Cuts a word at its descriptors.
fn cut(word: &str, options: &[String], at: usize, found: &mut Vec<(Role, String)>) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some((at_mark, mark)) = next_mark(rest) {
        let start = at_mark + mark.len();
        let digits = rest[start..].bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            pieces.push(Piece::Text(rest[..start].to_owned()));
            rest = &rest[start..];
            continue;
        }
        let role = role(word, options, at)
            .ok_or_else(|| Error::engine("be imitated", format!("nobody knows what `{word}` stands for")))?;
        found.push((role, rest[start..start + digits].to_owned()));
        let number = mark == "fd=";
        pieces.push(Piece::Text(rest[..if number { start } else { at_mark }].to_owned()));
        pieces.push(if number { Piece::Number(role) } else { Piece::Path(role) });
        rest = &rest[start + digits..];
    }
    pieces.push(Piece::Text(rest.to_owned()));
    pieces.retain(|piece| *piece != Piece::Text(String::new()));
    Ok(pieces)
}

fn next_mark(text: &str) -> Option<(usize, &'static str)> {
    ["/proc/self/fd/", "fd="].into_iter().filter_map(|mark| Some((text.find(mark)?, mark))).min()
}

fn role(word: &str, options: &[String], at: usize) -> Option<Role> {
    let before = at.checked_sub(1).and_then(|before| options.get(before))?;
    match before.as_str() {
        "-kernel" => Some(Role::Kernel),
        "-initrd" => Some(Role::Initramfs),
        "-chardev" if word.contains("id=agent") => Some(Role::Agent),
        "-chardev" if word.contains("id=qmp") => Some(Role::Monitor),
        "-netdev" if word.starts_with("tap,") => Some(Role::Tap),
        "-object" if word.starts_with("memory-backend-file") => Some(Role::Memory),
        "-add-fd" => {
            let set = format!("/dev/fdset/{}", word.split_once("set=")?.1);
            let disk = options.iter().find(|word| word.split(['=', ',']).any(|part| part == set))?;
            Some(if disk.contains("read-only=on") { Role::Base } else { Role::Overlay })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(words: &[&str]) -> Result<Vec<Vec<Piece>>, Error> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        words.iter().enumerate().map(|(at, word)| cut(word, &words, at, &mut Vec::new())).collect()
    }

    #[test]
    fn the_card_stays_and_its_uplink_goes() {
        let words = ["-netdev", "hubport,id=n,hubid=0", "-netdev", "tap,id=tap,fd=3", "-netdev"];
        let words = words.into_iter().chain(["hubport,id=uplink,hubid=0,netdev=tap", "-S"]).map(str::to_owned);
        let (kept, uplink) = unplugged(&words.collect::<Vec<_>>());
        assert_eq!(kept, ["-netdev", "hubport,id=n,hubid=0", "-S"]);
        assert_eq!(uplink, ["-netdev", "tap,id=tap,fd=3", "-netdev", "hubport,id=uplink,hubid=0,netdev=tap"]);
        let uplink: Vec<&str> = uplink.iter().map(String::as_str).collect();
        let again = Blueprint::render(&all(&uplink).expect("a TAP"), |role| (String::new(), format!("<{role:?}>")));
        assert_eq!(again[1], "tap,id=tap,fd=<Tap>");
    }

    #[test]
    fn descriptors_become_what_they_stand_for() {
        let words = [
            "-object",
            "memory-backend-file,id=m,mem-path=/proc/self/fd/7,share=off",
            "-add-fd",
            "fd=8,set=1",
            "-blockdev",
            "driver=raw,node-name=b,read-only=on,file.driver=file,file.filename=/dev/fdset/1",
            "-add-fd",
            "fd=9,set=2",
            "-blockdev",
            "driver=raw,node-name=o,file.driver=file,file.filename=/dev/fdset/2",
            "-chardev",
            "socket,id=agent,fd=11,server=on",
            "-chardev",
            "socket,id=qmp,fd=12,server=on",
        ];
        let options = all(&words).expect("all are known");
        let again = Blueprint::render(&options, |role| (format!("<{role:?}>"), format!("<{role:?}>")));
        let changed: Vec<&String> = again.iter().filter(|word| word.contains('<')).collect();
        assert_eq!(
            changed,
            [
                "memory-backend-file,id=m,mem-path=<Memory>,share=off",
                "fd=<Base>,set=1",
                "fd=<Overlay>,set=2",
                "socket,id=agent,fd=<Agent>,server=on",
                "socket,id=qmp,fd=<Monitor>,server=on",
            ]
        );
        assert_eq!(again.len(), words.len());
    }

    #[test]
    fn what_nobody_knows_is_refused() {
        assert!(all(&["-device", "vhost-vsock-device,vhostfd=13"]).is_err());
        let plain = all(&["-blockdev", "file.filename=/dev/fdset/1"]).expect("plain");
        assert_eq!(plain[1], [Piece::Text("file.filename=/dev/fdset/1".into())]);
    }

    #[test]
    fn versions_come_from_the_name() {
        assert_eq!(version(Path::new("/data/engines/qemu-7.2.22-eee1c50c4cb8")), (7, 2));
        assert_eq!(version(Path::new("/data/engines/strange")), (0, 0));
    }
}

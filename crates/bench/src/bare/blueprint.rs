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
    /// Reads a living engine's command line.
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let read = || -> io::Result<(Vec<String>, u32, u32)> {
            let words = fs::read(format!("/proc/{pid}/cmdline"))?;
            let words = words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
            let meta = fs::metadata(format!("/proc/{pid}"))?;
            Ok((words.collect(), meta.uid(), meta.gid()))
        };
        let (words, uid, gid) = read().map_err(Error::io("read an engine's command line"))?;
        let first = words.iter().position(|word| word == FIRST_OPTION);
        let first = first.ok_or_else(|| Error::engine("be understood", "its command line has an unknown shape"))?;
        let target = |number: &str| fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap_or_default();
        let (mut found, mut options) = (Vec::new(), Vec::new());
        let mut before = String::new();
        for word in words[first..].iter().filter(|word| !word.is_empty()) {
            options.push(pieces(word, &before, &target, &mut found)?);
            before.clone_from(word);
        }
        let file = |role: Role| {
            found.iter().find(|(of, _)| *of == role).map(|(_, number)| target(number)).filter(|path| path.is_absolute())
        };
        let missing = |what: &'static str| Error::engine("be understood", format!("its command line names no {what}"));
        let engine_dir = words[..first]
            .iter()
            .filter_map(|word| word.strip_prefix("/proc/self/fd/"))
            .filter_map(|rest| rest.split('/').next())
            .map(target)
            .find(|path| path.is_dir());
        // A file in memory has no path; it is read through the process that has it open.
        let initramfs = found.iter().find(|(role, _)| *role == Role::Initramfs);
        let initramfs = initramfs.map(|(_, number)| PathBuf::from(format!("/proc/{pid}/fd/{number}")));
        let engine_dir = engine_dir.ok_or_else(|| missing("engine"))?;
        Ok(Self {
            options,
            version: version(&engine_dir),
            engine_dir,
            base: file(Role::Base).ok_or_else(|| missing("base"))?,
            memory: file(Role::Memory).ok_or_else(|| missing("memory"))?,
            boot: file(Role::Kernel).zip(initramfs),
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

/// Major and minor number, out of the directory's name: `qemu-7.2.22-9f3a…`.
fn version(engine_dir: &Path) -> (u32, u32) {
    let name = engine_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut numbers = name.split('-').nth(1).unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Cuts a word at its descriptors.
fn pieces(
    word: &str,
    before: &str,
    target: &dyn Fn(&str) -> PathBuf,
    found: &mut Vec<(Role, String)>,
) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some((at, mark)) = next_mark(rest) {
        let start = at + mark.len();
        let digits = rest[start..].bytes().take_while(u8::is_ascii_digit).count();
        let number = &rest[start..start + digits];
        if digits == 0 {
            pieces.push(Piece::Text(rest[..start].to_owned()));
            rest = &rest[start..];
            continue;
        }
        let path = target(number);
        let role = role(word, before, &path)
            .ok_or_else(|| Error::engine("be imitated", format!("`{word}` means {}", path.display())))?;
        found.push((role, number.to_owned()));
        if mark == "fd=" {
            pieces.push(Piece::Text(rest[..start].to_owned()));
            pieces.push(Piece::Number(role));
        } else {
            pieces.push(Piece::Text(rest[..at].to_owned()));
            pieces.push(Piece::Path(role));
        }
        rest = &rest[start + digits..];
    }
    pieces.push(Piece::Text(rest.to_owned()));
    pieces.retain(|piece| *piece != Piece::Text(String::new()));
    Ok(pieces)
}

fn next_mark(text: &str) -> Option<(usize, &'static str)> {
    ["/proc/self/fd/", "fd="].into_iter().filter_map(|mark| Some((text.find(mark)?, mark))).min()
}

fn role(word: &str, before: &str, target: &Path) -> Option<Role> {
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match before {
        "-kernel" => Some(Role::Kernel),
        "-initrd" => Some(Role::Initramfs),
        "-chardev" if word.contains("id=agent") => Some(Role::Agent),
        "-chardev" if word.contains("id=qmp") => Some(Role::Monitor),
        "-object" if word.starts_with("memory-backend-file") => Some(Role::Memory),
        "-add-fd" if name == "base.ext4" => Some(Role::Base),
        "-add-fd" if name == "overlay.ext4" => Some(Role::Overlay),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(number: &str) -> PathBuf {
        PathBuf::from(match number {
            "7" => "/data/golden/tpl/c1/key/mem",
            "8" => "/data/bases/x/base.ext4",
            "9" => "/data/sandboxes/y/overlay.ext4",
            _ => "socket:[12]",
        })
    }

    fn cut(word: &str, before: &str) -> Result<Vec<Piece>, Error> {
        pieces(word, before, &target, &mut Vec::new())
    }

    #[test]
    fn descriptors_become_what_they_stand_for() {
        let words = [
            ("-object", "memory-backend-file,id=m,mem-path=/proc/self/fd/7,share=off"),
            ("-add-fd", "fd=8,set=1"),
            ("-add-fd", "fd=9,set=2"),
            ("-chardev", "socket,id=agent,fd=11,server=on"),
            ("-chardev", "socket,id=qmp,fd=12,server=on"),
        ];
        let options: Vec<_> = words.iter().map(|(before, word)| cut(word, before).expect("known")).collect();
        let again = Blueprint::render(&options, |role| (format!("<{role:?}>"), format!("{}", role as u8 + 100)));
        assert_eq!(
            again,
            [
                "memory-backend-file,id=m,mem-path=<Memory>,share=off",
                "fd=102,set=1",
                "fd=103,set=2",
                "socket,id=agent,fd=104,server=on",
                "socket,id=qmp,fd=105,server=on",
            ]
        );
    }

    #[test]
    fn what_nobody_knows_is_refused() {
        assert!(cut("tap,id=n,fd=13", "-netdev").is_err());
        assert_eq!(cut("/dev/fdset/1", "-blockdev").expect("plain"), [Piece::Text("/dev/fdset/1".into())]);
    }

    #[test]
    fn versions_come_from_the_name() {
        assert_eq!(version(Path::new("/data/engines/qemu-7.2.22-eee1c50c4cb8")), (7, 2));
        assert_eq!(version(Path::new("/data/engines/strange")), (0, 0));
    }
}

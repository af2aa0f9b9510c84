//! Which files a source of COPY means.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType};

use crate::context::{Context, Selected, SelectedKind};
use crate::error::Error;
use crate::glob::{Flavour, Glob, is_pattern};
use crate::ignore::{Above, Ignore};

const MAX_ENTRIES: usize = 1_000_000;
const MAX_DEPTH: usize = 1_000;
const MAX_LINKS: usize = 40;

/// What was found so far.
pub(crate) struct Selection<'a> {
    context: &'a Context,
    excludes: Ignore,
    pub(crate) parents: bool,
    selected: Vec<Selected>,
    kept_parents: HashSet<PathBuf>,
}

/// One thing that a source names.
struct Found {
    /// As the source names it, links included.
    named: PathBuf,
    /// Where that is.
    real: PathBuf,
}

/// A place while a directory is walked.
struct Place {
    path: PathBuf,
    name: PathBuf,
    /// Below the source, for excludes.
    below: PathBuf,
    hidden: Above,
    excluded: Above,
    depth: usize,
}

struct Stat {
    kind: FileType,
    mode: u32,
    size: u64,
}

impl<'a> Selection<'a> {
    pub(crate) fn new(context: &'a Context, excludes: &[String]) -> Result<Self, Error> {
        let excludes = Ignore::new(excludes).map_err(|why| Error::syntax(0, format!("--exclude: {why}")))?;
        Ok(Self { context, excludes, parents: false, selected: Vec::new(), kept_parents: HashSet::new() })
    }

    pub(crate) fn finish(self) -> Vec<Selected> {
        self.selected
    }

    /// Adds what one source means.
    pub(crate) fn add(&mut self, source: &str) -> Result<(), Error> {
        let (pivot, parts) = self.parts(source)?;
        let found = self.expand(source, &parts)?;
        let mut hidden = false;
        let mut any = false;
        for one in found {
            let Some(stat) = self.stat(&one.real)? else { continue };
            let text = one.real.to_string_lossy().into_owned();
            let (ignored, above) = self.context.ignore.look_from_top(&text);
            let kept = if self.parents {
                one.named.components().skip(pivot).collect()
            } else if stat.kind == FileType::Directory {
                PathBuf::new()
            } else {
                one.named.file_name().map(PathBuf::from).unwrap_or_default()
            };
            if stat.kind == FileType::Directory {
                if ignored && !self.context.ignore.may_reveal_below(&text) {
                    hidden = true;
                    continue;
                }
                let from = self.selected.len();
                if self.parents {
                    self.keep_parents(&one, &kept, true)?;
                }
                let root = self.selected.len();
                self.walk(&Place {
                    path: one.real,
                    name: kept,
                    below: PathBuf::new(),
                    hidden: above,
                    excluded: Above::default(),
                    depth: 0,
                })?;
                if ignored && self.selected.len() == root {
                    self.selected.truncate(from);
                    hidden = true;
                    continue;
                }
                any = true;
            } else if ignored {
                hidden = true;
            } else {
                any = true;
                let base = kept.file_name().unwrap_or_default().to_string_lossy();
                if self.excludes.look_from_top(&base).0 || self.excludes.look_from_top(&kept.to_string_lossy()).0 {
                    continue;
                }
                if self.parents {
                    self.keep_parents(&one, &kept, false)?;
                }
                self.push(one.real, kept, &stat, true)?;
            }
        }
        match (any, hidden) {
            (true, _) => Ok(()),
            (false, true) => Err(Error::source(source, "it is hidden by .dockerignore")),
            (false, false) if parts.iter().any(|part| is_pattern(part)) => {
                Err(Error::source(source, "nothing in the context matches it"))
            }
            (false, false) => Err(Error::source(source, "it is not in the context")),
        }
    }

    /// The source without `.`, `..` and double slashes; with `--parents`, how many of its parts are not kept (those
    /// before `/./`).
    fn parts(&self, source: &str) -> Result<(usize, Vec<String>), Error> {
        let mut parts: Vec<String> = Vec::new();
        let mut pivot = 0;
        for part in source.split('/') {
            match part {
                "" => {}
                "." => pivot = parts.len(),
                ".." => {
                    if parts.pop().is_none() {
                        return Err(Error::source(source, "it is outside the context"));
                    }
                }
                part => parts.push(part.to_owned()),
            }
        }
        // A dot at the end means the directory, not a border.
        if source.ends_with("/.") || source == "." {
            pivot = 0;
        }
        Ok((pivot.min(parts.len()), parts))
    }

    /// Everything that a source with patterns names, in order.
    fn expand(&self, source: &str, parts: &[String]) -> Result<Vec<Found>, Error> {
        let mut found = vec![Found { named: PathBuf::new(), real: PathBuf::new() }];
        for part in parts {
            let mut next = Vec::new();
            if self.parents && part == "**" {
                for one in found {
                    self.directories(one, &mut next, 0)?;
                }
            } else if is_pattern(part) {
                let glob = Glob::new(part, Flavour::Path).map_err(|why| Error::source(source, why))?;
                for one in &found {
                    if self.stat(&one.real)?.is_none_or(|stat| stat.kind != FileType::Directory) {
                        continue;
                    }
                    for name in self.list(&one.real)? {
                        if glob.matches(&name.to_string_lossy())
                            && let Some(real) = self.resolve(source, &one.real.join(&name))?
                        {
                            next.push(Found { named: one.named.join(&name), real });
                        }
                    }
                }
            } else {
                for one in &found {
                    if let Some(real) = self.resolve(source, &one.real.join(part))? {
                        next.push(Found { named: one.named.join(part), real });
                    }
                }
            }
            if next.len() > MAX_ENTRIES {
                return Err(Error::limit(0, format!("{source:?} matches more than {MAX_ENTRIES} files")));
            }
            found = next;
        }
        Ok(found)
    }

    /// A directory and all below it.
    fn directories(&self, one: Found, into: &mut Vec<Found>, depth: usize) -> Result<(), Error> {
        if self.stat(&one.real)?.is_none_or(|stat| stat.kind != FileType::Directory) {
            return Ok(());
        }
        if depth > MAX_DEPTH || into.len() > MAX_ENTRIES {
            return Err(Error::limit(0, "the context is too deep or has too many directories"));
        }
        let names = self.list(&one.real)?;
        let (named, real) = (one.named.clone(), one.real.clone());
        into.push(one);
        for name in names {
            self.directories(Found { named: named.join(&name), real: real.join(&name) }, into, depth + 1)?;
        }
        Ok(())
    }

    /// Where a path is once every link in it is followed; nothing if it is not there.
    fn resolve(&self, source: &str, path: &Path) -> Result<Option<PathBuf>, Error> {
        let outside = || Error::source(source, "a symbolic link in it leads out of the context");
        let mut links = 0;
        let mut real = PathBuf::new();
        let mut rest: Vec<OsString> = pieces(path);
        rest.reverse();
        while let Some(piece) = rest.pop() {
            if piece == ".." {
                if !real.pop() && self.context.strict {
                    return Err(outside());
                }
                continue;
            }
            let next = real.join(&piece);
            let Some(stat) = self.stat(&next)? else { return Ok(None) };
            if stat.kind != FileType::Symlink {
                real = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::source(source, "it has too many symbolic links"));
            }
            let target = self.context.link(&next)?;
            let target = <OsString as std::os::unix::ffi::OsStringExt>::from_vec(target);
            let target = Path::new(&target);
            if target.is_absolute() {
                if self.context.strict {
                    return Err(outside());
                }
                real = PathBuf::new();
            }
            rest.extend(pieces(target).into_iter().rev());
        }
        Ok(Some(real))
    }

    fn stat(&self, path: &Path) -> Result<Option<Stat>, Error> {
        let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match rustix::fs::statat(&self.context.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Stat {
                kind: FileType::from_raw_mode(stat.st_mode),
                mode: stat.st_mode & 0o7777,
                size: u64::try_from(stat.st_size).unwrap_or_default(),
            })),
            Err(
                rustix::io::Errno::NOENT
                | rustix::io::Errno::NOTDIR
                | rustix::io::Errno::NAMETOOLONG
                | rustix::io::Errno::INVAL,
            ) => Ok(None),
            Err(why) => Err(Error::io("look at", path)(why.into())),
        }
    }

    /// The names in a directory, sorted.
    fn list(&self, path: &Path) -> Result<Vec<OsString>, Error> {
        let whole = self.context.root.join(path);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&whole).map_err(Error::io("list", path))? {
            if names.len() == MAX_ENTRIES {
                return Err(Error::limit(0, format!("{} has more than {MAX_ENTRIES} files", path.display())));
            }
            names.push(entry.map_err(Error::io("list", path))?.file_name());
        }
        names.sort();
        Ok(names)
    }

    fn walk(&mut self, place: &Place) -> Result<(), Error> {
        if place.depth > MAX_DEPTH {
            return Err(Error::limit(0, format!("{} is more than {MAX_DEPTH} directories deep", place.path.display())));
        }
        for file in self.list(&place.path)? {
            let path = place.path.join(&file);
            let below = place.below.join(&file);
            let name = place.name.join(&file);
            let Some(stat) = self.stat(&path)? else { continue };
            let text = path.to_string_lossy();
            let (ignored, hidden) = self.context.ignore.look(&place.hidden, &text);
            let (left_out, excluded) = self.excludes.look(&place.excluded, &below.to_string_lossy());
            if stat.kind != FileType::Directory {
                if !ignored && !left_out {
                    self.push(path, name, &stat, false)?;
                }
                continue;
            }
            let closed = (ignored && !self.context.ignore.may_reveal_below(&text))
                || (left_out && !self.excludes.may_reveal_below(&below.to_string_lossy()));
            if closed {
                continue;
            }
            self.push(path.clone(), name.clone(), &stat, false)?;
            let before = self.selected.len();
            self.walk(&Place { path, name, below, hidden, excluded, depth: place.depth + 1 })?;
            // A hidden directory exists only for what is seen in it.
            if (ignored || left_out) && self.selected.len() == before {
                self.selected.pop();
            }
        }
        Ok(())
    }

    /// Adds the directories above a source that is to keep them, and with `own` the source itself.
    fn keep_parents(&mut self, one: &Found, kept: &Path, own: bool) -> Result<(), Error> {
        let dropped = one.named.components().count() - kept.components().count();
        let whole: Vec<Component<'_>> = one.named.components().collect();
        let last = if own { whole.len() } else { whole.len().saturating_sub(1) };
        for end in dropped + 1..=last {
            let named: PathBuf = whole[..end].iter().collect();
            let name: PathBuf = whole[dropped..end].iter().collect();
            if !self.kept_parents.insert(name.clone()) {
                continue;
            }
            let Some(real) = self.resolve(&named.to_string_lossy(), &named)? else { continue };
            if let Some(stat) = self.stat(&real)?.filter(|stat| stat.kind == FileType::Directory) {
                self.push(real, name, &stat, false)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, path: PathBuf, name: PathBuf, stat: &Stat, top: bool) -> Result<(), Error> {
        let (kind, size) = match stat.kind {
            FileType::RegularFile => (SelectedKind::File, stat.size),
            FileType::Directory => (SelectedKind::Directory, 0),
            FileType::Symlink => (SelectedKind::Symlink, 0),
            // A socket of an editor or a version control is no reason to fail, and no content.
            _ => return Ok(()),
        };
        // Links have no permissions of their own.
        let mode = if kind == SelectedKind::Symlink { 0o777 } else { stat.mode };
        if self.selected.len() == MAX_ENTRIES {
            return Err(Error::limit(0, format!("more than {MAX_ENTRIES} files are copied at once")));
        }
        self.selected.push(Selected { path, name, kind, mode, size, top });
        Ok(())
    }
}

fn pieces(path: &Path) -> Vec<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        })
        .collect()
}

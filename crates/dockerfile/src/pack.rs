//! What was selected, as a tar stream.

use std::io::{self, Read, Write};
use std::path::Path;

use tar::{Builder, EntryType, Header};

use crate::action::InlineFile;
use crate::archive;
use crate::context::{Context, Selected, SelectedKind, changed};
use crate::error::Error;

/// One entry of the stream.
pub(crate) struct Entry<'a> {
    pub(crate) kind: EntryType,
    pub(crate) name: &'a [u8],
    pub(crate) link: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    pub(crate) modified: u64,
    pub(crate) size: u64,
    /// Further pax records.
    pub(crate) records: Vec<(String, Vec<u8>)>,
}

impl Default for Entry<'_> {
    fn default() -> Self {
        Self {
            kind: EntryType::Regular,
            name: b"",
            link: b"",
            mode: 0o644,
            owner: (0, 0),
            modified: 0,
            size: 0,
            records: Vec::new(),
        }
    }
}

/// Writes one entry; how many bytes of it were there.
pub(crate) fn append<W: Write>(tar: &mut Builder<W>, entry: Entry<'_>, content: impl Read) -> io::Result<u64> {
    let mut records = entry.records;
    let mut name = entry.name.to_vec();
    if entry.kind == EntryType::Directory && !name.ends_with(b"/") {
        name.push(b'/');
    }
    let mut header = Header::new_gnu();
    header.set_entry_type(entry.kind);
    // Names of any length and any bytes go into records; the header then has their beginning for old readers.
    let old = header.as_old_mut();
    for (field, value, record) in
        [(&mut old.name, name.as_slice(), "path"), (&mut old.linkname, entry.link, "linkpath")]
    {
        let short = value.len().min(field.len());
        field[..short].copy_from_slice(&value[..short]);
        if short < value.len() {
            records.push((record.to_owned(), value.to_vec()));
        }
    }
    header.set_mode(entry.mode & 0o7777);
    header.set_uid(entry.owner.0);
    header.set_gid(entry.owner.1);
    header.set_mtime(entry.modified);
    header.set_size(entry.size);
    header.set_cksum();
    if !records.is_empty() {
        tar.append_pax_extensions(records.iter().map(|(name, value)| (name.as_str(), value.as_slice())))?;
    }
    let mut content = Counting { inner: content.take(entry.size), count: 0 };
    tar.append(&header, &mut content)?;
    Ok(content.count)
}

struct Counting<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count += count as u64;
        Ok(count)
    }
}

impl Context {
    /// Writes what was selected, and files of the Dockerfile beside it, as one tar stream: names are those below the
    /// destination, owners are 0:0 (those of an archive's entries are their own), permissions and times are kept.
    ///
    /// # Errors
    /// A file that cannot be read or changed meanwhile, an archive that is broken or leads out, a writer that fails. The
    /// stream is not complete then and must not be used.
    pub fn pack(&self, selected: &[Selected], inline: &[InlineFile], writer: impl Write) -> Result<(), Error> {
        let mut tar = Builder::new(writer);
        for one in selected {
            self.pack_one(one, &mut tar)?;
        }
        finish(tar, inline)
    }

    fn pack_one<W: Write>(&self, one: &Selected, tar: &mut Builder<W>) -> Result<(), Error> {
        let fail = Error::io("pack", &one.path);
        let mut entry = Entry { name: one.name.as_os_str().as_encoded_bytes(), mode: one.mode, ..Entry::default() };
        let time = |seconds: i64| u64::try_from(seconds).unwrap_or_default();
        match one.kind {
            SelectedKind::Directory | SelectedKind::Symlink => {
                let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                let stat = rustix::fs::statat(&self.fd, &one.path, flags)
                    .map_err(|why| Error::io("look at", &one.path)(why.into()))?;
                entry.modified = time(stat.st_mtime);
                entry.kind = EntryType::Directory;
                let target;
                if one.kind == SelectedKind::Symlink {
                    target = self.link(&one.path)?;
                    entry.kind = EntryType::Symlink;
                    entry.link = &target;
                    return append(tar, entry, io::empty()).map(drop).map_err(fail);
                }
                append(tar, entry, io::empty()).map(drop).map_err(fail)
            }
            SelectedKind::File => {
                let (file, modified) = self.read(&one.path)?;
                entry.modified = time(modified);
                entry.size = one.size;
                if append(tar, entry, file).map_err(fail)? != one.size {
                    return Err(changed(&one.path));
                }
                Ok(())
            }
            SelectedKind::Archive(format) => {
                let (file, _) = self.read(&one.path)?;
                archive::unfold(file, format, &one.path, tar)
            }
        }
    }
}

/// Writes files of a Dockerfile alone as a tar stream.
///
/// # Errors
/// The writer fails.
pub fn pack_inline(files: &[InlineFile], writer: impl Write) -> Result<(), Error> {
    finish(Builder::new(writer), files)
}

fn finish<W: Write>(mut tar: Builder<W>, inline: &[InlineFile]) -> Result<(), Error> {
    for file in inline {
        let entry = Entry { name: file.name.as_bytes(), size: file.content.len() as u64, ..Entry::default() };
        append(&mut tar, entry, file.content.as_slice()).map_err(Error::io("pack", Path::new(&file.name)))?;
    }
    let end = |why| Error::io("end", Path::new("tar stream"))(why);
    tar.into_inner().map_err(end)?.flush().map_err(end)
}

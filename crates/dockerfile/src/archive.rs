//! Archives that ADD unpacks: recognised by their content, streamed entry by entry into the step's own tar.
//!
//! They come with the context and are as little trusted: names are rewritten to stay below the destination or refused,
//! headers that would be held in memory are bounded, and so are the number of entries and their bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;
use tar::{Builder, EntryType};

use crate::error::Error;
use crate::pack::{Entry, append};

const MAX_ENTRIES: u64 = 1_000_000;
const MAX_BYTES: u64 = 64 << 30;
const MAX_NAME: u64 = 1 << 16;
const MAX_RECORDS: u64 = 1 << 20;
/// What a decoder may remember of what it wrote.
const MAX_WINDOW: u64 = 128 << 20;
const BLOCK: usize = 512;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Not at all.
    Plain,
    /// gzip.
    Gzip,
    /// xz.
    Xz,
    /// Zstandard.
    Zstd,
}

impl Format {
    /// What a file is; nothing if it is no tar archive, compressed or not.
    pub(crate) fn of(open: impl Fn() -> Result<File, Error>, path: &Path) -> Result<Option<Self>, Error> {
        let mut start = [0; BLOCK];
        let length = fill(&mut open()?, &mut start).map_err(Error::io("read", path))?;
        let format = match &start[..length] {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => {
                return Err(Error::archive(
                    path,
                    "bzip2 is not unpacked here: compress it with gzip, xz or zstd, or use ADD --unpack=false and RUN tar",
                ));
            }
            _ => return Ok(is_tar(&start[..length]).then_some(Self::Plain)),
        };
        // A compressed file that is no archive, or that is broken, is copied as it is.
        let Ok(mut reader) = format.reader(open()?) else { return Ok(None) };
        let mut inside = [0; BLOCK];
        let length = fill(&mut reader, &mut inside).unwrap_or(0);
        Ok(is_tar(&inside[..length]).then_some(format))
    }

    fn reader(self, file: File) -> io::Result<Box<dyn Read>> {
        let file = BufReader::with_capacity(1 << 16, file);
        Ok(match self {
            Self::Plain => Box::new(file),
            Self::Gzip => Box::new(MultiGzDecoder::new(file)),
            Self::Xz => {
                Box::new(XzReader::new_mem_limit(file, true, u32::try_from(MAX_WINDOW >> 10).unwrap_or(u32::MAX)))
            }
            Self::Zstd => Box::new(Frames { decoder: Some(frame(file)?) }),
        })
    }
}

fn frame<R: Read>(source: R) -> io::Result<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>> {
    StreamingDecoder::new_with_max_window_size(source, MAX_WINDOW).map_err(io::Error::other)
}

/// Zstandard frames one after the other, as `zstd` and `pzstd` write them; the decoder knows one.
struct Frames<R: BufRead> {
    decoder: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let count = decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(decoder) = self.decoder.take() else { break };
            let mut source = decoder.into_inner();
            if !source.fill_buf()?.is_empty() {
                self.decoder = Some(frame(source)?);
            }
        }
        Ok(0)
    }
}

fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match reader.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(length)
}

/// Whether a block is the head of a tar entry: its checksum tells.
fn is_tar(block: &[u8]) -> bool {
    if block.len() < BLOCK || block[0] == 0 {
        return false;
    }
    let sum: u32 =
        block.iter().enumerate().map(|(i, byte)| if (148..156).contains(&i) { 32 } else { u32::from(*byte) }).sum();
    let digits: String = block[148..156].iter().map(|byte| char::from(*byte)).collect();
    u32::from_str_radix(digits.trim_matches([' ', '\0']), 8).is_ok_and(|written| written == sum)
}

/// What headers before an entry say about it.
#[derive(Default)]
struct Ahead {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    owner: (Option<u64>, Option<u64>),
    modified: Option<u64>,
    xattrs: Vec<(String, Vec<u8>)>,
}

/// Writes an archive's entries into a tar stream.
pub(crate) fn unfold<W: Write>(file: File, format: Format, path: &Path, tar: &mut Builder<W>) -> Result<(), Error> {
    let broken = |why: io::Error| Error::archive(path, why.to_string());
    let mut archive = tar::Archive::new(format.reader(file).map_err(broken)?);
    let mut ahead = Ahead::default();
    let (mut count, mut bytes) = (0u64, 0u64);
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        count += 1;
        if count > MAX_ENTRIES {
            return Err(Error::archive(path, format!("it has more than {MAX_ENTRIES} entries")));
        }
        let header = entry.header().clone();
        let kind = header.entry_type();
        let size = header.entry_size().map_err(broken)?;
        if kind.is_gnu_longname() || kind.is_gnu_longlink() {
            let text = whole(&mut entry, size, MAX_NAME, path)?;
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
            if kind.is_gnu_longname() {
                ahead.name = Some(text);
            } else {
                ahead.link = Some(text);
            }
            continue;
        }
        if kind.is_pax_local_extensions() {
            let text = whole(&mut entry, size, MAX_RECORDS, path)?;
            records(&text, &mut ahead, path)?;
            continue;
        }
        if kind.is_pax_global_extensions() {
            continue;
        }
        let said = std::mem::take(&mut ahead);
        if said.size.is_some_and(|own| own != size) {
            return Err(Error::archive(path, "an entry has two lengths"));
        }
        let name = said.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let name = below(&name, path)?;
        let link = said.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        let kind = match kind {
            EntryType::Regular | EntryType::Continuous if header.path_bytes().ends_with(b"/") => EntryType::Directory,
            EntryType::Regular | EntryType::Continuous => EntryType::Regular,
            EntryType::Directory | EntryType::Symlink | EntryType::Link => kind,
            EntryType::GNUSparse => return Err(Error::archive(path, "it has sparse files: pack it without --sparse")),
            // Devices and pipes: a sandbox makes its own.
            _ => continue,
        };
        if name.is_empty() {
            continue;
        }
        let link = if kind == EntryType::Link { below(&link, path)? } else { link };
        let size = if kind == EntryType::Regular { size } else { 0 };
        bytes = bytes.saturating_add(size);
        if bytes > MAX_BYTES {
            return Err(Error::archive(path, format!("it unpacks to more than {MAX_BYTES} bytes")));
        }
        let out = Entry {
            kind,
            name: &name,
            link: &link,
            mode: header.mode().map_err(broken)?,
            owner: (
                said.owner.0.map_or_else(|| header.uid(), Ok).map_err(broken)?,
                said.owner.1.map_or_else(|| header.gid(), Ok).map_err(broken)?,
            ),
            modified: said.modified.map_or_else(|| header.mtime(), Ok).map_err(broken)?,
            size,
            records: said.xattrs,
        };
        // A broken archive is the caller's matter, a writer that fails is ours.
        let mut content = Noting { inner: &mut entry, failed: None };
        let copied = append(tar, out, &mut content);
        if let Some(why) = content.failed {
            return Err(Error::archive(path, why));
        }
        let copied = copied.map_err(Error::io("pack", path))?;
        if copied != size {
            return Err(Error::archive(path, "it ends in the middle of a file"));
        }
    }
    // What is behind the last entry has to be read too: a checksum may stand there.
    let mut rest = archive.into_inner().take(MAX_BYTES);
    io::copy(&mut rest, &mut io::sink()).map(drop).map_err(broken)
}

/// Remembers why reading failed.
struct Noting<R> {
    inner: R,
    failed: Option<String>,
}

impl<R: Read> Read for Noting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).inspect_err(|why| {
            if why.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(why.to_string());
            }
        })
    }
}

fn whole(entry: &mut impl Read, size: u64, most: u64, path: &Path) -> Result<Vec<u8>, Error> {
    if size > most {
        return Err(Error::archive(path, format!("a name or its records are longer than {most} bytes")));
    }
    let mut bytes = Vec::new();
    entry.take(size).read_to_end(&mut bytes).map_err(|why| Error::archive(path, why.to_string()))?;
    Ok(bytes)
}

/// Reads pax records: `length name=value\n`, the length counting itself.
fn records(mut text: &[u8], ahead: &mut Ahead, path: &Path) -> Result<(), Error> {
    let broken = || Error::archive(path, "it has broken pax records");
    while !text.is_empty() && text[0] != 0 {
        let space = text.iter().take(20).position(|byte| *byte == b' ').ok_or_else(broken)?;
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
        let length = number(&text[..space]).and_then(|n| usize::try_from(n).ok()).ok_or_else(broken)?;
        if length <= space + 1 || length > text.len() || text[length - 1] != b'\n' {
            return Err(broken());
        }
        let record = &text[space + 1..length - 1];
        text = &text[length..];
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
        let name = std::str::from_utf8(&record[..equals]).map_err(|_| broken())?;
        let value = &record[equals + 1..];
        match name {
            "path" => ahead.name = Some(value.to_vec()),
            "linkpath" => ahead.link = Some(value.to_vec()),
            "size" => ahead.size = Some(number(value).ok_or_else(broken)?),
            "uid" => ahead.owner.0 = Some(number(value).ok_or_else(broken)?),
            "gid" => ahead.owner.1 = Some(number(value).ok_or_else(broken)?),
            // Parts of a second are not kept.
            "mtime" => ahead.modified = value.split(|byte| *byte == b'.').next().and_then(number),
            name if name.starts_with("SCHILY.xattr.") => ahead.xattrs.push((name.to_owned(), value.to_vec())),
            name if name.starts_with("GNU.sparse.") => {
                return Err(Error::archive(path, "it has sparse files: pack it without --sparse"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A name without what leads elsewhere; empty for the top itself.
fn below(name: &[u8], path: &Path) -> Result<Vec<u8>, Error> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let name = String::from_utf8_lossy(name);
                return Err(Error::archive(path, format!("the entry {name:?} leads out of it")));
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join(&b'/'))
}

//! A tar stream, entry by entry: v7, ustar, GNU and pax, with all four kinds of sparse maps.
//!
//! Nothing here touches a file system. What an entry claims is bounded before anything is kept or skipped for it.

use std::io::{self, BufReader, Read};

use crate::block::{self, BLOCK, BLOCK_LEN, Header, bad_number};
use crate::error::Error;
use crate::options::{Limits, Summary};
use crate::{MAX_NAME, pax};

/// All pax records of one entry; extended attributes are at most 64 KiB each on any file system.
const MAX_PAX: u64 = 1 << 20;
/// Pieces of data in one sparse file.
const MAX_PIECES: usize = 1 << 20;
const BUFFER: usize = 128 * 1024;

/// What an entry is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Hard,
    Fifo,
    Device,
    Other,
}

/// One entry, before its data.
#[derive(Debug)]
pub(crate) struct Entry {
    /// As it came.
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes unpacked, holes included.
    pub(crate) size: u64,
    /// Where the data that follows belongs: offsets and lengths, in order.
    pub(crate) pieces: Vec<(u64, u64)>,
}

/// How a sparse map is said by pax records.
#[derive(Default)]
struct Sparse {
    major: Option<u64>,
    size: Option<u64>,
    name: Option<Vec<u8>>,
    map: Vec<(u64, u64)>,
    offset: Option<u64>,
    present: bool,
}

/// What extension headers said of the entry that follows them.
#[derive(Default)]
struct Ahead {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Vec<u8>>,
}

impl Ahead {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.link.is_none() && self.records.is_none()
    }
}

pub(crate) struct Reader<R> {
    input: BufReader<R>,
    limits: Limits,
    /// Whether the end of the stream may stand for the end of the archive.
    open_end: bool,
    at: u64,
    /// Data of the current entry that was not read yet, and what fills its last block.
    left: u64,
    fill: u64,
    entries: u64,
    bytes: u64,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(input: R, limits: Limits, open_end: bool) -> Self {
        let input = BufReader::with_capacity(BUFFER, input);
        Self { input, limits, open_end, at: 0, left: 0, fill: 0, entries: 0, bytes: 0 }
    }

    /// One more entry that counts against the limit; also for directories that an entry implies.
    pub(crate) fn count(&mut self) -> Result<(), Error> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(Error::TooMany { limit: self.limits.entries });
        }
        Ok(())
    }

    /// The next entry; what is left of the last one's data is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, Error> {
        self.skip(self.left)?;
        match self.skip(self.fill) {
            // Some tools leave out even what fills the last block.
            Err(Error::Truncated { .. }) if self.open_end => return Ok(None),
            skipped => skipped?,
        }
        let mut ahead = Ahead::default();
        loop {
            (self.left, self.fill) = (0, 0);
            let Some(block) = self.header()? else {
                if !ahead.is_empty() || !self.open_end {
                    return Err(Error::Truncated { at: self.at });
                }
                return Ok(None);
            };
            if block.iter().all(|byte| *byte == 0) {
                if !ahead.is_empty() {
                    return Err(self.damaged("an extension header has no entry"));
                }
                return Ok(None);
            }
            let header = Header(&block);
            if !header.sum_is_right() {
                return Err(self.damaged("the checksum of a header is wrong"));
            }
            match header.kind() {
                b'L' if ahead.name.is_none() => ahead.name = Some(self.long_name(&header)?),
                b'K' if ahead.link.is_none() => ahead.link = Some(self.long_name(&header)?),
                b'x' | b'X' if ahead.records.is_none() => ahead.records = Some(self.records(&header)?),
                b'L' | b'K' | b'x' | b'X' => return Err(self.damaged("two extension headers for one entry")),
                // Defaults for the whole archive: nothing that anybody relies on.
                b'g' => {
                    self.count()?;
                    self.records(&header)?;
                }
                _ => return self.entry(&header, ahead).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &Header<'_>, ahead: Ahead) -> Result<Entry, Error> {
        self.count()?;
        let bad = bad_number(self.at);
        let numbers = (header.mode(), header.uid(), header.gid(), header.size(), header.mtime());
        let (Some(mode), Some(uid), Some(gid), Some(stored), Some(mtime)) = numbers else { return Err(bad) };
        let mut stored = stored;
        let mut entry = Entry {
            name: ahead.name.unwrap_or_else(|| header.name()),
            kind: Kind::Other,
            link: ahead.link.unwrap_or_else(|| header.link().to_vec()),
            // All that a mode has; what stands above is the kind, in some writers.
            mode: (mode & 0o7777) as u32,
            uid,
            gid,
            mtime: (mtime, 0),
            xattrs: Vec::new(),
            size: 0,
            pieces: Vec::new(),
        };
        let mut sparse = Sparse::default();
        if let Some(records) = &ahead.records {
            let records = pax::parse(records).ok_or_else(|| self.damaged("pax records are not well formed"))?;
            for (key, value) in records {
                if !record(&mut entry, &mut stored, &mut sparse, key, value) {
                    return Err(self.damaged("a pax record makes no sense"));
                }
            }
        }
        if let Some(name) = sparse.name.take() {
            entry.name = name;
        }
        entry.kind = match header.kind() {
            b'0' | 0 if entry.name.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' | b'S' => Kind::File,
            b'1' => Kind::Hard,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            _ => Kind::Other,
        };
        // Sizes of these mean nothing: no data follows, whatever they say.
        if matches!(header.kind(), b'1'..=b'6') {
            stored = 0;
        }
        (self.left, self.fill) = (stored, block::padding(stored));
        if entry.kind == Kind::File {
            self.lay_out(header, &mut entry, sparse)?;
        }
        self.bytes = self.bytes.saturating_add(entry.size.max(stored));
        if self.bytes > self.limits.bytes {
            return Err(Error::TooLarge { limit: self.limits.bytes });
        }
        Ok(entry)
    }

    /// Says where a file's data belongs.
    fn lay_out(&mut self, header: &Header<'_>, entry: &mut Entry, sparse: Sparse) -> Result<(), Error> {
        let pieces = if header.kind() == b'S' && header.is_gnu() {
            entry.size = header.real_size().ok_or_else(|| bad_number(self.at))?;
            self.gnu_map(header)?
        } else if sparse.present {
            entry.size = sparse.size.ok_or_else(|| self.damaged("a sparse file has no size"))?;
            if sparse.major == Some(1) { self.leading_map()? } else { sparse.map }
        } else {
            entry.size = self.left;
            vec![(0, self.left)]
        };
        let (mut end, mut data) = (0u64, 0u64);
        for (offset, length) in &pieces {
            let next = offset.checked_add(*length);
            if *offset < end || next.is_none_or(|next| next > entry.size) {
                return Err(self.damaged("a sparse file's pieces overlap or leave it"));
            }
            end = next.unwrap_or(end);
            data += length;
        }
        if data > self.left {
            return Err(self.damaged("a sparse file's pieces are longer than its data"));
        }
        entry.pieces = pieces;
        entry.pieces.retain(|(_, length)| *length > 0);
        Ok(())
    }

    /// GNU's old form: four pieces in the header, more in blocks behind it.
    fn gnu_map(&mut self, header: &Header<'_>) -> Result<Vec<(u64, u64)>, Error> {
        let (first, mut more) = header.sparse();
        let mut pieces = Vec::new();
        self.add_pairs(&mut pieces, first)?;
        while more {
            let Some(block) = self.header()? else { return Err(Error::Truncated { at: self.at }) };
            self.add_pairs(&mut pieces, &block[..504])?;
            more = block[504] != 0;
        }
        Ok(pieces)
    }

    fn add_pairs(&self, pieces: &mut Vec<(u64, u64)>, bytes: &[u8]) -> Result<(), Error> {
        for pair in block::sparse_pairs(bytes) {
            pieces.push(pair.ok_or_else(|| bad_number(self.at))?);
        }
        if pieces.len() > MAX_PIECES {
            return Err(self.damaged("a sparse file has too many pieces"));
        }
        Ok(())
    }

    /// Pax form 1.0: lines of digits before the data.
    fn leading_map(&mut self) -> Result<Vec<(u64, u64)>, Error> {
        let before = self.left;
        let count = self.map_line()?;
        if count > MAX_PIECES as u64 {
            return Err(self.damaged("a sparse file has too many pieces"));
        }
        let mut pieces = Vec::new();
        for _ in 0..count {
            pieces.push((self.map_line()?, self.map_line()?));
        }
        let rest = block::padding(before - self.left);
        if rest > self.left {
            return Err(self.damaged("a sparse map is longer than its entry"));
        }
        self.left -= rest;
        self.skip(rest)?;
        Ok(pieces)
    }

    fn map_line(&mut self) -> Result<u64, Error> {
        let mut line = Vec::new();
        loop {
            if self.left == 0 || line.len() > 20 {
                return Err(self.damaged("a sparse map is not well formed"));
            }
            let mut byte = [0];
            self.data(&mut byte)?;
            if byte[0] == b'\n' {
                return pax::decimal(&line).ok_or_else(|| self.damaged("a sparse map is not well formed"));
            }
            line.push(byte[0]);
        }
    }

    fn long_name(&mut self, header: &Header<'_>) -> Result<Vec<u8>, Error> {
        let size = header.size().ok_or_else(|| bad_number(self.at))?;
        // One for the NUL that ends it; what is still too long is refused with its beginning.
        if size > MAX_NAME as u64 + 1 {
            return Err(Error::refused(&header.name(), "its long name is longer than 4096 bytes"));
        }
        let mut name = self.extension(size)?;
        let end = name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        name.truncate(end);
        Ok(name)
    }

    fn records(&mut self, header: &Header<'_>) -> Result<Vec<u8>, Error> {
        let size = header.size().ok_or_else(|| bad_number(self.at))?;
        if size > MAX_PAX {
            return Err(Error::refused(&header.name(), "its pax records are longer than a mebibyte"));
        }
        self.extension(size)
    }

    /// Data of an extension header, whose size was checked.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, Error> {
        let mut data = vec![0; usize::try_from(size).unwrap_or_default()];
        self.fill_exactly(&mut data)?;
        self.skip(block::padding(size))?;
        Ok(data)
    }

    /// The next block, or nothing if the stream ends before it.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, Error> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(Error::Truncated { at: self.at + filled as u64 }),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { source }),
            }
        }
        self.at += BLOCK_LEN;
        Ok(Some(block))
    }

    /// Data of the current entry; never asked for more than there is.
    pub(crate) fn data(&mut self, into: &mut [u8]) -> Result<(), Error> {
        self.left = self
            .left
            .checked_sub(into.len() as u64)
            .ok_or_else(|| self.damaged("an entry has less data than it says"))?;
        self.fill_exactly(into)
    }

    fn fill_exactly(&mut self, into: &mut [u8]) -> Result<(), Error> {
        self.input.read_exact(into).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Error::Truncated { at: self.at },
            _ => Error::Read { source },
        })?;
        self.at += into.len() as u64;
        Ok(())
    }

    fn skip(&mut self, count: u64) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let mut rest = (&mut self.input).take(count);
        let skipped = io::copy(&mut rest, &mut io::sink()).map_err(|source| Error::Read { source })?;
        self.at += skipped;
        if skipped < count { Err(Error::Truncated { at: self.at }) } else { Ok(()) }
    }

    fn damaged(&self, why: &'static str) -> Error {
        Error::Damaged { at: self.at, why }
    }
}

/// Takes one pax record in; false if its value makes no sense. An empty value means that it is not there.
fn record(entry: &mut Entry, stored: &mut u64, sparse: &mut Sparse, key: &[u8], value: &[u8]) -> bool {
    if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
        entry.xattrs.push((attribute.to_vec(), value.to_vec()));
        return true;
    }
    if value.is_empty() {
        return true;
    }
    let number = pax::decimal(value);
    sparse.present |= key.starts_with(b"GNU.sparse.");
    match key {
        b"path" => entry.name = value.to_vec(),
        b"linkpath" => entry.link = value.to_vec(),
        b"size" => return number.map(|number| *stored = number).is_some(),
        b"uid" => return number.map(|number| entry.uid = number).is_some(),
        b"gid" => return number.map(|number| entry.gid = number).is_some(),
        b"mtime" => return pax::time(value).map(|time| entry.mtime = time).is_some(),
        b"GNU.sparse.major" => sparse.major = number,
        b"GNU.sparse.name" => sparse.name = Some(value.to_vec()),
        b"GNU.sparse.size" | b"GNU.sparse.realsize" => {
            sparse.size = number;
            return number.is_some();
        }
        b"GNU.sparse.offset" => {
            sparse.offset = number;
            return number.is_some();
        }
        b"GNU.sparse.numbytes" => {
            let (Some(offset), Some(length)) = (sparse.offset.take(), number) else { return false };
            sparse.map.push((offset, length));
        }
        b"GNU.sparse.map" => {
            let numbers: Option<Vec<u64>> = value.split(|byte| *byte == b',').map(pax::decimal).collect();
            let Some(numbers) = numbers.filter(|numbers| numbers.len() % 2 == 0) else { return false };
            sparse.map = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        }
        _ => {}
    }
    true
}

/// Reads an archive to its end and writes nothing: whether it is one, and how large.
///
/// # Errors
/// As [`unpack`](crate::unpack) for what is wrong with the bytes; names are not judged.
pub fn scan(reader: impl Read, limits: Limits) -> Result<Summary, Error> {
    let mut reader = Reader::new(reader, limits, false);
    let mut summary = Summary::default();
    while let Some(entry) = reader.next()? {
        match entry.kind {
            Kind::Device | Kind::Other => summary.skipped += 1,
            _ => summary.entries += 1,
        }
        summary.bytes += entry.size;
    }
    Ok(summary)
}

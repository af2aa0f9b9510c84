//! The pages of a checkpoint: `mem.diff`.
//!
//! ```text
//!   header page    magic, number of entries, number of data pages, size of the base
//!   data pages     4096 bytes each, in the order of the index
//!   index          a u32 each: number of the page; the top bit marks a page of zeroes, which has no data
//! ```
//!
//! Header and index are checked at every load by their digest and by every number in them; the pages themselves are
//! hashed while they are written, for a check in the background.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use wakeful_driver::ImageFile;
use wakeful_sys::pages::{self, BATCH, Mapping, Method, PAGE, Pagemap};

const MAGIC: &[u8; 8] = b"WKDIFF1\n";
const ZERO: u32 = 1 << 31;
const PAGE_BYTES: usize = PAGE as usize;
/// Every so many pages (8 MiB) the kernel is told to start writing, so that the fsync at the end finds little to do.
const WRITEBACK: u64 = 2048;

fn header(entries: u64, data_pages: u64, base_size: u64) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    page[..8].copy_from_slice(MAGIC);
    page[8..16].copy_from_slice(&entries.to_le_bytes());
    page[16..24].copy_from_slice(&data_pages.to_le_bytes());
    page[24..32].copy_from_slice(&base_size.to_le_bytes());
    page
}

fn digest(header: &[u8], index: &[u8]) -> String {
    blake3::Hasher::new().update(header).update(index).finalize().to_hex().to_string()
}

/// The digest that a file's account would have, whatever is in it.
#[cfg(feature = "fuzz")]
pub(crate) fn digest_of(file: &File) -> io::Result<String> {
    let mut head = [0; PAGE_BYTES];
    file.read_exact_at(&mut head, 0)?;
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let start =
        number(16).checked_mul(PAGE).and_then(|data| data.checked_add(PAGE)).ok_or(io::ErrorKind::InvalidData)?;
    let length = file.metadata()?.len().checked_sub(start).ok_or(io::ErrorKind::InvalidData)?;
    let mut index = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut index, start)?;
    Ok(digest(&head, &index))
}

/// Writes the pages in which `pid` differs from the base that it maps to the empty file `out`, and gives its account.
/// Not synced.
pub(crate) fn write(
    pid: u32,
    mappings: &[Mapping],
    method: Method,
    base_size: u64,
    out: &mut File,
    name: &str,
) -> io::Result<ImageFile> {
    let mut writer = Writer {
        pid,
        out,
        index: Vec::new(),
        data_pages: 0,
        since_writeback: 0,
        bulk: blake3::Hasher::new(),
        runs: Vec::with_capacity(BATCH),
        numbers: Vec::with_capacity(BATCH),
        buffer: vec![0; BATCH * PAGE_BYTES],
        most: base_size / PAGE,
    };
    writer.out.write_all(&[0; PAGE_BYTES])?;
    let mut map = Pagemap::open(pid, method)?;
    for mapping in mappings {
        map.dirty(mapping, &mut |run| writer.add(mapping, run))?;
    }
    writer.flush()?;
    let index: Vec<u8> = writer.index.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    let (entries, data_pages) = (writer.index.len() as u64, writer.data_pages);
    let bulk = writer.bulk.finalize().to_hex().to_string();
    out.write_all(&index)?;
    let header = header(entries, data_pages, base_size);
    out.write_all_at(&header, 0)?;
    Ok(ImageFile {
        name: name.to_owned(),
        bytes: PAGE + data_pages * PAGE + index.len() as u64,
        digest: digest(&header, &index),
        bulk_digest: Some(bulk),
    })
}

struct Writer<'a> {
    pid: u32,
    out: &'a mut File,
    index: Vec<u32>,
    data_pages: u64,
    since_writeback: u64,
    bulk: blake3::Hasher,
    runs: Vec<Range<u64>>,
    numbers: Vec<u32>,
    buffer: Vec<u8>,
    /// Pages of the base: no more can differ, whatever the other process makes the kernel say.
    most: u64,
}

impl Writer<'_> {
    fn add(&mut self, mapping: &Mapping, run: Range<u64>) -> io::Result<()> {
        for at in (run.start..run.end).step_by(PAGE_BYTES) {
            match self.runs.last_mut() {
                Some(last) if last.end == at => last.end += PAGE,
                _ => self.runs.push(at..at + PAGE),
            }
            let number = (at - mapping.start + mapping.offset) / PAGE;
            if number >= self.most || self.index.len() as u64 >= self.most {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "more pages differ than there are"));
            }
            let number = u32::try_from(number).ok().filter(|number| number & ZERO == 0);
            self.numbers.push(number.ok_or(io::ErrorKind::InvalidData)?);
            if self.numbers.len() == BATCH {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// One read for up to 256 scattered pages, one write for those that are not all zeroes.
    fn flush(&mut self) -> io::Result<()> {
        let buffer = &mut self.buffer[..self.numbers.len() * PAGE_BYTES];
        if buffer.is_empty() {
            return Ok(());
        }
        pages::read(self.pid, &self.runs, buffer)?;
        let mut kept = 0;
        for (place, number) in self.numbers.iter().enumerate() {
            let page = place * PAGE_BYTES..(place + 1) * PAGE_BYTES;
            if is_zero(&buffer[page.clone()]) {
                self.index.push(number | ZERO);
                continue;
            }
            if kept != place {
                buffer.copy_within(page, kept * PAGE_BYTES);
            }
            self.index.push(*number);
            kept += 1;
        }
        let data = &buffer[..kept * PAGE_BYTES];
        self.bulk.update(data);
        self.out.write_all(data)?;
        self.data_pages += kept as u64;
        self.since_writeback += kept as u64;
        if self.since_writeback >= WRITEBACK {
            self.since_writeback = 0;
            wakeful_sys::copy::start_writeback(&*self.out);
        }
        self.runs.clear();
        self.numbers.clear();
        Ok(())
    }
}

pub(crate) fn is_zero(page: &[u8]) -> bool {
    page.iter().fold(0, |any, byte| any | byte) == 0
}

/// A diff that was opened and checked.
#[derive(Debug)]
pub(crate) struct Diff {
    file: File,
    index: Vec<u32>,
}

impl Diff {
    /// Checks everything that is small: lengths, digest, and every number in header and index.
    ///
    /// # Errors
    /// `InvalidData` with the reason if it is not what `account` says.
    pub(crate) fn open(file: File, account: &ImageFile, base_size: u64) -> io::Result<Self> {
        let bad = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
        let length = file.metadata()?.len();
        if length != account.bytes {
            return Err(bad("its length is wrong"));
        }
        let mut head = [0; PAGE_BYTES];
        file.read_exact_at(&mut head, 0).map_err(|_| bad("it has no header"))?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let (entries, data_pages, size) = (number(8), number(16), number(24));
        // Bounded by the base before anything is added up or allocated.
        if &head[..8] != MAGIC || size != base_size || entries > base_size / PAGE || data_pages > entries {
            return Err(bad("its header makes no sense"));
        }
        let fits = data_pages.checked_mul(PAGE).and_then(|data| data.checked_add(PAGE + entries * 4));
        if fits != Some(length) {
            return Err(bad("its header does not fit its length"));
        }
        let mut bytes = vec![0; usize::try_from(entries * 4).map_err(|_| bad("it is too long"))?];
        file.read_exact_at(&mut bytes, PAGE + data_pages * PAGE)?;
        if digest(&head, &bytes) != account.digest {
            return Err(bad("the digest of header and index is wrong"));
        }
        let entry = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let index: Vec<u32> = bytes.chunks_exact(4).map(entry).collect();
        let outside = |entry: &u32| u64::from(entry & !ZERO) >= base_size / PAGE;
        let data = index.iter().filter(|entry| *entry & ZERO == 0).count() as u64;
        if index.iter().any(outside) || data != data_pages {
            return Err(bad("its index makes no sense"));
        }
        Ok(Self { file, index })
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// BLAKE3 of all pages, as it was counted while they were written.
    pub(crate) fn bulk_digest(&self) -> io::Result<String> {
        let mut hasher = blake3::Hasher::new();
        self.for_each_batch(|_, data| {
            hasher.update(data);
            Ok(())
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Writes all pages into a process that maps the base.
    pub(crate) fn inject(&self, pid: u32, mappings: &[Mapping]) -> io::Result<()> {
        const NOTHING: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        let mut near = mappings.first().copied();
        self.for_each_batch(|batch, data| {
            let mut data = data.chunks_exact(PAGE_BYTES);
            let mut pieces: Vec<(u64, &[u8])> = Vec::with_capacity(BATCH);
            for entry in batch {
                let offset = u64::from(entry & !ZERO) * PAGE;
                let mut address = near.and_then(|mapping| mapping.address(offset));
                if address.is_none() {
                    near = mappings.iter().copied().find(|mapping| mapping.address(offset).is_some());
                    address = near.and_then(|mapping| mapping.address(offset));
                }
                let page = if entry & ZERO == 0 { data.next().ok_or(io::ErrorKind::InvalidData)? } else { &NOTHING };
                pieces.push((address.ok_or(io::ErrorKind::InvalidData)?, page));
            }
            pages::write(pid, &pieces)
        })
    }

    /// Writes all pages into a file that is a copy of the base and that nobody maps yet; `go_on` is asked now and then.
    pub(crate) fn apply(&self, out: &File, go_on: &dyn Fn() -> bool) -> io::Result<()> {
        self.for_each_batch(|batch, data| {
            if !go_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut data = data.chunks_exact(PAGE_BYTES);
            for entry in batch {
                let offset = u64::from(entry & !ZERO) * PAGE;
                if entry & ZERO == 0 {
                    out.write_all_at(data.next().ok_or(io::ErrorKind::InvalidData)?, offset)?;
                    continue;
                }
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                if fallocate(out, hole, offset, PAGE).is_err() {
                    out.write_all_at(&[0; PAGE_BYTES], offset)?;
                }
            }
            Ok(())
        })
    }

    /// Entries of the index, and the data pages of those that have one.
    fn for_each_batch(&self, mut visit: impl FnMut(&[u32], &[u8]) -> io::Result<()>) -> io::Result<()> {
        let (mut at, mut buffer) = (PAGE, vec![0; BATCH * PAGE_BYTES]);
        for batch in self.index.chunks(BATCH) {
            let count = batch.iter().filter(|entry| *entry & ZERO == 0).count();
            let data = &mut buffer[..count * PAGE_BYTES];
            self.file.read_exact_at(data, at)?;
            at += data.len() as u64;
            visit(batch, data)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: u64 = 64 * PAGE;

    fn build(index: &[u32], data: &[u8]) -> (Vec<u8>, ImageFile) {
        let pages = data.len() as u64 / PAGE;
        let head = header(index.len() as u64, pages, BASE);
        let entries: Vec<u8> = index.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let bytes = [&head[..], data, &entries].concat();
        let account = ImageFile {
            name: "mem.diff".to_owned(),
            bytes: bytes.len() as u64,
            digest: digest(&head, &entries),
            bulk_digest: None,
        };
        (bytes, account)
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("can be made");
        file.write_all(bytes).expect("can be written");
        file
    }

    #[test]
    fn applied_pages_are_in_the_copy() {
        let data = [vec![1; PAGE_BYTES], vec![2; PAGE_BYTES]].concat();
        let (bytes, account) = build(&[3, 5 | ZERO, 9], &data);
        let diff = Diff::open(file(&bytes), &account, BASE).expect("is sound");
        let out = file(&vec![7; 64 * PAGE_BYTES]);
        diff.apply(&out, &|| true).expect("can be applied");
        let first_of = |page: u64| {
            let mut byte = [0xff];
            out.read_exact_at(&mut byte, page * PAGE).expect("is there");
            byte[0]
        };
        assert_eq!([2, 3, 5, 9, 10].map(first_of), [7, 1, 0, 2, 7]);
        assert!(diff.apply(&out, &|| false).is_err(), "a cancelled one stops");
    }

    #[test]
    fn numbers_are_checked_even_if_the_digest_fits() {
        for (index, data) in [(vec![64], 1), (vec![64 | ZERO], 0), (vec![1], 0), (vec![1 | ZERO], 1)] {
            let (bytes, account) = build(&index, &vec![1; data * PAGE_BYTES]);
            assert!(Diff::open(file(&bytes), &account, BASE).is_err(), "{index:?}");
        }
        let (bytes, account) = build(&[1], &[1; PAGE_BYTES]);
        assert!(Diff::open(file(&bytes), &account, BASE * 2).is_err(), "another base");
        assert!(Diff::open(file(&bytes[..bytes.len() - 1]), &account, BASE).is_err(), "cut off");
        assert!(Diff::open(file(b""), &ImageFile { bytes: 0, ..account }, BASE).is_err(), "empty");
    }

    proptest! {
        #[test]
        fn a_flipped_bit_outside_the_pages_is_found(at in 0usize..(PAGE_BYTES + 12), bit in 0u8..8) {
            let (mut bytes, account) = build(&[1, 2 | ZERO, 3], &[1; 2 * PAGE_BYTES]);
            let at = if at < PAGE_BYTES { at } else { at + 2 * PAGE_BYTES };
            bytes[at] ^= 1 << bit;
            prop_assert!(Diff::open(file(&bytes), &account, BASE).is_err());
        }

        #[test]
        fn any_header_is_survived(numbers in prop::array::uniform3(any::<u64>()), length in 0usize..20_000) {
            let mut bytes = vec![0; length];
            let head = header(numbers[0], numbers[1], numbers[2]);
            let part = length.min(PAGE_BYTES);
            bytes[..part].copy_from_slice(&head[..part]);
            let account = ImageFile { name: String::new(), bytes: length as u64, digest: String::new(), bulk_digest: None };
            prop_assert!(Diff::open(file(&bytes), &account, numbers[2]).is_err());
        }
    }
}

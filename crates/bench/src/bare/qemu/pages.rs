//! The pages in which a bare engine's memory differs from the file that it maps privately, through `/proc`.
//!
//! ```text
//!   /proc/PID/maps      where the file is mapped
//!   /proc/PID/pagemap   which pages there are the process's own by now
//!   /proc/PID/mem       their content, out and in
//!   diff                runs: offset in the file (8 bytes), length (8 bytes), content
//! ```

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Bytes that are read or written at once.
const STEP: u64 = 1 << 20;

/// A part of the file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
}

/// The private mappings of `base` in the process, which makes them early in its start.
fn mappings(pid: u32, base: &Path, patience: Duration) -> io::Result<Vec<Mapping>> {
    let (inode, size) = fs::metadata(base).map(|meta| (meta.ino(), meta.len()))?;
    let deadline = Instant::now() + patience;
    loop {
        let found = parse_maps(&fs::read_to_string(format!("/proc/{pid}/maps"))?, inode);
        if found.iter().map(|mapping| mapping.end - mapping.start).sum::<u64>() == size {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the engine does not map its memory"));
        }
        crate::pause(Duration::from_micros(300));
    }
}

fn parse_maps(text: &str, inode: u64) -> Vec<Mapping> {
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (range, rights, offset, _, found) =
            (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        if found.parse() != Ok(inode) || !rights.starts_with("rw") || !rights.ends_with('p') {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(Mapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)? })
    };
    text.lines().filter_map(parse).collect()
}

/// Writes the pages that differ; how many there are. Not synced.
pub(crate) fn save(pid: u32, base: &Path, into: &File) -> io::Result<u64> {
    let (pagemap, memory) = (File::open(format!("/proc/{pid}/pagemap"))?, File::open(format!("/proc/{pid}/mem"))?);
    let mut out = BufWriter::with_capacity(1 << 20, into);
    let (mut entries, mut content) = (vec![0u8; 1 << 19], vec![0u8; STEP as usize]);
    let mut pages = 0;
    for mapping in mappings(pid, base, Duration::ZERO)? {
        let mut at = mapping.start;
        while at < mapping.end {
            let part = ((mapping.end - at) / PAGE * 8).min(entries.len() as u64) as usize;
            pagemap.read_exact_at(&mut entries[..part], at / PAGE * 8)?;
            for (start, end) in own_runs(&entries[..part]) {
                pages += end - start;
                let (mut from, end) = (at + start * PAGE, at + end * PAGE);
                while from < end {
                    let piece = &mut content[..(end - from).min(STEP) as usize];
                    memory.read_exact_at(piece, from)?;
                    out.write_all(&(from - mapping.start + mapping.offset).to_le_bytes())?;
                    out.write_all(&(piece.len() as u64).to_le_bytes())?;
                    out.write_all(piece)?;
                    from += piece.len() as u64;
                }
            }
            at += part as u64 / 8 * PAGE;
        }
    }
    out.flush()?;
    Ok(pages)
}

/// Runs of pages that are present or swapped and not the file's (bits 63, 62 and 61).
fn own_runs(entries: &[u8]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (number, entry) in entries.chunks_exact(8).enumerate() {
        let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
        if entry >> 62 == 0 || entry >> 61 & 1 == 1 {
            continue;
        }
        let number = number as u64;
        match runs.last_mut() {
            Some(last) if last.1 == number => last.1 += 1,
            _ => runs.push((number, number + 1)),
        }
    }
    runs
}

/// Writes all pages of a diff into a process that is still starting.
pub(crate) fn inject(pid: u32, base: &Path, from: &File) -> io::Result<()> {
    let mappings = mappings(pid, base, Duration::from_secs(60))?;
    let memory = File::options().write(true).open(format!("/proc/{pid}/mem"))?;
    let mut diff = BufReader::with_capacity(1 << 16, from);
    let mut content = vec![0; STEP as usize];
    let mut head = [0; 16];
    loop {
        match diff.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let (offset, length) = (number(0), number(8));
        let piece =
            content.get_mut(..usize::try_from(length).unwrap_or(usize::MAX)).ok_or(io::ErrorKind::InvalidData)?;
        diff.read_exact(piece)?;
        let inside =
            |mapping: &&Mapping| (mapping.offset..mapping.offset + (mapping.end - mapping.start)).contains(&offset);
        let mapping = mappings.iter().find(inside).ok_or(io::ErrorKind::InvalidData)?;
        memory.write_all_at(piece, offset - mapping.offset + mapping.start)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_writable_mappings_of_the_file_count() {
        let text = "7f00-8f00 rw-p 00000000 fe:00 42   /x/mem\n8f00-9000 r--p 00000000 fe:00 42 /x/mem\n\
                    9000-a000 rw-s 00000000 fe:00 42 /x/mem\na000-b000 rw-p 00001000 fe:00 43 /y\n\
                    b000-c000 rw-p 00003000 fe:00 42 /x/mem (deleted)\nc000-d000 rw-p 0 00:00 0\nnonsense\n";
        let expected =
            [Mapping { start: 0x7f00, end: 0x8f00, offset: 0 }, Mapping { start: 0xb000, end: 0xc000, offset: 0x3000 }];
        assert_eq!(parse_maps(text, 42), expected);
    }

    #[test]
    fn runs_are_of_own_pages() {
        let (own, swapped, shared) = (1u64 << 63, 1u64 << 62, 1u64 << 63 | 1 << 61);
        let entries: Vec<u8> =
            [0, own, swapped, shared, own, 0, own].iter().flat_map(|entry| entry.to_ne_bytes()).collect();
        assert_eq!(own_runs(&entries), [(1, 3), (4, 5), (6, 7)]);
    }
}

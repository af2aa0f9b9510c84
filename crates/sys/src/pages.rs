//! The pages in which a process differs from a file that it maps privately.
//!
//! Guest memory is one private mapping of a base file, so a page that is present (or swapped out) and is *not* a page of
//! the file has been copied on write: exactly those differ. The kernel lists them by the `PAGEMAP_SCAN` ioctl (Linux
//! 6.7), or in `/proc/PID/pagemap` on older ones; both need the right to trace the process.
//!
//! What the process says about itself is not trusted: its mappings must cover the file exactly once.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The most scattered pieces that one [`read`] or [`write()`] takes.
pub const BATCH: usize = 256;

/// One piece of the file in the process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

impl Mapping {
    /// Where this offset of the file is in the process's memory, if this piece holds it.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<u64> {
        let inside = offset.checked_sub(self.offset)?;
        (inside < self.end - self.start).then(|| self.start + inside)
    }
}

/// Where `pid` maps all of the file with this inode, privately and writably, in the order of the file; `None` if it does
/// not (yet). By inode and not by path, since an engine opens its files through descriptors.
///
/// # Errors
/// If the process has ended, or its mappings hold a part of the file twice.
pub fn private_mappings(pid: u32, inode: u64, size: u64) -> io::Result<Option<Vec<Mapping>>> {
    tile(&std::fs::read_to_string(format!("/proc/{pid}/maps"))?, inode, size)
}

fn tile(maps: &str, inode: u64, size: u64) -> io::Result<Option<Vec<Mapping>>> {
    let mut found: Vec<Mapping> = maps.lines().filter_map(|line| parse(line, inode)).collect();
    found.sort_unstable_by_key(|mapping| mapping.offset);
    let mut covered = 0;
    for mapping in &found {
        if mapping.offset < covered {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a part of the file is mapped twice"));
        }
        if mapping.offset > covered {
            return Ok(None);
        }
        covered = mapping.offset + (mapping.end - mapping.start);
    }
    Ok((covered == size && size > 0).then_some(found))
}

fn parse(line: &str, inode: u64) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let of: u64 = fields.nth(1)?.parse().ok()?;
    if of != inode || permissions.get(1) != Some(&b'w') || permissions.get(3) != Some(&b'p') {
        return None;
    }
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (start < end).then_some(Mapping { start, end, offset })
}

/// How the pages are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By the ioctl, or by reading the page map where the kernel does not have it.
    Best,
    /// By reading the page map.
    Pagemap,
}

/// The page map of one process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    method: Method,
}

impl Pagemap {
    /// Opens it.
    ///
    /// # Errors
    /// If the process has ended or may not be traced.
    pub fn open(pid: u32, method: Method) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/pagemap"))?, method })
    }

    /// Calls `visit` with each run of addresses whose pages differ from the file, in ascending order, each once.
    ///
    /// # Errors
    /// What the kernel or `visit` says.
    pub fn dirty(&mut self, mapping: &Mapping, visit: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> io::Result<()> {
        if self.method == Method::Best {
            match self.by_ioctl(mapping, visit)? {
                Support::Yes => return Ok(()),
                Support::No => self.method = Method::Pagemap,
            }
        }
        self.by_reading(mapping, visit)
    }

    fn by_ioctl(&self, mapping: &Mapping, visit: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> io::Result<Support> {
        let mut regions = vec![Region::default(); REGIONS];
        let mut at = mapping.start;
        while at < mapping.end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start: at,
                end: mapping.end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_inverted: IS_FILE,
                category_mask: IS_FILE,
                category_anyof_mask: IS_PRESENT | IS_SWAPPED,
                return_mask: IS_PRESENT | IS_SWAPPED,
                ..Scan::default()
            };
            // SAFETY: `scan` has the layout that the kernel knows by its size, and `vec` is room for `vec_len` regions
            // that outlives the call.
            let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let Ok(found) = usize::try_from(found) else {
                let error = io::Error::last_os_error();
                let unknown = matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL));
                return if unknown && at == mapping.start { Ok(Support::No) } else { Err(error) };
            };
            let found = regions.get(..found).ok_or(io::ErrorKind::InvalidData)?;
            for region in found {
                visit(region.start..region.end)?;
            }
            // Not by `walk_end`: after more than 512 regions it is stale although the walk is complete, and pages would
            // come twice. A vector that is not full has everything.
            match found.last() {
                Some(last) if found.len() == REGIONS => at = last.end,
                _ => break,
            }
        }
        Ok(Support::Yes)
    }

    fn by_reading(&self, mapping: &Mapping, visit: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> io::Result<()> {
        const ENTRIES: usize = 65536;
        let mut buffer = vec![0u8; ENTRIES * 8];
        let (mut at, mut run) = (mapping.start, None::<Range<u64>>);
        while at < mapping.end {
            let wanted = usize::try_from((mapping.end - at) / PAGE).unwrap_or(ENTRIES).min(ENTRIES);
            let read = self.file.read_at(&mut buffer[..wanted * 8], at / PAGE * 8)? / 8;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for entry in buffer[..read * 8].chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().expect("chunks have eight bytes"));
                let differs = entry >> 62 != 0 && entry >> 61 & 1 == 0;
                match &mut run {
                    Some(run) if differs && run.end == at => run.end = at + PAGE,
                    _ if differs => {
                        if let Some(done) = run.replace(at..at + PAGE) {
                            visit(done)?;
                        }
                    }
                    _ => {}
                }
                at += PAGE;
            }
        }
        run.map_or(Ok(()), visit)
    }
}

enum Support {
    Yes,
    No,
}

/// Regions that one scan can return.
const REGIONS: usize = 4096;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
/// `_IOWR('f', 16, struct pm_scan_arg)`; declared here since the headers of Debian 12 are older.
const PAGEMAP_SCAN: libc::c_ulong =
    3 << 30 | (size_of::<Scan>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 16;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[derive(Default)]
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Reads the runs of addresses, one behind the other, into `into`, which must be exactly as long as all of them.
///
/// # Errors
/// If the process has ended or has not all of that memory; `InvalidInput` for more than [`BATCH`] runs.
pub fn read(pid: u32, runs: &[Range<u64>], into: &mut [u8]) -> io::Result<()> {
    let mut remote = [EMPTY; BATCH];
    let (remote, wanted) = remote_vectors(&mut remote, runs.iter().map(|run| (run.start, run.end - run.start)))?;
    if wanted != into.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: one local vector over the whole of `into`, which is exclusively borrowed; the kernel checks the remote
    // addresses against the other process.
    let read = unsafe {
        libc::process_vm_readv(pid_t(pid)?, &raw const local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0)
    };
    whole(read, wanted)
}

/// Writes each piece to its address.
///
/// # Errors
/// If the process has ended or cannot be written there; `InvalidInput` for more than [`BATCH`] pieces.
pub fn write(pid: u32, pieces: &[(u64, &[u8])]) -> io::Result<()> {
    let mut remote = [EMPTY; BATCH];
    let (remote, wanted) = remote_vectors(&mut remote, pieces.iter().map(|(at, bytes)| (*at, bytes.len() as u64)))?;
    let mut local = [EMPTY; BATCH];
    for (vector, (_, bytes)) in local.iter_mut().zip(pieces) {
        *vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    }
    let count = pieces.len() as libc::c_ulong;
    // SAFETY: the local vectors are over borrowed slices, which the call only reads; the kernel checks the remote
    // addresses against the other process.
    let written = unsafe { libc::process_vm_writev(pid_t(pid)?, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    whole(written, wanted)
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn remote_vectors(
    vectors: &mut [libc::iovec; BATCH],
    pieces: impl ExactSizeIterator<Item = (u64, u64)>,
) -> io::Result<(&[libc::iovec], usize)> {
    let (count, mut total) = (pieces.len(), 0);
    let vectors = vectors.get_mut(..count).ok_or(io::ErrorKind::InvalidInput)?;
    for (vector, (address, length)) in vectors.iter_mut().zip(pieces) {
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        let address = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
        // An address in another process: it is never followed here.
        *vector = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: length };
        total += length;
    }
    Ok((vectors, total))
}

fn pid_t(pid: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn whole(done: libc::ssize_t, wanted: usize) -> io::Result<()> {
    match usize::try_from(done) {
        Ok(done) if done == wanted => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process has not all of that memory")),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000004000 rw-p 00000000 fe:00 77 /base
7f0000010000-7f0000014000 rw-p 00004000 fe:00 77 /base (deleted)
7f0000020000-7f0000024000 r--p 00000000 fe:00 77 /base
7f0000030000-7f0000034000 rw-s 00000000 fe:00 77 /base
7f0000040000-7f0000044000 rw-p 00000000 fe:00 78 /other
7f0000050000-7f0000054000 rw-p 00000000 00:00 0
";

    #[test]
    fn mappings_tile_the_file() {
        let found = tile(MAPS, 77, 0x8000).expect("nothing twice").expect("all of it");
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].address(0x4010), Some(0x7f00_0001_0010));
        assert_eq!(found[1].address(0x3fff), None);
        assert_eq!(found[1].address(0x8000), None);
        assert_eq!(tile(MAPS, 77, 0x9000).expect("nothing twice"), None, "a part is missing");
        assert_eq!(tile(MAPS, 79, 0x1000).expect("nothing twice"), None);
        assert_eq!(tile("", 0, 0).expect("nothing twice"), None);
    }

    #[test]
    fn a_file_mapped_twice_is_refused() {
        let twice = format!("{MAPS}7f0000060000-7f0000064000 rw-p 00000000 fe:00 77 /base\n");
        assert!(tile(&twice, 77, 0x8000).is_err());
    }

    #[test]
    fn too_many_pieces_are_refused() {
        let runs = vec![0..1; BATCH + 1];
        let mut buffer = vec![0; BATCH + 1];
        let error = read(std::process::id(), &runs, &mut buffer).expect_err("too many");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    const CHILD: &str = "WAKEFUL_TEST_PAGES_CHILD";
    const PAGES: u64 = 6000;

    /// Not a test of its own: what [`pages_of_another_process`] starts. Maps the file, dirties every third page (more
    /// than 512 runs), reads all others, then prints the first byte of page 7 after each line that it is sent.
    #[test]
    fn mapping_child() {
        use std::io::Write;
        let Some(path) = std::env::var_os(CHILD) else { return };
        let file = File::options().read(true).write(true).open(path).expect("the parent made it");
        let length = (PAGES * PAGE) as usize;
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, flags, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the mapping is as long as the slice and lives until the process ends; others only write it while this
        // process waits for a line.
        let memory = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), length) };
        let mut sum = 0u64;
        for (number, page) in memory.chunks_exact_mut(PAGE as usize).enumerate() {
            if number % 3 == 0 {
                page[9] = 0xd1;
            } else {
                sum += u64::from(std::hint::black_box(page[9]));
            }
        }
        let mut line = String::new();
        loop {
            let byte = std::hint::black_box(&memory)[7 * PAGE as usize];
            std::io::stdout().write_all(format!("\nbyte {byte} {sum}\n").as_bytes()).expect("the parent reads");
            line.clear();
            if std::io::stdin().read_line(&mut line).expect("the parent writes") == 0 {
                return;
            }
        }
    }

    #[test]
    fn pages_of_another_process() {
        use std::io::{BufRead, BufReader, Write};
        use std::os::unix::fs::MetadataExt;
        use std::process::{Command, Stdio};

        let path = std::env::temp_dir().join(format!("wakeful-pages-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("can be made");
        file.set_len(PAGES * PAGE).expect("can be resized");
        file.write_all_at(&[5; 100], 8 * PAGE).expect("can be written");
        let mut child = Command::new(std::env::current_exe().expect("has a path"))
            .args(["--exact", "pages::tests::mapping_child", "--nocapture"])
            .env(CHILD, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut next = || said.find_map(|line| line.ok()?.strip_prefix("byte ").map(ToOwned::to_owned));
        assert!(next().expect("it is ready").starts_with("0 "));

        let (pid, inode) = (child.id(), file.metadata().expect("has an inode").ino());
        let mappings = private_mappings(pid, inode, PAGES * PAGE).expect("it lives").expect("it maps the file");
        let scan = |method| {
            let (mut pages, mut map) = (Vec::new(), Pagemap::open(pid, method).expect("may be traced"));
            for mapping in &mappings {
                map.dirty(mapping, &mut |run| {
                    pages.extend(
                        (run.start..run.end)
                            .step_by(PAGE as usize)
                            .map(|at| (at - mapping.start + mapping.offset) / PAGE),
                    );
                    Ok(())
                })
                .expect("can be scanned");
            }
            pages
        };
        let expected: Vec<u64> = (0..PAGES).step_by(3).collect();
        assert_eq!(scan(Method::Best), expected);
        assert_eq!(scan(Method::Pagemap), expected);

        let address = |page: u64| mappings.iter().find_map(|m| m.address(page * PAGE)).expect("is mapped");
        let mut buffer = vec![0; 2 * PAGE as usize];
        read(pid, &[address(3)..address(3) + PAGE, address(8)..address(8) + PAGE], &mut buffer).expect("can be read");
        assert_eq!((buffer[9], buffer[PAGE as usize]), (0xd1, 5));
        write(pid, &[(address(7), &[42; PAGE as usize])]).expect("can be written");
        child.stdin.as_ref().expect("piped").write_all(b"again\n").expect("it reads");
        assert!(next().expect("it answers").starts_with("42 "));
        assert!(scan(Method::Best).contains(&7), "an injected page is dirty");
        let mut byte = [1];
        file.read_exact_at(&mut byte, 7 * PAGE).expect("can be read");
        assert_eq!(byte, [0], "the file is untouched");

        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(write(pid, &[(0, b"x")]).is_err());
        std::fs::remove_file(path).expect("can be removed");
    }
}

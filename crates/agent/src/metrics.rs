//! `GET /metrics` in envd's shape, from the kernel's own files.

use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use http::{Response, StatusCode};
use wakeful_guest_proto::control::Metrics;

use crate::body::{self, Body};

/// A second in the kernel's accounts, on every machine that there is.
const TICKS: u64 = 100;
/// Processor time up to the last call: what is reported is the share since then.
static LAST: Mutex<Ticks> = Mutex::new(Ticks { all: 0, idle: 0 });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

pub(crate) async fn handle() -> Response<Body> {
    match tokio::task::spawn_blocking(measure).await {
        Ok(Ok(metrics)) => body::json(StatusCode::OK, &metrics),
        Ok(Err(error)) => body::error(StatusCode::INTERNAL_SERVER_ERROR, &format!("could not measure: {error}")),
        Err(_) => body::error(StatusCode::INTERNAL_SERVER_ERROR, "could not measure"),
    }
}

fn measure() -> io::Result<Metrics> {
    let mut ticks = parse_ticks(&fs::read_to_string("/proc/stat")?);
    if ticks.all == 0 {
        ticks = count_ticks();
    }
    let cpu_count = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    let last = std::mem::replace(&mut *LAST.lock().unwrap_or_else(PoisonError::into_inner), ticks);
    let memory = fs::read_to_string("/proc/meminfo")?;
    let (total, free) = (parse_memory(&memory, "MemTotal"), parse_memory(&memory, "MemFree"));
    let cache =
        parse_memory(&memory, "Cached") + parse_memory(&memory, "Buffers") + parse_memory(&memory, "SReclaimable");
    let used = total.saturating_sub(free + cache);
    let disk = rustix::fs::statvfs("/")?;
    let disk_total = disk.f_blocks.saturating_mul(disk.f_frsize);
    Ok(Metrics {
        ts: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().cast_signed()),
        cpu_count,
        cpu_used_pct: used_share(last, ticks),
        mem_total: total,
        mem_used: used,
        mem_cache: cache,
        mem_total_mib: total >> 20,
        mem_used_mib: used >> 20,
        disk_used: disk_total.saturating_sub(disk.f_bfree.saturating_mul(disk.f_frsize)),
        disk_total,
    })
}

/// The first line of `/proc/stat`: user nice system idle iowait irq softirq steal.
fn parse_ticks(stat: &str) -> Ticks {
    let fields = stat.lines().next().unwrap_or("").split_ascii_whitespace().skip(1).take(8);
    let fields: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
    let at = |index: usize| fields.get(index).copied().unwrap_or(0);
    Ticks { all: fields.iter().sum(), idle: at(3) + at(4) }
}

/// The same where the kernel keeps no such account (gVisor): what every process and its children that it has waited for have
/// used. Whoever ends is waited for, so nothing of it is lost.
fn count_ticks() -> Ticks {
    let used = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        used_by(&String::from_utf8_lossy(&fs::read(entry.path().join("stat")).ok()?))
    });
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let passed = now.tv_sec.unsigned_abs() * TICKS + now.tv_nsec.unsigned_abs() * TICKS / 1_000_000_000;
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let all = passed.saturating_mul(processors);
    Ticks { all, idle: all.saturating_sub(used.sum()) }
}

/// `pid (name) …`, then from the 14th field on: utime stime cutime cstime.
fn used_by(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

fn used_share(from: Ticks, to: Ticks) -> f32 {
    let all = to.all.saturating_sub(from.all);
    let idle = to.idle.saturating_sub(from.idle).min(all);
    if all == 0 { 0.0 } else { ((all - idle) as f64 * 100.0 / all as f64) as f32 }
}

/// Bytes of one line of `/proc/meminfo`.
fn parse_memory(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read_as_they_are() {
        let early = parse_ticks("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2 3\n");
        assert_eq!(early, Ticks { all: 100, idle: 80 });
        let late = parse_ticks("cpu  40 0 20 100 40 0 0 0 0 0\n");
        assert!((used_share(early, late) - 40.0).abs() < 0.01);
        assert_eq!(used_share(late, late), 0.0);
        assert_eq!(parse_memory("MemTotal:  16 kB\nMemFree: 4 kB\nCached: 2 kB\n", "MemFree"), 4096);
        assert_eq!(parse_memory("MemTotal:  16 kB\n", "Cached"), 0);

        assert_eq!(used_by("2 (a) b) R 1 2 2 0 0 0 0 0 0 0 3 2 1 4 20 0 1"), Some(10));
        assert_eq!(used_by("2 (a) R 1 2"), Some(0));
        let counted = count_ticks();
        assert!(counted.all > counted.idle, "{counted:?}");

        let real = measure().expect("this machine has the files");
        assert!(real.mem_total > real.mem_used && real.disk_total > 0 && real.cpu_count > 0);
    }
}

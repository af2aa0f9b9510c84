//! What a guest may use of the host.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wakeful_driver::Source;
use wakeful_guest_client::Exec;

use crate::lab::{Lab, RealLab};
use crate::sandbox::{Sandbox, shell};

/// A program that takes ever more memory ends: by itself, by the guest's kernel, or with all of its engine, and then that
/// is told. The files are there in any case.
pub async fn a_hog_is_ended(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "hog").await;
    shell(&guest, "echo kept > /root/kept").await;
    assert!(guest.quiesce(Duration::from_secs(20)).await.expect("it answers"));
    guest.close().await;
    engine.disconnected().await.expect("it sees that");
    let guest = sandbox.greet(&*engine).await;
    let hog = Exec { timeout: Some(Duration::from_secs(90)), ..Exec::shell("a=xxxxxxxx; while :; do a=$a$a; done") };
    let exit = tokio::select! {
        exit = engine.exited() => Some(exit),
        done = guest.exec(&hog) => match done {
            Ok(done) => {
                assert!(done.exit_code != 0 && !done.timed_out, "{done:?}");
                None
            }
            // Its line may break before its end is seen.
            Err(_) => Some(tokio::time::timeout(Duration::from_secs(30), engine.exited()).await.expect("it has ended")),
        },
    };
    if let Some(exit) = exit {
        assert!(exit.out_of_memory, "{exit:?}");
        sandbox.end(&*engine).await;
        sandbox.secret = [4; 32];
        let engine = sandbox.launch(Source::Boot { secret: [4; 32] }).await.expect("can be booted");
        let guest = sandbox.go(&*engine).await;
        assert_eq!(shell(&guest, "cat /root/kept").await, "kept");
    } else {
        assert_eq!(shell(&guest, "cat /root/kept").await, "kept");
    }
}

/// However busy it is inside.
pub async fn processor_time_is_limited(lab: Arc<dyn RealLab>) {
    let processors = lab.processors();
    let lab: Arc<dyn Lab> = lab;
    let (sandbox, engine, guest) = Sandbox::started(&lab, "busy").await;
    let (quota, period) = quota(engine.pid());
    assert_eq!(quota, u64::from(processors) * period, "in microseconds of each period");
    shell(&guest, "for i in 1 2 3 4; do (while :; do :; done) > /dev/null 2>&1 < /dev/null & done; sleep 0.5").await;
    let (begun, before) = (Instant::now(), used(&sandbox));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (time, used) = (begun.elapsed(), used(&sandbox).saturating_sub(before));
    let most = time.mul_f64(f64::from(processors) * 1.2 + 0.1);
    assert!(used <= most, "{used:?} of processors in {time:?}");
    assert!(used > Duration::from_millis(50), "it was busy");
}

/// Quota and period of the cgroup that this process is in.
fn quota(pid: u32) -> (u64, u64) {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse().ok();
    let membership = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|name| name == "cpu") {
            let dir = Path::new("/sys/fs/cgroup").join(controllers).join(path);
            let dir = if dir.exists() { dir } else { Path::new("/sys/fs/cgroup/cpu").join(path) };
            return (
                number(&dir.join("cpu.cfs_quota_us")).expect("a limit"),
                number(&dir.join("cpu.cfs_period_us")).expect("a period"),
            );
        }
        if controllers.is_empty()
            && let Ok(text) = fs::read_to_string(Path::new("/sys/fs/cgroup").join(path).join("cpu.max"))
        {
            let (quota, period) = text.trim().split_once(' ').expect("two figures");
            return (quota.parse().expect("a limit"), period.parse().expect("a period"));
        }
    }
    panic!("no controller limits processor time here: {membership}");
}

/// Processor time of all of its processes.
fn used(sandbox: &Sandbox) -> Duration {
    let ticks = sandbox.processes().into_iter().filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let words: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some(words[11].parse::<u64>().ok()? + words[12].parse::<u64>().ok()?)
    });
    Duration::from_millis(ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second())
}

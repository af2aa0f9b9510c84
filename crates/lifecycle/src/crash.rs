//! Places at which a test can end the daemon, or an engine, as a power cut would.
//!
//! `WAKEFUL_CRASH_AT=suspend.saved` sends SIGKILL to this process when it gets there; `wake.spent:engine` to the engine.
//! `suspend.saved:wait` stays there for two seconds, so that others can come between. A place that nobody names costs one
//! comparison.

use std::sync::LazyLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};
use wakeful_driver::Engine;

static PLACE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("WAKEFUL_CRASH_AT").ok());

/// How long one stays.
const STAY: Duration = Duration::from_secs(2);

/// Ends this process if it is to end here.
#[expect(clippy::disallowed_methods, reason = "it stands still on purpose, and only where a test says so")]
pub(crate) fn point(name: &str) {
    let Some(rest) = PLACE.as_deref().and_then(|place| place.strip_prefix(name)) else { return };
    match rest {
        // Nothing runs after this: that is what is being tested.
        "" => drop(kill_process(getpid(), Signal::KILL)),
        ":wait" => tokio::task::block_in_place(|| std::thread::sleep(STAY)),
        _ => {}
    }
}

/// Ends this process or the engine if it is to end here.
pub(crate) fn point_with(name: &str, engine: &dyn Engine) {
    point(name);
    if let Some((place, "engine")) = PLACE.as_deref().and_then(|place| place.split_once(':'))
        && place == name
        && let Some(pid) = i32::try_from(engine.pid()).ok().and_then(Pid::from_raw)
    {
        let _ = kill_process(pid, Signal::KILL);
    }
}

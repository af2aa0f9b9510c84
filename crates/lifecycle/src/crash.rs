//! Places at which a test can end the daemon, or an engine, as a power cut would.
//!
//! `WAKEFUL_CRASH_AT=suspend.saved` sends SIGKILL to this process when it gets there; `wake.spent:engine` to the engine, once.
//! `suspend.saved:wait` stays there for two seconds, so that others can come between. A place that nobody names costs one
//! comparison.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};
use strum::IntoEnumIterator as _;
use tracing::warn;
use wakeful_driver::Engine;

/// A place between two steps. One that nobody passes does not compile without a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumIter)]
pub(crate) enum Point {
    #[strum(serialize = "create.admitted")]
    CreateAdmitted,
    #[strum(serialize = "create.directory")]
    CreateDirectory,
    #[strum(serialize = "create.plugged")]
    CreatePlugged,
    #[strum(serialize = "create.claimed")]
    CreateClaimed,
    #[strum(serialize = "create.launched")]
    CreateLaunched,
    #[strum(serialize = "create.restored")]
    CreateRestored,
    #[strum(serialize = "create.committed")]
    CreateCommitted,
    #[strum(serialize = "suspend.intended")]
    SuspendIntended,
    #[strum(serialize = "suspend.quiesced")]
    SuspendQuiesced,
    #[strum(serialize = "suspend.stopped")]
    SuspendStopped,
    #[strum(serialize = "suspend.saved")]
    SuspendSaved,
    #[strum(serialize = "suspend.renamed")]
    SuspendRenamed,
    #[strum(serialize = "suspend.committed")]
    SuspendCommitted,
    #[strum(serialize = "suspend.cleared")]
    SuspendCleared,
    #[strum(serialize = "poweroff.ended")]
    PoweroffEnded,
    #[strum(serialize = "compact.folded")]
    CompactFolded,
    #[strum(serialize = "compact.committed")]
    CompactCommitted,
    #[strum(serialize = "wake.intended")]
    WakeIntended,
    #[strum(serialize = "wake.loaded")]
    WakeLoaded,
    #[strum(serialize = "wake.sized")]
    WakeSized,
    #[strum(serialize = "wake.spent")]
    WakeSpent,
    #[strum(serialize = "wake.restored")]
    WakeRestored,
    #[strum(serialize = "wake.committed")]
    WakeCommitted,
    #[strum(serialize = "snapshot.stopped")]
    SnapshotStopped,
    #[strum(serialize = "snapshot.saved")]
    SnapshotSaved,
    #[strum(serialize = "snapshot.copied")]
    SnapshotCopied,
    #[strum(serialize = "lay.linked")]
    LayLinked,
    #[strum(serialize = "lay.asleep")]
    LayAsleep,
    #[strum(serialize = "lay.laid")]
    LayLaid,
    #[strum(serialize = "snapshot.goes_on")]
    SnapshotGoesOn,
    #[strum(serialize = "snapshot.published")]
    SnapshotPublished,
    #[strum(serialize = "snapshot.recorded")]
    SnapshotRecorded,
    #[strum(serialize = "snapshot.removed")]
    SnapshotRemoved,
    #[strum(serialize = "fork.disk")]
    ForkDisk,
    #[strum(serialize = "fork.launched")]
    ForkLaunched,
    #[strum(serialize = "fork.restored")]
    ForkRestored,
    #[strum(serialize = "destroy.intended")]
    DestroyIntended,
    #[strum(serialize = "destroy.reaped")]
    DestroyReaped,
    #[strum(serialize = "destroy.removed")]
    DestroyRemoved,
    #[strum(serialize = "destroy.committed")]
    DestroyCommitted,
    #[strum(serialize = "idempotency.keep")]
    IdempotencyKeep,
}

impl Point {
    /// Whether an engine is there that can be ended instead.
    const fn has_engine(self) -> bool {
        matches!(
            self,
            Self::CreateClaimed
                | Self::CreateLaunched
                | Self::CreateRestored
                | Self::SuspendQuiesced
                | Self::SuspendStopped
                | Self::SuspendSaved
                | Self::SuspendRenamed
                | Self::WakeLoaded
                | Self::WakeSized
                | Self::WakeSpent
                | Self::WakeRestored
                | Self::SnapshotStopped
                | Self::SnapshotSaved
                | Self::LayLinked
                | Self::SnapshotGoesOn
                | Self::ForkLaunched
                | Self::ForkRestored
        )
    }
}

/// What `WAKEFUL_CRASH_AT` can be, for those who test all of it: every place, and `:engine` where one can be ended.
#[must_use]
pub fn crash_points() -> Vec<String> {
    let names = Point::iter().map(|point| (point, <&str>::from(point)));
    names
        .flat_map(|(point, name)| {
            let engine = point.has_engine().then(|| format!("{name}:engine"));
            std::iter::once(name.to_owned()).chain(engine)
        })
        .collect()
}

static PLACE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("WAKEFUL_CRASH_AT").ok());

/// How long one stays.
const STAY: Duration = Duration::from_secs(2);

/// Ends this process if it is to end here.
#[expect(clippy::disallowed_methods, reason = "it stands still on purpose, and only where a test says so")]
pub(crate) fn point(point: Point) {
    let Some(rest) = PLACE.as_deref().and_then(|place| place.strip_prefix(<&str>::from(point))) else { return };
    match rest {
        // Nothing runs after this: that is what is being tested.
        "" => drop(kill_process(getpid(), Signal::KILL)),
        ":wait" => tokio::task::block_in_place(|| std::thread::sleep(STAY)),
        _ => {}
    }
}

/// One engine is ended, so that the next try can be seen to work.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Ends this process or the engine if it is to end here.
pub(crate) fn point_with(at: Point, engine: &dyn Engine) {
    point(at);
    debug_assert!(at.has_engine(), "{at:?}");
    if let Some((place, "engine")) = PLACE.as_deref().and_then(|place| place.split_once(':'))
        && place == <&str>::from(at)
        && let Some(pid) = i32::try_from(engine.pid()).ok().and_then(Pid::from_raw)
        && !ENDED.swap(true, Ordering::Relaxed)
    {
        warn!(pid = engine.pid(), "crash point: ending the engine");
        let _ = kill_process(pid, Signal::KILL);
    }
}

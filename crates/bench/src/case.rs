//! The cases: their names, what they must reach, how often each is measured.

use serde::Serialize;

use crate::Runtime;

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// A create through the API without a pool, against the bare clone, or the bare start of an engine that has none.
    CreateClone,
    /// A create that a pool answers, against the bare claim of an engine that stands still.
    CreatePool,
    /// The same and the first `true`, against `true` in a sandbox that runs.
    PoolExec,
    /// The disk of a new sandbox.
    DiskPrepare,
    /// An unpacked tree of 200 MB into a base, against `mke2fs` alone.
    #[serde(rename = "image_base_200")]
    ImageBase200,
    /// `true` through the API, against the same call on the agent's own channel.
    ExecTrue,
    /// A suspend of an idle guest with 256 MiB.
    #[serde(rename = "suspend_idle_256")]
    SuspendIdle256,
    /// The same with 4 GiB.
    #[serde(rename = "suspend_idle_4096")]
    SuspendIdle4096,
    /// A suspend with 100 MiB to write.
    #[serde(rename = "suspend_dirty_100")]
    SuspendDirty100,
    /// A wake by an exec call, idle guest.
    #[serde(rename = "wake_idle_256")]
    WakeIdle256,
    /// The same with 100 MiB to bring back.
    #[serde(rename = "wake_dirty_100")]
    WakeDirty100,
    /// How long a fork of an idle guest with 256 MiB holds it up, against stop, save, copy and go on.
    ForkStop,
    /// A hundred creates at once.
    #[serde(rename = "burst_100")]
    Burst100,
    /// A daemon with a thousand sleepers.
    #[serde(rename = "suspended_1000")]
    Suspended1000,
    /// A round trip between a program in the guest and one beyond the uplink, against a bare TAP.
    UplinkLatency,
    /// Bytes between the same two, both ways.
    UplinkThroughput,
    /// A small page of a service in the guest, through its preview, against a bare TAP.
    PreviewLatency,
    /// Large bodies between the same two, both ways.
    PreviewThroughput,
    /// A Python with some imports, inside, against the host's own.
    ComputePython,
    /// A loop of numbers, the same way.
    ComputeLoop,
    /// A look at every file below `/usr`, not the first one.
    ComputeStat,
    /// 64 MiB written and synced.
    #[serde(rename = "compute_write_64")]
    ComputeWrite64,
}

impl Case {
    /// All, in the order in which they are measured and shown.
    pub const ALL: [Self; 22] = [
        Self::CreateClone,
        Self::CreatePool,
        Self::PoolExec,
        Self::DiskPrepare,
        Self::ImageBase200,
        Self::ExecTrue,
        Self::SuspendIdle256,
        Self::SuspendIdle4096,
        Self::SuspendDirty100,
        Self::WakeIdle256,
        Self::WakeDirty100,
        Self::ForkStop,
        Self::Burst100,
        Self::Suspended1000,
        Self::UplinkLatency,
        Self::UplinkThroughput,
        Self::PreviewLatency,
        Self::PreviewThroughput,
        Self::ComputePython,
        Self::ComputeLoop,
        Self::ComputeStat,
        Self::ComputeWrite64,
    ];
    /// Those that need a network of their own.
    pub(crate) const NETWORK: [Self; 4] =
        [Self::UplinkLatency, Self::UplinkThroughput, Self::PreviewLatency, Self::PreviewThroughput];
    /// What runs inside, beside the host.
    pub(crate) const COMPUTE: [Self; 4] =
        [Self::ComputePython, Self::ComputeLoop, Self::ComputeStat, Self::ComputeWrite64];

    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CreateClone => "create_clone",
            Self::CreatePool => "create_pool",
            Self::PoolExec => "pool_exec",
            Self::DiskPrepare => "disk_prepare",
            Self::ImageBase200 => "image_base_200",
            Self::ExecTrue => "exec_true",
            Self::SuspendIdle256 => "suspend_idle_256",
            Self::SuspendIdle4096 => "suspend_idle_4096",
            Self::SuspendDirty100 => "suspend_dirty_100",
            Self::WakeIdle256 => "wake_idle_256",
            Self::WakeDirty100 => "wake_dirty_100",
            Self::ForkStop => "fork_stop",
            Self::Burst100 => "burst_100",
            Self::Suspended1000 => "suspended_1000",
            Self::UplinkLatency => "uplink_latency",
            Self::UplinkThroughput => "uplink_throughput",
            Self::PreviewLatency => "preview_latency",
            Self::PreviewThroughput => "preview_throughput",
            Self::ComputePython => "compute_python",
            Self::ComputeLoop => "compute_loop",
            Self::ComputeStat => "compute_stat",
            Self::ComputeWrite64 => "compute_write_64",
        }
    }

    /// Whether it is measured on this engine. Those that are about the daemon, or about a virtual machine's disk and memory,
    /// are QEMU's.
    #[must_use]
    pub const fn is_for(self, runtime: Runtime) -> bool {
        match runtime {
            Runtime::Qemu => true,
            Runtime::Gvisor => matches!(
                self,
                Self::CreateClone
                    | Self::CreatePool
                    | Self::PoolExec
                    | Self::ExecTrue
                    | Self::SuspendIdle256
                    | Self::SuspendDirty100
                    | Self::WakeIdle256
                    | Self::WakeDirty100
                    | Self::ComputePython
                    | Self::ComputeLoop
                    | Self::ComputeStat
                    | Self::ComputeWrite64
            ),
        }
    }

    /// What it must reach, if anything was promised.
    #[must_use]
    pub const fn target(self, runtime: Runtime) -> Option<&'static str> {
        match (self, runtime) {
            (
                Self::CreateClone
                | Self::SuspendIdle256
                | Self::SuspendDirty100
                | Self::WakeIdle256
                | Self::WakeDirty100,
                Runtime::Gvisor,
            ) => Some("at most 1.3x the bare engine"),
            (Self::CreateClone, Runtime::Qemu) => Some("at most 20 ms above the bare clone"),
            (Self::CreatePool, _) => Some("at most 10 ms above the bare pool claim"),
            (Self::PoolExec, _) => Some("at most 20 ms above the same command on a running sandbox"),
            (Self::DiskPrepare, _) => Some("under 10 ms"),
            (Self::ImageBase200, _) => Some("under 5 s"),
            (Self::ExecTrue, _) => Some("at most 2 ms above the agent's own channel"),
            (Self::SuspendIdle4096, _) => Some("at most 1.3x or 10 ms above suspend_idle_256"),
            (Self::WakeDirty100, Runtime::Qemu) => Some("at most 1.3x the bare engine, p99 under 500 ms"),
            (Self::Burst100, _) => Some("no error, no leak, at least 0.8 of the bare engine's throughput"),
            (Self::Suspended1000, _) => Some("under 60 MB, started within 1 s"),
            (Self::UplinkLatency, _) => Some("at most 0.5 ms above a bare TAP"),
            (Self::UplinkThroughput, _) => Some("at least 0.8 of a bare TAP's, both ways"),
            (Self::PreviewLatency, _) => Some("at most 2 ms above a bare TAP"),
            (
                Self::SuspendIdle256
                | Self::SuspendDirty100
                | Self::WakeIdle256
                | Self::ForkStop
                | Self::PreviewThroughput
                | Self::ComputePython
                | Self::ComputeLoop
                | Self::ComputeStat
                | Self::ComputeWrite64,
                _,
            ) => None,
        }
    }

    /// How many pairs are measured.
    pub(crate) const fn pairs(self, effort: Effort) -> usize {
        match (self, effort) {
            (Self::ExecTrue | Self::UplinkLatency | Self::PreviewLatency, Effort::Full) => 100,
            (Self::CreateClone, Effort::Full) => 50,
            (Self::Burst100, Effort::Full) => 100,
            (Self::Suspended1000, Effort::Full) => 5,
            (Self::ComputePython | Self::ComputeLoop | Self::ComputeStat | Self::ComputeWrite64, Effort::Full) => 10,
            (_, Effort::Full) => 20,
            (Self::ExecTrue | Self::Burst100 | Self::UplinkLatency | Self::PreviewLatency, Effort::Quick) => 20,
            (Self::CreateClone, Effort::Quick) => 8,
            (_, Effort::Quick) => 3,
        }
    }
}

/// The name of no case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no case {0}; there are {all}", all = Case::ALL.map(Case::name).join(", "))]
pub struct UnknownCase(String);

impl std::str::FromStr for Case {
    type Err = UnknownCase;

    fn from_str(name: &str) -> Result<Self, UnknownCase> {
        Self::ALL.into_iter().find(|case| case.name() == name).ok_or_else(|| UnknownCase(name.to_owned()))
    }
}

/// How much time is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Enough for a verdict.
    #[default]
    Full,
    /// Less than a minute: enough for a look.
    Quick,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        for case in Case::ALL {
            assert_eq!(case.name().parse(), Ok(case));
            assert_eq!(serde_json::to_value(case).expect("a word"), case.name());
        }
        assert!("create".parse::<Case>().is_err());
    }

    #[test]
    fn a_verdict_rests_on_enough_pairs() {
        for case in Case::ALL {
            let least = match case {
                Case::ExecTrue | Case::CreateClone | Case::UplinkLatency | Case::PreviewLatency => 50,
                Case::Suspended1000 => 3,
                // Nothing is promised.
                Case::ComputePython | Case::ComputeLoop | Case::ComputeStat | Case::ComputeWrite64 => 10,
                _ => 20,
            };
            assert!(case.pairs(Effort::Full) >= least, "{}", case.name());
        }
    }
}

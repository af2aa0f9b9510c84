//! What a case came to, and whether that is enough.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::runtime::Ran;
use crate::stats::{Summary, paired, percentile, rounded, summary};
use crate::{Case, Runtime};

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which case.
    pub case: Case,
    /// Engine and accelerator.
    pub runtime: String,
    /// How many pairs were measured.
    pub n: usize,
    /// Through the daemon, in milliseconds.
    pub ours_ms: Option<Summary>,
    /// On the bare engine, in milliseconds, or on the host itself; `None` where there is nothing to compare with.
    pub engine_ms: Option<Summary>,
    /// Median of the differences between neighbours.
    pub difference_ms: Option<f64>,
    /// Median of the ratios between neighbours.
    pub ratio: Option<f64>,
    /// What it must reach; `None` if nothing was promised.
    pub target: Option<String>,
    /// Whether it does; `None` if there is no target, or nothing was measured.
    pub met: Option<bool>,
    /// Why it was not measured.
    pub skipped: Option<String>,
    /// What else was seen.
    pub detail: Map<String, Value>,
}

/// Two samples, taken in turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) ours: Vec<f64>,
    pub(crate) engine: Vec<f64>,
}

impl Row {
    pub(crate) fn skipped(case: Case, ran: &Ran, why: &str) -> Self {
        let nothing = Self::of(case, ran, &Pairs::default());
        Self { skipped: Some(why.to_owned()), ..nothing }
    }

    /// Judges what was measured. Targets of which more is needed than two samples are set by their cases.
    pub(crate) fn of(case: Case, ran: &Ran, pairs: &Pairs) -> Self {
        let difference = paired(&pairs.ours, &pairs.engine, |ours, engine| ours - engine);
        let ratio = paired(&pairs.ours, &pairs.engine, |ours, engine| ours / engine);
        let slow_end = percentile(&pairs.ours, 99);
        let met = match (case, ran.runtime) {
            (
                Case::CreateClone
                | Case::SuspendIdle256
                | Case::SuspendDirty100
                | Case::WakeIdle256
                | Case::WakeDirty100,
                Runtime::Gvisor,
            ) => ratio.map(|ratio| ratio <= 1.3),
            (Case::CreateClone, Runtime::Qemu) => difference.map(|difference| difference <= 20.0),
            (Case::CreatePool, _) => difference.map(|difference| difference <= 10.0),
            (Case::PoolExec, _) => difference.map(|difference| difference <= 20.0),
            (Case::DiskPrepare, _) => percentile(&pairs.ours, 50).map(|half| half < 10.0),
            (Case::ImageBase200, _) => percentile(&pairs.ours, 50).map(|half| half < 5000.0),
            (Case::ExecTrue, _) => difference.map(|difference| difference <= 2.0),
            (Case::UplinkLatency, _) => difference.map(|difference| difference <= 0.5),
            (Case::PreviewLatency, _) => difference.map(|difference| difference <= 2.0),
            (Case::WakeDirty100, Runtime::Qemu) => {
                ratio.zip(slow_end).map(|(ratio, slow_end)| ratio <= 1.3 && slow_end < 500.0)
            }
            _ => None,
        };
        Self {
            case,
            runtime: ran.to_string(),
            n: pairs.ours.len(),
            ours_ms: summary(&pairs.ours),
            engine_ms: summary(&pairs.engine),
            difference_ms: difference.map(rounded),
            ratio: ratio.map(rounded),
            target: case.target(ran.runtime).map(str::to_owned),
            met,
            skipped: None,
            detail: Map::new(),
        }
    }

    pub(crate) fn judged(mut self, met: bool) -> Self {
        self.met = Some(met);
        self
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }

    /// Whether a target was missed.
    #[must_use]
    pub fn missed(&self) -> bool {
        self.met == Some(false)
    }
}

/// A suspend must not cost more because the memory is larger: 1.3 times or ten milliseconds, whichever is more.
pub(crate) fn follows_dirty_pages(large: &[f64], small: &[f64]) -> Option<bool> {
    let ratio = paired(large, small, |large, small| large / small)?;
    let difference = paired(large, small, |large, small| large - small)?;
    Some(ratio <= 1.3 || difference <= 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(runtime: Runtime) -> Ran {
        Ran { runtime, accel: "any".to_owned() }
    }

    fn row(case: Case, ours: &[f64], engine: &[f64]) -> Row {
        Row::of(case, &ran(Runtime::Qemu), &Pairs { ours: ours.to_vec(), engine: engine.to_vec() })
    }

    #[test]
    fn an_engine_that_starts_is_compared_by_its_ratio() {
        let row = |case, ours, engine| {
            let pairs = Pairs { ours: vec![ours], engine: vec![engine] };
            Row::of(case, &ran(Runtime::Gvisor), &pairs)
        };
        let cases =
            [Case::CreateClone, Case::SuspendIdle256, Case::SuspendDirty100, Case::WakeIdle256, Case::WakeDirty100];
        for case in cases {
            assert_eq!(row(case, 1300.0, 1000.0).met, Some(true), "{}", case.name());
            assert_eq!(row(case, 1310.0, 1000.0).met, Some(false), "{}", case.name());
            assert_eq!(row(case, 1.0, 1.0).target.as_deref(), Some("at most 1.3x the bare engine"));
        }
        assert_eq!(row(Case::CreatePool, 13.0, 3.0).met, Some(true));
        assert_eq!(row(Case::ComputeStat, 90.0, 3.0).met, None);
        assert_eq!(row(Case::ExecTrue, 9.0, 3.0).runtime, "gvisor/any");
    }

    #[test]
    fn gates_are_those_of_the_design() {
        assert_eq!(row(Case::CreateClone, &[120.0, 99.0], &[100.0, 80.0]).met, Some(true));
        assert_eq!(row(Case::CreateClone, &[121.0, 101.0], &[100.0, 80.0]).met, Some(false));
        assert_eq!(row(Case::CreatePool, &[16.0], &[6.0]).met, Some(true));
        assert_eq!(row(Case::CreatePool, &[17.0], &[6.0]).met, Some(false));
        assert_eq!(row(Case::PoolExec, &[30.0], &[10.0]).met, Some(true));
        assert_eq!(row(Case::PoolExec, &[31.0], &[10.0]).met, Some(false));
        assert_eq!(row(Case::DiskPrepare, &[3.0, 4.0, 50.0], &[]).met, Some(true));
        assert_eq!(row(Case::DiskPrepare, &[12.0], &[]).met, Some(false));
        assert_eq!(row(Case::ExecTrue, &[12.0], &[10.0]).met, Some(true));
        assert_eq!(row(Case::ExecTrue, &[12.5], &[10.0]).met, Some(false));
        assert_eq!(row(Case::WakeDirty100, &[130.0], &[100.0]).met, Some(true));
        assert_eq!(row(Case::WakeDirty100, &[131.0], &[100.0]).met, Some(false));
        assert_eq!(row(Case::WakeDirty100, &[501.0], &[500.0]).met, Some(false), "the slow end counts");
        assert_eq!(row(Case::UplinkLatency, &[1.5], &[1.0]).met, Some(true));
        assert_eq!(row(Case::UplinkLatency, &[1.6], &[1.0]).met, Some(false));
        assert_eq!(row(Case::PreviewLatency, &[5.0], &[3.0]).met, Some(true));
        assert_eq!(row(Case::PreviewLatency, &[5.1], &[3.0]).met, Some(false));
        assert_eq!(row(Case::WakeIdle256, &[5.0], &[1.0]).met, None);
        assert_eq!(follows_dirty_pages(&[60.0], &[50.0]), Some(true));
        assert_eq!(follows_dirty_pages(&[64.0], &[50.0]), Some(true));
        assert_eq!(follows_dirty_pages(&[66.0], &[50.0]), Some(false));
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        let row = Row::skipped(Case::CreatePool, &ran(Runtime::Qemu), "there is no pool");
        assert!(row.met.is_none() && !row.missed() && row.ours_ms.is_none());
        let text = serde_json::to_value(&row).expect("plain data");
        assert_eq!(text["case"], "create_pool");
        assert_eq!(text["skipped"], "there is no pool");
        assert_eq!(text["engine_ms"], Value::Null);
    }
}

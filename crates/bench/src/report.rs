//! What a case came to, and whether that is enough.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::Case;
use crate::stats::{Summary, paired, percentile, rounded, summary};

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
    /// On the bare engine, in milliseconds; `None` where there is nothing to compare with.
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
    pub(crate) fn skipped(case: Case, runtime: &str, why: &str) -> Self {
        let nothing = Self::of(case, runtime, &Pairs::default());
        Self { skipped: Some(why.to_owned()), ..nothing }
    }

    /// Judges what was measured. Targets of which more is needed than two samples are set by their cases.
    pub(crate) fn of(case: Case, runtime: &str, pairs: &Pairs) -> Self {
        let difference = paired(&pairs.ours, &pairs.engine, |ours, engine| ours - engine);
        let ratio = paired(&pairs.ours, &pairs.engine, |ours, engine| ours / engine);
        let slow_end = percentile(&pairs.ours, 99);
        let met = match case {
            Case::CreateClone => difference.map(|difference| difference <= 20.0),
            Case::CreatePool => difference.map(|difference| difference <= 10.0),
            Case::PoolExec => difference.map(|difference| difference <= 20.0),
            Case::DiskPrepare => percentile(&pairs.ours, 50).map(|half| half < 10.0),
            Case::ImageBase200 => percentile(&pairs.ours, 50).map(|half| half < 5000.0),
            Case::ExecTrue => difference.map(|difference| difference <= 2.0),
            Case::UplinkLatency => difference.map(|difference| difference <= 0.5),
            Case::PreviewLatency => difference.map(|difference| difference <= 2.0),
            Case::WakeDirty100 => ratio.zip(slow_end).map(|(ratio, slow_end)| ratio <= 1.3 && slow_end < 500.0),
            _ => None,
        };
        Self {
            case,
            runtime: runtime.to_owned(),
            n: pairs.ours.len(),
            ours_ms: summary(&pairs.ours),
            engine_ms: summary(&pairs.engine),
            difference_ms: difference.map(rounded),
            ratio: ratio.map(rounded),
            target: case.target().map(str::to_owned),
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

    fn row(case: Case, ours: &[f64], engine: &[f64]) -> Row {
        Row::of(case, "qemu/tcg", &Pairs { ours: ours.to_vec(), engine: engine.to_vec() })
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
        let row = Row::skipped(Case::CreatePool, "qemu/tcg", "there is no pool");
        assert!(row.met.is_none() && !row.missed() && row.ours_ms.is_none());
        let text = serde_json::to_value(&row).expect("plain data");
        assert_eq!(text["case"], "create_pool");
        assert_eq!(text["skipped"], "there is no pool");
        assert_eq!(text["engine_ms"], Value::Null);
    }
}

//! The few numbers that a comparison needs.

use serde::Serialize;

/// The middle of a sample and its slow end, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Half of all are at most this.
    pub p50: f64,
    /// So are 99 of a hundred; with fewer than a hundred it is the largest.
    pub p99: f64,
}

/// Sums a sample up; `None` if it is empty.
#[must_use]
pub fn summary(sample: &[f64]) -> Option<Summary> {
    Some(Summary { p50: rounded(median(sample)?), p99: rounded(percentile(sample, 99)?) })
}

/// The middle one, or the mean of the two in the middle.
#[must_use]
pub fn median(sample: &[f64]) -> Option<f64> {
    let sorted = sorted(sample);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(sorted[sorted.len() / 2 - 1], upper))
}

/// The smallest value that at least `percent` of a hundred do not exceed (nearest rank).
#[must_use]
pub fn percentile(sample: &[f64], percent: usize) -> Option<f64> {
    let sorted = sorted(sample);
    let rank = (sorted.len() * percent.min(100)).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// What the gate looks at: each of ours against the one of theirs that was measured right beside it, so that whatever
/// else the machine did in that second is in both.
#[must_use]
pub fn paired(ours: &[f64], theirs: &[f64], compare: impl Fn(f64, f64) -> f64) -> Option<f64> {
    let each: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| compare(*ours, *theirs)).collect();
    median(&each)
}

/// To a hundredth: more would be noise.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn sorted(sample: &[f64]) -> Vec<f64> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_samples() {
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(&[7.0]), Some(Summary { p50: 7.0, p99: 7.0 }));
        assert_eq!(summary(&[3.0, 1.0, 2.0, 10.0]), Some(Summary { p50: 2.5, p99: 10.0 }));
    }

    #[test]
    fn ranks_are_the_nearest() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99), Some(99.0));
        assert_eq!(percentile(&hundred, 100), Some(100.0));
        assert_eq!(percentile(&hundred, 0), Some(1.0));
        assert_eq!(median(&hundred), Some(50.5));
        let two_hundred: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&two_hundred, 99), Some(198.0));
    }

    #[test]
    fn pairs_cancel_what_both_suffered() {
        // A busy second hits the third pair: the medians move, the difference does not.
        let (ours, theirs) = ([12.0, 11.0, 95.0], [10.0, 9.0, 93.0]);
        assert_eq!(paired(&ours, &theirs, |a, b| a - b), Some(2.0));
        assert_eq!(paired(&[4.0, 6.0], &[2.0, 3.0], |a, b| a / b), Some(2.0));
        assert_eq!(paired(&[1.0], &[], |a, b| a - b), None);
    }

    proptest! {
        #[test]
        fn order_does_not_matter(sample in proptest::collection::vec(0.0..1e6f64, 1..60), seed in any::<u64>()) {
            let mut shuffled = sample.clone();
            let turns = usize::try_from(seed % sample.len() as u64).expect("small");
            shuffled.rotate_left(turns);
            prop_assert_eq!(summary(&sample), summary(&shuffled));
            let found = summary(&sample).expect("not empty");
            let most = sample.iter().copied().fold(f64::MIN, f64::max);
            prop_assert!(found.p50 <= found.p99 && found.p99 <= rounded(most));
        }
    }
}

//! How long work is shown: a bar for people, plain lines for logs.

use std::collections::VecDeque;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// How many lines are kept to be shown when a build fails.
const KEPT: usize = 30;
const TICK: Duration = Duration::from_millis(120);

/// Whether lines of programs are shown as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbose {
    Yes,
    No,
}

/// Steps, each with a fraction where that is known.
pub(crate) struct Steps {
    /// `None` when nobody watches: then there are lines.
    bar: Option<ProgressBar>,
    verbose: Verbose,
    step: String,
    tail: VecDeque<String>,
}

impl Steps {
    pub(crate) fn new(verbose: Verbose) -> Self {
        let bar = output::watched().then(|| {
            let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
            bar.set_style(style("{spinner} {elapsed:>4} {bar:24} {wide_msg}"));
            bar.enable_steady_tick(TICK);
            bar
        });
        Self { bar, verbose, step: String::new(), tail: VecDeque::new() }
    }

    /// The work went on.
    pub(crate) fn event(&mut self, step: &str, fraction: Option<f32>, line: Option<&str>) {
        if step != self.step {
            step.clone_into(&mut self.step);
            self.tail.clear();
            match &self.bar {
                Some(bar) => {
                    bar.set_position(0);
                    bar.set_message(self.step.clone());
                }
                None => output::say(step),
            }
        }
        if let (Some(bar), Some(fraction)) = (&self.bar, fraction) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
            bar.set_position((fraction.clamp(0.0, 1.0) * 1000.0) as u64);
        }
        let Some(line) = line.map(str::trim_end).filter(|line| !line.is_empty()) else { return };
        if self.tail.len() == KEPT {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
        match (&self.bar, self.verbose) {
            (Some(bar), Verbose::Yes) => bar.suspend(|| output::say(&format!("  {line}"))),
            (Some(bar), Verbose::No) => bar.set_message(format!("{}: {line}", self.step)),
            (None, Verbose::Yes) => output::say(&format!("  {line}")),
            (None, Verbose::No) => {}
        }
    }

    /// The work is done: the bar goes, the line stays.
    pub(crate) fn done(&mut self, text: &str) {
        self.clear();
        output::say(text);
    }

    /// The work failed: what the last step said is shown, unless it was shown already.
    pub(crate) fn failed(&mut self) {
        self.clear();
        if self.verbose == Verbose::No {
            for line in self.tail.drain(..) {
                output::say(&format!("  {line}"));
            }
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar for a file of `length` bytes; hidden when nobody watches.
pub(crate) fn transfer(name: &str, length: Option<u64>) -> ProgressBar {
    if !output::watched() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(8));
    bar.set_style(match length {
        Some(_) => style("{msg} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
        None => style("{spinner} {msg} {bytes} {bytes_per_sec}"),
    });
    bar.set_message(name.to_owned());
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates here are valid")
}

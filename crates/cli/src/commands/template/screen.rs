//! What of a build is shown.
//!
//! ```text
//!   [2/5] RUN make            lines: the steps, and what they say
//!     cc -o main main.c
//!     layer 1/3 4f53cda18c2b ████████──── 12 MB/31 MB     on a terminal, below them: a bar for each layer
//!   ⠙ 12s ████──────── [2/5] RUN make                     and one for the step
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use clap::builder::styling::Style;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use wakeful_client::types::BuildLayer;

use crate::progress::Verbose;
use crate::{output, table};

/// How many lines are kept to be shown when a build fails.
const KEPT: usize = 30;
/// How many layers have a bar at a time.
const BARS: usize = 16;
const TICK: Duration = Duration::from_millis(120);
const STEP: Style = Style::new().bold();

pub(super) struct Screen {
    /// `None` when nobody watches.
    drawn: Option<Drawn>,
    verbose: Verbose,
    step: String,
    tail: VecDeque<String>,
}

struct Drawn {
    all: MultiProgress,
    step: ProgressBar,
    layers: BTreeMap<u32, ProgressBar>,
}

impl Screen {
    pub(super) fn new(verbose: Verbose) -> Self {
        let drawn = output::watched().then(|| {
            let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            let step = all.add(ProgressBar::new(1000));
            step.set_style(style("{spinner} {elapsed:>4} {bar:24} {wide_msg}"));
            step.enable_steady_tick(TICK);
            Drawn { all, step, layers: BTreeMap::new() }
        });
        Self { drawn, verbose, step: String::new(), tail: VecDeque::new() }
    }

    /// The build went on.
    pub(super) fn event(&mut self, step: &str, fraction: Option<f32>, line: Option<&str>, layer: Option<&BuildLayer>) {
        if step != self.step {
            step.clone_into(&mut self.step);
            self.tail.clear();
            let title = plain(step);
            if let Some(drawn) = &mut self.drawn {
                drawn.begin(&title);
            }
            if self.drawn.is_none() || self.verbose == Verbose::Yes {
                self.say(&format!("{STEP}{title}{STEP:#}"));
            }
        }
        if let (Some(drawn), Some(fraction)) = (&self.drawn, fraction) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
            drawn.step.set_position((fraction.clamp(0.0, 1.0) * 1000.0) as u64);
        }
        if let Some(layer) = layer {
            self.layer(layer, line.is_some());
        }
        // Of several lines the first: why a build failed is told in full at its end.
        let line = line.and_then(|text| text.lines().next()).map(plain);
        let Some(line) = line.filter(|line| !line.is_empty()) else { return };
        if self.tail.len() == KEPT {
            self.tail.pop_front();
        }
        match (&self.drawn, self.verbose) {
            (_, Verbose::Yes) => self.say(&format!("  {line}")),
            (Some(drawn), Verbose::No) => drawn.step.set_message(format!("{}: {line}", plain(&self.step))),
            (None, Verbose::No) => {}
        }
        self.tail.push_back(line);
    }

    fn layer(&mut self, layer: &BuildLayer, said: bool) {
        let complete = layer.done >= layer.total;
        match &mut self.drawn {
            Some(drawn) => drawn.layer(layer, complete),
            None if complete && !said && self.verbose == Verbose::Yes => {
                output::say(&format!("  {} {}", name(layer), table::bytes(layer.total)));
            }
            None => {}
        }
    }

    fn say(&self, text: &str) {
        match &self.drawn {
            Some(drawn) => drawn.all.suspend(|| output::say(text)),
            None => output::say(text),
        }
    }

    /// The build is done: the bars go, a line stays.
    pub(super) fn done(&mut self, text: &str) {
        self.clear();
        output::say(text);
    }

    /// The build failed: what the last step said is shown, unless it was shown already. The server may know better what
    /// that was.
    pub(super) fn failed(&mut self, told: Vec<&str>) {
        self.clear();
        if self.verbose == Verbose::Yes {
            return;
        }
        let tail: Vec<String> =
            if told.is_empty() { self.tail.drain(..).collect() } else { told.into_iter().map(plain).collect() };
        for line in tail {
            output::say(&format!("  {line}"));
        }
    }

    fn clear(&mut self) {
        if let Some(drawn) = &mut self.drawn {
            drawn.forget_layers();
            drawn.step.finish_and_clear();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Drawn {
    fn begin(&mut self, title: &str) {
        self.forget_layers();
        self.step.set_position(0);
        self.step.set_message(title.to_owned());
    }

    fn forget_layers(&mut self) {
        for (_, bar) in std::mem::take(&mut self.layers) {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
    }

    fn layer(&mut self, layer: &BuildLayer, complete: bool) {
        if !self.layers.contains_key(&layer.number) {
            if self.layers.len() >= BARS {
                // One that is complete makes room; without one, this one goes without.
                let over = self.layers.iter().find(|(_, bar)| bar.is_finished()).map(|(number, _)| *number);
                let Some(bar) = over.and_then(|number| self.layers.remove(&number)) else { return };
                bar.finish_and_clear();
                self.all.remove(&bar);
            }
            let bar = ProgressBar::new(layer.total);
            bar.set_style(style("  {prefix} {bar:24} {decimal_bytes}/{decimal_total_bytes}"));
            bar.set_prefix(name(layer));
            // In their order, above the step.
            let next = self.layers.range(layer.number..).next().map_or(&self.step, |(_, bar)| bar);
            let bar = self.all.insert_before(next, bar);
            self.layers.insert(layer.number, bar);
        }
        let Some(bar) = self.layers.get(&layer.number) else { return };
        bar.set_position(layer.done.min(layer.total));
        if complete && !bar.is_finished() {
            bar.abandon();
        }
    }
}

/// What a layer is called, in a width of its own.
pub(super) fn name(layer: &BuildLayer) -> String {
    let width = layer.count.to_string().len();
    format!("layer {:>width$}/{} {}", layer.number, layer.count, plain(&layer.digest))
}

/// A line of a build. It comes from a stranger and must not speak to our terminal: colours go, and of a line that was
/// written over again and again the last stays.
pub(super) fn plain(line: &str) -> String {
    let line = anstream::adapter::strip_str(line.trim_end()).to_string();
    let last = line.rsplit('\r').next().unwrap_or_default();
    table::plain_text(&last.replace('\t', "    ")).into_owned()
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates here are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_only_lines() {
        for (said, shown) in [
            ("plain text", "plain text"),
            ("\x1b[32mgreen\x1b[0m", "green"),
            ("10%\r50%\r100%\r", "100%"),
            ("a\tb", "a    b"),
            ("\x1b]0;title\x07x", "x"),
            ("bell\x07", "bell"),
            ("a\u{9b}31mb", "a\\u{9b}31mb"),
        ] {
            assert_eq!(plain(said), shown, "{said:?}");
        }
    }

    #[test]
    fn layers_are_named_in_columns() {
        let layer = |number| BuildLayer { number, count: 12, digest: "4f53cda18c2b".into(), done: 0, total: 1 };
        assert_eq!(name(&layer(3)), "layer  3/12 4f53cda18c2b");
        assert_eq!(name(&layer(12)), "layer 12/12 4f53cda18c2b");
    }

    #[test]
    fn bars_are_few_and_in_order() {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
        let step = all.add(ProgressBar::new(1000));
        let mut drawn = Drawn { all, step, layers: BTreeMap::new() };
        let tell = |drawn: &mut Drawn, number: u32, done: u64| {
            let layer = BuildLayer { number, count: 40, digest: "d".into(), done, total: 10 };
            drawn.layer(&layer, done >= 10);
        };
        for number in 1..=40 {
            tell(&mut drawn, number, 1);
        }
        assert_eq!(drawn.layers.keys().copied().collect::<Vec<_>>(), (1..=16).collect::<Vec<_>>());
        tell(&mut drawn, 2, 10);
        tell(&mut drawn, 40, 5);
        assert!(!drawn.layers.contains_key(&2) && drawn.layers.contains_key(&40), "{:?}", drawn.layers.keys());
        drawn.begin("next");
        assert!(drawn.layers.is_empty());
    }
}

//! What a build tells while it runs.

/// Something that happened in a build.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event<'a> {
    /// The step under way: `check`, `bootstrap`, `image`, `digest`.
    pub step: &'static str,
    /// How much of the whole build is done, from 0 to 1; never falls. `None` when this event says nothing of it.
    pub fraction: Option<f32>,
    /// One line of output, at most a kilobyte, without its end; empty when only the step or the fraction changed.
    pub line: &'a str,
}

/// Where a build's events go. Called from the build's own task: it should not block.
pub trait Log: Send + Sync {
    /// Takes one event.
    fn event(&self, event: Event<'_>);
}

/// For those who do not listen.
impl Log for () {
    fn event(&self, _: Event<'_>) {}
}

impl<F: Fn(Event<'_>) + Send + Sync> Log for F {
    fn event(&self, event: Event<'_>) {
        self(event);
    }
}

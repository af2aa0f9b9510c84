//! How far it is, for a bar per layer.

/// Who wants to know. Called often (about once a mebibyte and layer) and from several threads: it must not block.
pub trait Progress: Send + Sync {
    /// Something moved.
    fn event(&self, event: Event<'_>);

    /// Whether to stop. Asked between two pieces of work; for what blocks a thread and cannot be dropped.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody.
impl Progress for () {
    fn event(&self, _: Event<'_>) {}
}

/// One layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// What is done with it.
    pub phase: Phase,
    /// Which layer, from one.
    pub layer: usize,
    /// Of how many.
    pub layers: usize,
    /// The first twelve digits of its digest.
    pub digest: &'a str,
    /// Bytes done, as the registry has them.
    pub done: u64,
    /// Of how many.
    pub total: u64,
    /// It was here already.
    pub cached: bool,
}

/// What is done with a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is brought into the cache.
    Pull,
    /// It is laid over the others.
    Unpack,
}

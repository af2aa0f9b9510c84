//! What differs between engines, as data.

use serde::Serialize;

/// How a sandbox is kept apart from its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// A virtual machine with a kernel of its own.
    Microvm,
    /// A kernel written as an ordinary program.
    UserKernel,
}

/// Whether a stopped engine can go on after its state was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancel {
    /// At any moment before the kill.
    Always,
    /// It can, but connections to the outside are reset by the attempt.
    ResetsConnections,
}

/// What the disk of a sandbox is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// A file that the guest sees as a block device.
    Block,
    /// A directory.
    Directory,
}

/// What becomes of open connections to the outside at a suspend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutsideTcp {
    /// They are still there in the guest and are reset from outside.
    Reset,
    /// The engine drops them itself.
    Dropped,
}

/// Who puts the clock and the random pool right after a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repairs {
    /// They are the host's own and never wrong.
    Host,
    /// The agent, told by the host.
    Agent,
}

/// What the guest's card is to its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CardKind {
    /// A descriptor that frames go through.
    Tap,
    /// A link in a namespace that the engine enters.
    Veth,
}

/// What an engine can do. `lifecycle` asks these and never an engine's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// How the guest is kept apart.
    pub isolation: Isolation,
    /// Memory and processes survive a suspend.
    pub memory_checkpoint: bool,
    /// Whether a saved engine can go on.
    pub cancel: Cancel,
    /// A checkpoint holds only the pages that differ from its base.
    pub dirty_pages: bool,
    /// What the disk is on the host.
    pub disk: DiskKind,
    /// What a suspend does to connections to the outside.
    pub outside_tcp: OutsideTcp,
    /// Who repairs the clock.
    pub clock: Repairs,
    /// Who repairs the random pool.
    pub entropy: Repairs,
    /// A running sandbox can be cut in two.
    pub fork: bool,
    /// The guest has a network.
    pub network: bool,
    /// How its card is plugged in.
    pub card: CardKind,
    /// A create is a clone of a golden snapshot; else it is a first start from the base, which is as fast, and only what a
    /// template keeps warm is cloned.
    pub golden: bool,
    /// A guest may hold something that no image can keep: its agent is asked before the engine is touched.
    pub obstacles: bool,
    /// What the guest asks of its disks can be limited.
    pub io_limits: bool,
    /// The processor runs guest code itself.
    pub hardware_virtualization: bool,
}

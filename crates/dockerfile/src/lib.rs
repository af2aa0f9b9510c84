//! What a Dockerfile says, and what it depends on.
//!
//! Templates are built from Dockerfiles without Docker: the steps run in a sandbox of ours. Everything that can be
//! known without running anything is here, pure and testable; whoever executes it only does what an [`Action`] says.
//!
//! ```text
//!   text ──parse──▶ Dockerfile ──plan──▶ Plan ──▶ per stage: State ──step──▶ Action ──key──▶ Key
//!                   head, stages         only what                │            │
//!                                        the target needs    ImageConfig   Context: select, digest, pack
//! ```
//!
//! The text, the context and the archives in it come from callers, so every length, depth and product of an expansion
//! is bounded. What Docker would do and this does not is refused with its line, never passed over; [`Error`] tells the
//! two apart.

mod action;
mod archive;
mod args;
mod config;
mod context;
mod error;
mod expand;
mod glob;
mod ignore;
mod instruction;
mod key;
mod lines;
mod mount;
mod pack;
mod parse;
mod plan;
mod state;
mod suggest;
mod template;
mod walk;
mod words;

pub use action::{Action, CopyStep, InlineFile, Mount, MountKind, Origin, Placement, RunStep, WorkdirStep};
pub use archive::Format;
pub use config::{Healthcheck, ImageConfig};
pub use context::{Context, Selected, SelectedKind};
pub use error::Error;
pub use instruction::{Command, CopyOp, Dockerfile, HealthcheckOp, Heredoc, Instruction, MountSpec, Op, RunOp, Stage};
pub use key::{Digest, Key, key};
pub use pack::pack_inline;
pub use parse::parse;
pub use plan::{Base, Options, Plan, PlannedStage, plan};
pub use state::State;
pub use template::{EgressFile, IoFile, TemplateFile};

/// The longest Dockerfile, in bytes.
pub const MAX_TEXT: usize = 1 << 20;
/// The most instructions in one.
pub const MAX_INSTRUCTIONS: usize = 10_000;
/// The most stages in one.
pub const MAX_STAGES: usize = 1_000;
/// The most variables, ENV and ARG together, that a stage has.
pub const MAX_VARIABLES: usize = 1_000;
/// The longest result of expanding one word, in bytes; also the most that a stage's variables come to together.
pub const MAX_EXPANDED: usize = 1 << 20;

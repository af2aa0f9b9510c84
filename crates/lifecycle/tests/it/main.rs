//! The state machine in motion: the real store and the real lifecycle over simulated engines.
//!
//! ```text
//!   steps ──▶ walk ──▶ Lifecycle + SQLite + simulated engines      what happens
//!                └───▶ model                                       what must happen; compared after every step
//! ```

mod coverage;
mod disk;
mod model;
mod pool;
mod runtimes;
mod sequences;
mod sharing;
mod time;
mod tour;
mod walk;
mod world;

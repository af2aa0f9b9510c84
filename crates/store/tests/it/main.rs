//! The store's contract, run over each implementation, and what is particular to one.

mod contract;
mod rows;
mod sqlite;

//! Tenants and keys for whoever holds a data directory without a daemon: the names under which the command line finds
//! them.

pub use wakeful_api::problem_of;
pub use wakeful_lifecycle::{Error, LastKey, LimitsChange, NewKey, Registry};

//! The driver against real engines.

mod adopt;
mod damage;
mod jail;
mod lab;
mod lifecycle;
mod probe;

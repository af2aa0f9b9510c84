//! The driver against real engines.

mod adopt;
mod damage;
mod lab;
mod lifecycle;
mod probe;

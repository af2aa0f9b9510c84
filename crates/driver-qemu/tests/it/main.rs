//! The driver against real engines.

mod damage;
mod jail;
mod lab;
mod lifecycle;
mod probe;

wakeful_driver_contract::driver_contract!(contract, crate::lab::open, real);

//! The driver against real engines.

mod cut;
mod lab;
mod layers;
mod obstacles;
mod probe;
mod survivors;
mod tcp;
mod walls;

wakeful_driver_contract::driver_contract!(contract, crate::lab::open, real);

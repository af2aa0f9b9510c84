//! The simulated driver keeps the promises that need no guest: what is tested over it holds of real ones.

mod lab;

wakeful_driver_contract::driver_contract!(contract, crate::lab::open);
wakeful_driver_contract::driver_contract!(plain, crate::lab::open_plain);

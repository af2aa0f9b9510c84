//! Trees against the real file system, as root.

mod archive;
mod facts;
mod gnu;
mod hostile;
mod layers;
mod noise;
mod place;
mod round;

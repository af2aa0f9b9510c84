//! Ports of a sandbox.

/// What is known of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub port: u16,
    /// Its preview needs no credentials.
    pub public: bool,
}

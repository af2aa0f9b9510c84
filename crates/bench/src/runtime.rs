//! The engines that can be measured.

use std::fmt;

use serde::Serialize;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// A virtual machine.
    Qemu,
    /// A kernel as a program.
    Gvisor,
}

impl Runtime {
    /// All, in the order in which they are measured and shown.
    pub const ALL: [Self; 2] = [Self::Qemu, Self::Gvisor];

    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Gvisor => "gvisor",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no runtime {0} to measure; there are {all}", all = Runtime::ALL.map(Runtime::name).join(", "))]
pub struct UnknownRuntime(String);

impl std::str::FromStr for Runtime {
    type Err = UnknownRuntime;

    fn from_str(name: &str) -> Result<Self, UnknownRuntime> {
        Self::ALL.into_iter().find(|runtime| runtime.name() == name).ok_or_else(|| UnknownRuntime(name.to_owned()))
    }
}

/// What a case ran on.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) runtime: Runtime,
    /// How guest code is run.
    pub(crate) accel: String,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.runtime, self.accel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        for runtime in Runtime::ALL {
            assert_eq!(runtime.name().parse(), Ok(runtime));
            assert_eq!(serde_json::to_value(runtime).expect("a word"), runtime.name());
        }
        let error = "firecracker".parse::<Runtime>().expect_err("there is none yet").to_string();
        assert_eq!(error, "there is no runtime firecracker to measure; there are qemu, gvisor");
    }
}

//! The tables of the file, with their defaults and checks.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use wakeful_model::{Cidr, Size};

use super::Span;

/// A key and whether its value makes sense.
pub(super) type Check = (&'static str, Result<(), String>);

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal, $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// Its word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),+
                }
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.as_str().to_owned()
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("{text:?} is no {}; there are {}", $what, [$($text),+].join(", "))),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    };
}

words! {
    /// Which runtime new sandboxes get.
    RuntimeChoice, "runtime",
    /// The best one that works here.
    Auto = "auto",
    /// QEMU microVMs.
    Qemu = "qemu",
    /// gVisor.
    Gvisor = "gvisor",
    /// Firecracker.
    Firecracker = "firecracker",
}

words! {
    /// How lines are logged.
    LogFormat, "log format",
    /// For people.
    Text = "text",
    /// One object per line.
    Json = "json",
}

words! {
    /// How QEMU runs guest code.
    Accel, "accelerator",
    /// KVM if a probe guest got through, else TCG.
    Auto = "auto",
    /// KVM or nothing.
    Kvm = "kvm",
    /// Emulated.
    Tcg = "tcg",
}

/// `[tls]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Certificate chain, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its key, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl Tls {
    pub(super) fn is_empty(&self) -> bool {
        self.cert.is_none() && self.key.is_none()
    }

    pub(super) fn check(&self) -> Vec<Check> {
        // starting in the clear when someone asked for https would be worse than not starting
        let whole = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) if cert.as_os_str().is_empty() || key.as_os_str().is_empty() => {
                Err("cert and key must name files".into())
            }
            (Some(_), None) => Err("there is a cert and no key".into()),
            (None, Some(_)) => Err("there is a key and no cert".into()),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        };
        vec![("tls", whole)]
    }
}

/// `[defaults]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// Size of a template that names none.
    pub template_size: String,
    /// Lease of an ephemeral sandbox.
    pub timeout: Span,
    /// The longest lease.
    pub max_timeout: Span,
    /// Idleness before a persistent sandbox sleeps.
    pub idle_timeout: Span,
    /// How long a command may run.
    pub exec_timeout: Span,
    /// How long it may ask for.
    pub max_exec_timeout: Span,
    /// A sandbox's disk.
    pub disk_mb: u32,
    /// How long a destroyed sandbox is still shown.
    pub tombstone: Span,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            template_size: "shared-cpu-1x".into(),
            timeout: Span::seconds(5 * 60),
            max_timeout: Span::seconds(24 * 3600),
            idle_timeout: Span::seconds(10 * 60),
            exec_timeout: Span::seconds(30),
            max_exec_timeout: Span::seconds(5 * 60),
            disk_mb: 2048,
            tombstone: Span::seconds(24 * 3600),
        }
    }
}

impl Defaults {
    pub(super) fn check(&self) -> Vec<Check> {
        let some = |span: Span| if span.0.is_zero() { Err("must be longer than nothing".to_owned()) } else { Ok(()) };
        let within = |span: Span, most: Span, name: &str| {
            some(span)?;
            if span > most { Err(format!("{span} is longer than {name}, which is {most}")) } else { Ok(()) }
        };
        vec![
            ("defaults.template_size", check_size(&self.template_size)),
            ("defaults.max_timeout", some(self.max_timeout)),
            ("defaults.timeout", within(self.timeout, self.max_timeout, "max_timeout")),
            ("defaults.idle_timeout", some(self.idle_timeout)),
            ("defaults.max_exec_timeout", some(self.max_exec_timeout)),
            ("defaults.exec_timeout", within(self.exec_timeout, self.max_exec_timeout, "max_exec_timeout")),
            ("defaults.disk_mb", Size::check(1, 256, self.disk_mb).map_err(|error| error.to_string())),
            ("defaults.tombstone", some(self.tombstone)),
        ]
    }
}

/// `[limits]`: what the host gives away at most. What is left out has no limit but the host itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Sandboxes that are not destroyed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u32>,
    /// Memory of all running ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Disk of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    /// How long a sandbox may run on end; it is suspended then, and a wake counts anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awake: Option<Span>,
    /// The largest file that can be put.
    pub upload_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sandboxes: None, memory_mb: None, disk_mb: None, awake: None, upload_bytes: 104_857_600 }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Vec<Check> {
        let some = |zero: bool| if zero { Err("must be at least 1".to_owned()) } else { Ok(()) };
        vec![
            ("limits.sandboxes", some(self.sandboxes == Some(0))),
            ("limits.memory_mb", some(self.memory_mb == Some(0))),
            ("limits.disk_mb", some(self.disk_mb == Some(0))),
            ("limits.awake", some(self.awake.is_some_and(|awake| awake.0.is_zero()))),
            ("limits.upload_bytes", some(self.upload_bytes == 0)),
        ]
    }
}

/// `[pressure]`: when the host counts as short of memory. The longest idle sandboxes are suspended then, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pressure {
    /// Less available memory than so many per cent of all; 0: it does not matter.
    pub available_percent: u32,
    /// More than so many per cent of the time in which somebody waits for memory; 0: it does not matter.
    pub stall_percent: u32,
    /// How long nobody must have used a sandbox before it is suspended for that.
    pub idle: Span,
    /// How often the host's figures are read.
    pub interval: Span,
    /// Where the first figure is read.
    pub meminfo: PathBuf,
    /// Where the second is.
    pub stalls: PathBuf,
}

impl Default for Pressure {
    /// At a twentieth of the memory the kernel is about to end processes, and what an engine holds would be lost. How much
    /// waiting is too much depends on the host's disks.
    fn default() -> Self {
        Self {
            available_percent: 5,
            stall_percent: 0,
            idle: Span::seconds(30),
            interval: Span::seconds(2),
            meminfo: "/proc/meminfo".into(),
            stalls: "/proc/pressure/memory".into(),
        }
    }
}

impl Pressure {
    pub(super) fn check(&self) -> Vec<Check> {
        let percent = |value: u32| if value < 100 { Ok(()) } else { Err(format!("{value} is not below 100")) };
        let interval = if self.interval.0.is_zero() { Err("must be longer than nothing".to_owned()) } else { Ok(()) };
        vec![
            ("pressure.available_percent", percent(self.available_percent)),
            ("pressure.stall_percent", percent(self.stall_percent)),
            ("pressure.interval", interval),
            ("pressure.meminfo", check_absolute(Some(&self.meminfo))),
            ("pressure.stalls", check_absolute(Some(&self.stalls))),
        ]
    }
}

/// `[network]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// The range that slots take their addresses from, or `auto`.
    pub pool: String,
    /// Private ranges that egress rules may reach.
    pub allow_private: Vec<String>,
    /// Resolvers that guests' questions go to; empty: the host's.
    pub dns: Vec<String>,
    /// Bytes per second that one sandbox may send; none: as fast as it goes.
    pub up_bytes_per_second: Option<u64>,
    /// Bytes per second that one sandbox may be sent.
    pub down_bytes_per_second: Option<u64>,
    /// Connections of one sandbox at once.
    pub connections: u32,
    /// Slots that are kept ready, so that a create does not wait for one.
    pub ready: usize,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            pool: "auto".into(),
            allow_private: Vec::new(),
            dns: Vec::new(),
            up_bytes_per_second: None,
            down_bytes_per_second: None,
            connections: 4096,
            ready: 2,
        }
    }
}

impl Network {
    pub(super) fn check(&self) -> Vec<Check> {
        let range = |text: &String| {
            text.parse::<Cidr>().map(|_| ()).map_err(|()| format!("{text:?} is not a CIDR such as 10.0.0.0/8"))
        };
        let pool = if self.pool == "auto" { Ok(()) } else { range(&self.pool) };
        let address =
            |text: &String| text.parse::<IpAddr>().map(|_| ()).map_err(|_| format!("{text:?} is not an IP address"));
        vec![
            ("network.pool", pool),
            ("network.allow_private", self.allow_private.iter().try_for_each(range)),
            ("network.dns", self.dns.iter().try_for_each(address)),
        ]
    }
}

/// `[pool]`: sandboxes made before they are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// Whether there is one.
    pub enabled: bool,
    /// How often it is looked after.
    pub replenish_interval: Span,
    /// The size of its members.
    pub default_size: String,
    /// How many for which template.
    pub sizes: BTreeMap<String, u32>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            enabled: false,
            replenish_interval: Span::seconds(5),
            default_size: "shared-cpu-1x".into(),
            sizes: BTreeMap::new(),
        }
    }
}

impl Pool {
    pub(super) fn check(&self) -> Vec<Check> {
        let interval =
            if self.replenish_interval.0.is_zero() { Err("must be longer than nothing".to_owned()) } else { Ok(()) };
        let most = 1000;
        let sizes = self.sizes.iter().try_for_each(|(template, count)| {
            if *count > most { Err(format!("{template} = {count} is more than {most}")) } else { Ok(()) }
        });
        vec![
            ("pool.replenish_interval", interval),
            ("pool.default_size", check_size(&self.default_size)),
            ("pool.sizes", sizes),
        ]
    }
}

/// `[qemu]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Qemu {
    /// The binary, if not the one in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
    /// How guest code is run.
    pub accel: Accel,
    /// A prepared kernel directory, if not the newest in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// The most that one engine may read and write each, on the data directory's disk; without it there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_bytes_per_second: Option<u64>,
}

impl Default for Qemu {
    fn default() -> Self {
        Self { binary: None, accel: Accel::Auto, kernel: None, io_bytes_per_second: None }
    }
}

impl Qemu {
    pub(super) fn check(&self) -> Vec<Check> {
        vec![
            ("qemu.binary", check_absolute(self.binary.as_deref())),
            ("qemu.kernel", check_absolute(self.kernel.as_deref())),
        ]
    }
}

/// `[gvisor]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gvisor {
    /// The runsc to use; without it `setup` gets one, and an installed one that is new enough is taken as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
    /// How guest code is run.
    pub platform: String,
    /// The guest's kernel has no capability and opens no file itself; walking trees takes longer.
    pub hardened: bool,
}

impl Default for Gvisor {
    fn default() -> Self {
        Self { binary: None, platform: wakeful_driver_gvisor::ACCEL.into(), hardened: false }
    }
}

impl Gvisor {
    pub(super) fn check(&self) -> Vec<Check> {
        let platform = match self.platform.as_str() {
            wakeful_driver_gvisor::ACCEL => Ok(()),
            other => Err(format!("{other:?} is no platform; there is {}", wakeful_driver_gvisor::ACCEL)),
        };
        vec![("gvisor.binary", check_absolute(self.binary.as_deref())), ("gvisor.platform", platform)]
    }
}

fn check_size(name: &str) -> Result<(), String> {
    let names = || wakeful_model::SIZES.map(|size| size.name).join(", ");
    wakeful_model::preset(name).map(|_| ()).map_err(|error| format!("{error}; there are {}", names()))
}

pub(super) fn check_absolute(path: Option<&Path>) -> Result<(), String> {
    match path {
        Some(path) if !path.is_absolute() => Err(format!("{} is not an absolute path", path.display())),
        _ => Ok(()),
    }
}

pub(super) fn check_domain(name: &str) -> Result<(), String> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() <= 200 && name.split('.').all(label) {
        Ok(())
    } else {
        Err(format!("{name:?} is no host name in lower case"))
    }
}

/// Reads `127.0.0.1:8080` and `[::1]:8080`.
pub(super) fn parse_addresses(texts: &[String]) -> Result<Vec<SocketAddr>, String> {
    if texts.is_empty() {
        return Err("names no address".into());
    }
    texts
        .iter()
        .map(|text| {
            text.parse()
                .map_err(|_| format!("{text:?} is not an address with a port such as 127.0.0.1:8080 or [::1]:8080"))
        })
        .collect()
}

/// Addresses as the file has them: a list of strings, with an error that says how one looks.
pub(super) mod addresses {
    use super::{Deserialize, SocketAddr};

    pub(in super::super) fn serialize<S: serde::Serializer>(list: &[SocketAddr], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(ToString::to_string))
    }

    pub(in super::super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<SocketAddr>, D::Error> {
        super::parse_addresses(&Vec::<String>::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

//! Units for systemd: the daemon, and what puts all sandboxes to sleep when the host shuts down.
//!
//! ```text
//!   start      wakeful.service wants wakeful-suspend.service, which does nothing
//!   shutdown   wakeful-suspend.service: `wakeful suspend-all` ─▶ wakeful.service drains
//! ```
//!
//! The second unit is ordered after the first, and does not go with it: so it is stopped before it at a shutdown, and not at
//! all when the daemon alone is stopped, which leaves sandboxes running.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where units of this machine are.
pub const UNITS: &str = "/etc/systemd/system";

/// Whether systemd runs here is told by this directory.
const RUNNING: &str = "/run/systemd/system";

/// What the units are about.
#[derive(Clone, Debug)]
pub struct Service {
    /// This program.
    pub binary: PathBuf,
    /// The configuration file, if it is not the default one.
    pub config: Option<PathBuf>,
    /// The data directory, if it was named.
    pub data_dir: Option<PathBuf>,
}

/// One unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its file name.
    pub name: &'static str,
    /// What is in it.
    pub text: String,
}

/// What became of the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enabled {
    /// They start with the host.
    Yes,
    /// They are there, for a systemd that does not run here.
    NotRunning,
}

/// Why the units could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path that no unit can name.
    #[error("{0} cannot be named in a unit: it is not absolute, or has a line break or a control character")]
    Path(PathBuf),
    /// A file could not be written.
    #[error("could not write {path}")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// systemd said no.
    #[error("`systemctl {what}` failed: {said}")]
    Systemctl {
        /// What was asked.
        what: String,
        /// Its words.
        said: String,
    },
}

/// The units, as they would be written.
///
/// # Errors
/// If a path cannot be named in one.
pub fn units(service: &Service) -> Result<Vec<Unit>, Error> {
    let binary = word(&service.binary)?;
    let mut place = String::new();
    for (flag, path) in [("--config", &service.config), ("--data-dir", &service.data_dir)] {
        if let Some(path) = path {
            place.push_str(&format!(" {flag} {}", word(path)?));
        }
    }
    let daemon = format!(
        "\
# Made by `wakeful setup --systemd`, which writes it again; changes belong in `systemctl edit wakeful`.
[Unit]
Description=Wakeful: sandboxes that sleep and wake
After=network.target local-fs.target
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart={binary} serve{place}
Restart=on-failure
RestartSec=1
# Sandboxes outlive the daemon: only its own process is ended, and the next one finds them.
KillMode=process
Delegate=yes
# It finishes or undoes what was under way, at both ends.
TimeoutStartSec=300
TimeoutStopSec=90
LimitNOFILE=1048576
TasksMax=infinity
# Nothing that needs a mount namespace: networks of sandboxes are mounted below /run, for the next daemon to find. Nothing
# that keeps engines from their devices or builds from what packages bring: modes, owners, set-uid programs.
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"
    );
    let suspend = format!(
        "\
# Made by `wakeful setup --systemd`, which writes it again; changes belong in `systemctl edit wakeful-suspend`.
[Unit]
Description=Wakeful: all sandboxes sleep before this host shuts down
# What starts after the daemon stops before it.
After=wakeful.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop={binary} suspend-all{place}
TimeoutStopSec=600

[Install]
WantedBy=wakeful.service
"
    );
    Ok(vec![Unit { name: "wakeful.service", text: daemon }, Unit { name: "wakeful-suspend.service", text: suspend }])
}

/// A path as a word of a command line in a unit.
fn word(path: &Path) -> Result<String, Error> {
    let refused = || Error::Path(path.to_owned());
    let text =
        path.to_str().filter(|text| path.is_absolute() && !text.contains(char::is_control)).ok_or_else(refused)?;
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            // Specifiers and variables are written twice to be themselves.
            '%' | '$' => quoted.extend([letter, letter]),
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    let plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-+:@".contains(letter));
    Ok(if plain { text.to_owned() } else { quoted })
}

/// Writes the units that are not there yet or are not the same; their paths. Blocks.
///
/// # Errors
/// If one cannot be written.
pub fn install(into: &Path, units: &[Unit]) -> Result<Vec<PathBuf>, Error> {
    let mut written = Vec::new();
    for unit in units {
        let path = into.join(unit.name);
        if fs::read(&path).is_ok_and(|there| there == unit.text.as_bytes()) {
            continue;
        }
        // Beside it and renamed: systemd never reads half of one.
        let new = into.join(format!(".{}.new", unit.name));
        let done =
            fs::create_dir_all(into).and_then(|()| fs::write(&new, &unit.text)).and_then(|()| fs::rename(&new, &path));
        done.map_err(|source| Error::Write { path: path.clone(), source })?;
        written.push(path);
    }
    Ok(written)
}

/// Lets them start with the host, if systemd runs it. To start them now is the caller's choice.
///
/// # Errors
/// If systemd says no.
pub fn enable(units: &[Unit]) -> Result<Enabled, Error> {
    if !Path::new(RUNNING).is_dir() {
        return Ok(Enabled::NotRunning);
    }
    systemctl(&["daemon-reload"])?;
    let names = units.iter().map(|unit| unit.name);
    systemctl(&["enable"].into_iter().chain(names).collect::<Vec<_>>())?;
    Ok(Enabled::Yes)
}

fn systemctl(arguments: &[&str]) -> Result<(), Error> {
    let failed = |said: String| Error::Systemctl { what: arguments.join(" "), said };
    let ended = Command::new("systemctl").args(arguments).stdin(Stdio::null()).output();
    let ended = ended.map_err(|error| failed(error.to_string()))?;
    if ended.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&ended.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn service() -> Service {
        Service { binary: "/usr/local/bin/wakeful".into(), config: None, data_dir: Some("/srv/my data/100%".into()) }
    }

    /// Sections and keys, as systemd reads them. What it would not understand is a panic.
    fn parse(text: &str) -> HashMap<(String, String), String> {
        let (mut section, mut found) = (String::new(), HashMap::new());
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                name.clone_into(&mut section);
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line:?} is no setting"));
            assert!(!value.is_empty() && !line.ends_with('\\') && !section.is_empty(), "{line}");
            assert!(key.chars().all(|letter| letter.is_ascii_alphanumeric()), "{line}");
            assert_eq!(found.insert((section.clone(), key.to_owned()), value.to_owned()), None, "{key} twice");
        }
        found
    }

    #[test]
    fn units_say_what_they_must() {
        let units = units(&service()).unwrap();
        let [daemon, suspend] = &units[..] else { panic!("two units") };
        let get = |unit: &Unit, section: &str, key: &str| {
            parse(&unit.text).remove(&(section.to_owned(), key.to_owned())).unwrap_or_default()
        };
        assert_eq!((daemon.name, suspend.name), ("wakeful.service", "wakeful-suspend.service"));
        let serve = "/usr/local/bin/wakeful serve --data-dir \"/srv/my data/100%%\"";
        for (key, value) in [
            ("Type", "notify"),
            ("ExecStart", serve),
            ("KillMode", "process"),
            ("Delegate", "yes"),
            ("Restart", "on-failure"),
        ] {
            assert_eq!(get(daemon, "Service", key), value, "{key}");
        }
        // Stopped before the daemon, and by nothing but a shutdown.
        assert_eq!(get(suspend, "Unit", "After"), "wakeful.service");
        for tie in ["Requires", "BindsTo", "PartOf", "Requisite"] {
            assert_eq!(get(suspend, "Unit", tie), "", "{tie}");
        }
        let all = "/usr/local/bin/wakeful suspend-all --data-dir \"/srv/my data/100%%\"";
        assert_eq!(get(suspend, "Service", "ExecStop"), all);
        assert_eq!(get(suspend, "Service", "RemainAfterExit"), "yes");
        // Whoever starts the daemon starts the other one too: what is not started is not stopped.
        assert_eq!(get(daemon, "Install", "WantedBy"), "multi-user.target");
        assert_eq!(get(suspend, "Install", "WantedBy"), "wakeful.service");
        // Each of these would put the daemon into a mount namespace of its own.
        for walled in
            ["PrivateTmp", "ProtectSystem", "ProtectHome", "PrivateDevices", "ReadWritePaths", "PrivateMounts"]
        {
            assert_eq!(get(daemon, "Service", walled), "", "{walled}");
        }
    }

    #[test]
    fn what_no_unit_can_name_is_refused() {
        for bad in ["relative", "/a\nExecStart=/bin/sh", "/bell\u{7}"] {
            let service = Service { binary: bad.into(), ..service() };
            assert!(matches!(units(&service), Err(Error::Path(_))), "{bad:?}");
        }
        assert_eq!(word(Path::new("/a \"b\" $c \\d")).unwrap(), "\"/a \\\"b\\\" $$c \\\\d\"");
    }

    #[test]
    fn twice_is_once() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("system");
        let units = units(&service()).unwrap();
        assert_eq!(install(&into, &units).unwrap().len(), 2);
        assert_eq!(install(&into, &units).unwrap(), Vec::<PathBuf>::new());
        fs::write(into.join("wakeful.service"), "older").unwrap();
        assert_eq!(install(&into, &units).unwrap(), [into.join("wakeful.service")]);
        assert_eq!(fs::read_dir(&into).unwrap().count(), 2, "nothing else is left");
    }
}

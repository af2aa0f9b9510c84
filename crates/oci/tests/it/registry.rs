//! A registry for one test: Debian's `docker-registry` on a free port of loopback with a directory of its own, ended with it.
//! Self-contained; `scripts/host-setup docker-registry` installs what it needs.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "open sesame";
/// bcrypt of [`PASSWORD`] with the least effort.
const HASH: &str = "$2b$04$RvQkZJqZn7c9m7h95PZ7GuW8OC2AzaWwgkII2XZQ0oGGgZhxx470e";

pub(crate) struct Registry {
    child: Child,
    directory: TempDir,
    host: String,
}

impl Registry {
    /// For everybody.
    pub(crate) fn start() -> Self {
        Self::launch(false, None)
    }

    /// For [`USER`] with [`PASSWORD`] only.
    pub(crate) fn with_password() -> Self {
        Self::launch(true, None)
    }

    /// With a certificate and its key in PEM, and a password.
    pub(crate) fn with_tls(certificate: &str, key: &str) -> Self {
        Self::launch(true, Some((certificate, key)))
    }

    fn launch(password: bool, tls: Option<(&str, &str)>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut config = format!(
            "version: 0.1\nlog: {{accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {:?}}}, maintenance: {{uploadpurging: {{enabled: false}}}}}}\n",
            path("storage")
        );
        if password {
            std::fs::write(path("passwords"), format!("{USER}:{HASH}\n")).unwrap();
            writeln!(config, "auth: {{htpasswd: {{realm: test, path: {:?}}}}}", path("passwords")).unwrap();
        }
        config.push_str("http:\n  addr: 127.0.0.1:0\n");
        if let Some((certificate, key)) = tls {
            std::fs::write(path("cert.pem"), certificate).unwrap();
            std::fs::write(path("key.pem"), key).unwrap();
            writeln!(config, "  tls: {{certificate: {:?}, key: {:?}}}", path("cert.pem"), path("key.pem")).unwrap();
        }
        std::fs::write(path("config.yml"), config).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(path("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry is installed by scripts/host-setup docker-registry");
        let log = BufReader::new(child.stderr.take().unwrap());
        let (found, address) = mpsc::channel();
        std::thread::spawn(move || {
            // To the end, lest the registry blocks.
            for line in log.lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("listening on ") {
                    let end = rest.find(['"', ',']).unwrap_or(rest.len());
                    let _ = found.send(rest[..end].to_owned());
                }
            }
        });
        let host = address.recv_timeout(Duration::from_secs(30));
        let mut registry = Self { child, directory, host: String::new() };
        registry.host = host.expect("the registry says where it listens");
        registry
    }

    /// `127.0.0.1:port`.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Where it keeps a blob.
    pub(crate) fn blob(&self, hex: &str) -> PathBuf {
        self.directory.path().join(format!("storage/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

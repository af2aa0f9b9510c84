//! `wakeful-agent lease 60s -- make test`: keeps the sandbox awake for as long as a command runs.
//!
//! The lease is bound to this process, which then *becomes* the command: exit code, signals, terminal and process id are
//! its own, nothing stands in between, and the agent lets go of the lease when the process ends.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use wakeful_guest_proto::control::MAX_LEASE_NAME;

use super::socket::PATH;

const USAGE: &str = "usage: wakeful-agent lease TTL [--name NAME] -- COMMAND [ARGUMENT…]

Keeps the sandbox awake while COMMAND runs, whether or not anybody is connected.
  TTL   how long the agent takes it for granted that the command works: 60s, 10m, at most 1h";
/// Where the socket is, if not at its usual place.
const SOCKET_VARIABLE: &str = "WAKEFUL_LEASE_SOCKET";
/// The agent answers at once; a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// As `env` and `timeout` have it.
const USED_WRONGLY: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the command in place of this process; returns only if that failed.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let Some(ask) = parse(arguments) else {
        say(USAGE);
        return ExitCode::from(USED_WRONGLY);
    };
    let socket = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| PATH.into());
    let name = ask.name.clone().unwrap_or_else(|| default_name(&ask.command[0]));
    let body = serde_json::json!({"ttl": ask.ttl, "name": name, "while_running": true, "pid": std::process::id()});
    let body = body.to_string();
    match request(Path::new(&socket), "PUT", "/lease", &body) {
        Ok((204, _)) => {}
        Ok((400, answer)) => {
            say(&format!("wakeful-agent lease: {}", message(&answer)));
            return ExitCode::from(USED_WRONGLY);
        }
        // The command is what matters; without a lease it may be suspended in the middle, and goes on after the next wake.
        Ok((status, answer)) => say(&format!("wakeful-agent lease: no lease ({status}): {}", message(&answer))),
        Err(error) => say(&format!("wakeful-agent lease: no lease: {}: {error}", socket.display())),
    }
    let error = Command::new(&ask.command[0]).args(&ask.command[1..]).exec();
    let _ = request(Path::new(&socket), "DELETE", &format!("/lease/{name}"), "");
    say(&format!("wakeful-agent lease: {}: {error}", ask.command[0].display()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
}

#[derive(Debug, PartialEq, Eq)]
struct Ask {
    ttl: String,
    name: Option<String>,
    command: Vec<OsString>,
}

fn parse(arguments: &[OsString]) -> Option<Ask> {
    let split = arguments.iter().position(|word| word == "--")?;
    let (ours, command) = (&arguments[..split], arguments[split + 1..].to_vec());
    let ours: Vec<&str> = ours.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let (ttl, name) = match ours[..] {
        [ttl] => (ttl, None),
        [ttl, "--name", name] | ["--name", name, ttl] => (ttl, Some(name.to_owned())),
        _ => return None,
    };
    (!command.is_empty()).then(|| Ask { ttl: ttl.to_owned(), name, command })
}

/// Of the program and the process, so that two of them do not share one.
fn default_name(program: &OsStr) -> String {
    let number = format!("-{}", std::process::id());
    let last = Path::new(program).file_name().unwrap_or(program);
    let plain = last.as_bytes().iter().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(*byte),
        _ => '_',
    });
    plain.take(MAX_LEASE_NAME - number.len()).collect::<String>() + &number
}

/// One request; status and body. By hand: a whole client would be the larger half of this program.
fn request(socket: &Path, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: sandbox\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(64 << 10).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((status, answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned())))
}

fn message(answer: &str) -> String {
    let document: serde_json::Value = serde_json::from_str(answer).unwrap_or_default();
    document["message"].as_str().unwrap_or(answer).to_owned()
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Ask> {
        parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_taken_or_refused() {
        let ask = parsed("60s -- make -- all").expect("complete");
        assert_eq!((ask.ttl.as_str(), ask.name, ask.command.len()), ("60s", None, 3));
        assert_eq!(parsed("60s --name build -- make").expect("complete").name.as_deref(), Some("build"));
        assert_eq!(parsed("--name build 60s -- make").expect("complete").ttl, "60s");
        for bad in ["60s", "60s --", "-- make", "60s make", "60s 70s -- make", "60s --name -- make", "60s make -- x"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_fit() {
        let name = default_name(OsStr::new("/usr/bin/a program"));
        assert_eq!(name, format!("a_program-{}", std::process::id()));
        assert!(super::super::is_name(&name));
        assert!(super::super::is_name(&default_name(OsStr::new(&"x".repeat(300)))));
    }
}

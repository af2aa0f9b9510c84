//! The bare engine's monitor: one question, one answer, events skipped.

use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};

use crate::Error;

const ANSWER: Duration = Duration::from_secs(60);
/// The engine is ours, but its guest is not: no line of a monitor is near this.
const LINE: u64 = 1 << 20;

pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// The socket listens since before the engine was started: this waits in the greeting, not in a loop.
    pub(crate) fn connect(path: &Path) -> Result<Self, Error> {
        let failed = Error::io("connect to the bare engine's monitor");
        let stream = UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER))?;
            stream.set_write_timeout(Some(ANSWER))?;
            Ok(stream)
        });
        let mut qmp = Self { stream: BufReader::new(stream.map_err(failed)?) };
        qmp.line()?;
        qmp.call("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    pub(crate) fn call(&mut self, command: &'static str, arguments: &Value) -> Result<Value, Error> {
        self.call_with(command, arguments, None)
    }

    /// The same, with a descriptor that goes over to the engine.
    pub(crate) fn call_with(
        &mut self,
        command: &'static str,
        arguments: &Value,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Value, Error> {
        let message = json!({"execute": command, "arguments": arguments}).to_string();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::engine(command, "no room for a descriptor"));
        }
        let slices = [IoSlice::new(message.as_bytes())];
        let sent = rustix::net::sendmsg(self.stream.get_ref(), &slices, &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(|errno| Error::engine(command, errno))?;
        if sent != message.len() {
            return Err(Error::engine(command, "its monitor takes nothing"));
        }
        loop {
            let mut line = self.line()?;
            if let Some(error) = line.get("error") {
                return Err(Error::engine(command, error["desc"].as_str().unwrap_or("no reason given")));
            }
            if line.get("return").is_some() {
                return Ok(line["return"].take());
            }
        }
    }

    fn line(&mut self) -> Result<Value, Error> {
        let mut line = Vec::new();
        let mut bounded = std::io::Read::take(&mut self.stream, LINE);
        bounded.read_until(b'\n', &mut line).map_err(Error::io("read the bare engine's monitor"))?;
        if line.is_empty() {
            return Err(Error::engine("go on", "it closed its monitor"));
        }
        serde_json::from_slice(&line).map_err(|error| Error::engine("speak JSON", error))
    }

    /// Loads device state into an engine that waits for it; its vCPUs stay stopped.
    pub(crate) fn load(&mut self, state: BorrowedFd<'_>, version: (u32, u32)) -> Result<(), Error> {
        // "file:" is newer than the engines of which "fd:" takes a regular file.
        let uri = if version >= (9, 1) {
            self.call_with("add-fd", &json!({"fdset-id": 9}), Some(state))?;
            "file:/dev/fdset/9"
        } else {
            self.call_with("getfd", &json!({"fdname": "state"}), Some(state))?;
            "fd:state"
        };
        self.call("migrate-incoming", &json!({"uri": uri}))?;
        self.until("load its state", |qmp| {
            let answer = qmp.call("query-status", &json!({}))?;
            match answer["status"].as_str().unwrap_or_default() {
                "inmigrate" => Ok(false),
                "paused" | "prelaunch" => Ok(true),
                other => Err(Error::engine("load its state", format!("it is {other}"))),
            }
        })
    }

    /// Writes the device state, without memory, to a file that is open for writing only.
    pub(crate) fn save(&mut self, into: BorrowedFd<'_>) -> Result<(), Error> {
        let answer = self.call_with("add-fd", &json!({}), Some(into))?;
        let set = answer["fdset-id"].as_u64().ok_or_else(|| Error::engine("add-fd", "no set"))?;
        // `live` would give the disks away.
        self.call("xen-save-devices-state", &json!({"filename": format!("/dev/fdset/{set}"), "live": false}))?;
        self.call("remove-fd", &json!({"fdset-id": set})).map(drop)
    }

    /// The engine handles no hang-up while its guest is stopped: it must have seen this one before.
    pub(crate) fn wait_disconnected(&mut self) -> Result<(), Error> {
        self.until("see the channel closed", |qmp| {
            let answer = qmp.call("query-chardev", &json!({}))?;
            let agent = answer.as_array().and_then(|all| all.iter().find(|chardev| chardev["label"] == "agent"));
            Ok(agent.and_then(|agent| agent["filename"].as_str()).is_some_and(|name| name.starts_with("disconnected:")))
        })
    }

    fn until(
        &mut self,
        doing: &'static str,
        mut reached: impl FnMut(&mut Self) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + ANSWER;
        while !reached(self)? {
            if Instant::now() > deadline {
                return Err(Error::engine(doing, "it takes too long"));
            }
            crate::pause(Duration::from_micros(300));
        }
        Ok(())
    }
}

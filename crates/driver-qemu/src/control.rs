//! QMP: the engine's monitor, one JSON object a line over a unix socket.
//!
//! One connection is kept for the engine's life. A task reads it all the time, also when nobody asks anything: a guest
//! can cause events, and what nobody reads would pile up in the engine. Answers find their callers by number, so that a
//! caller who gave up does not confuse the next one. The engine is not trusted: a line is bounded, and an answer that
//! makes no sense ends the connection.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use wakeful_driver::IoLimits;

/// How long the last words of an engine that has ended may take to be read.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Within which every command must be answered.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);
/// The longest line that is believed.
const LINE: usize = 1 << 20;
/// Disks of an engine: the base and the writable one.
const DISKS: usize = 2;

/// Why a command has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine closed the connection: as a rule it has ended.
    Closed,
    /// No answer in time.
    Late(Duration),
    /// The engine said no.
    Refused(String),
}

/// The monitor of one engine.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: Arc<UnixStream>,
    shared: Arc<Shared>,
    next: AtomicU64,
    /// One message at a time; the reader does not take part in it.
    writing: tokio::sync::Mutex<()>,
    /// The reader; ends with this.
    _reader: JoinSet<()>,
}

/// Who waits for the answer with this number.
type Waiting = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

#[derive(Debug)]
struct Shared {
    /// `None` once the connection has ended.
    waiting: Mutex<Option<Waiting>>,
    port: watch::Sender<Port>,
    /// Why the guest ended, in the engine's word.
    shutdown: Mutex<Option<String>>,
}

/// What the guest does with the agent's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Closed,
    Open,
    /// The connection to the monitor has ended: it will never be known.
    Lost,
}

impl Qmp {
    /// Connects to the socket, which listens since before the engine was started, and waits until the engine speaks.
    pub(crate) async fn connect(path: &Path, deadline: Duration) -> Result<Self, Failure> {
        Self::over(UnixStream::connect(path).await.map_err(|_| Failure::Closed)?, deadline).await
    }

    /// The same on a connection that is there already.
    pub(crate) async fn over(stream: UnixStream, deadline: Duration) -> Result<Self, Failure> {
        let stream = Arc::new(stream);
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Some(HashMap::new())),
            port: watch::channel(Port::Closed).0,
            shutdown: Mutex::default(),
        });
        let (greeted, greeting) = oneshot::channel();
        let mut reader = JoinSet::new();
        reader.spawn(read(stream.clone(), shared.clone(), greeted));
        let qmp =
            Self { stream, shared, next: AtomicU64::new(1), writing: tokio::sync::Mutex::new(()), _reader: reader };
        match timeout(deadline, greeting).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Failure::Closed),
            Err(_) => return Err(Failure::Late(deadline)),
        }
        qmp.call("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Why the guest of an engine that has ended did so, if the engine said it: all that it said is read first.
    pub(crate) async fn shutdown(&self) -> Option<String> {
        let mut port = self.shared.port.subscribe();
        let _ = timeout(LAST_WORD, port.wait_for(|port| *port == Port::Lost)).await;
        self.shared.shutdown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) async fn call(&self, command: &str, arguments: Value) -> Result<Value, Failure> {
        self.send(command, arguments, None).await
    }

    /// Sends a command together with a descriptor.
    pub(crate) async fn call_with(
        &self,
        command: &str,
        arguments: Value,
        fd: BorrowedFd<'_>,
    ) -> Result<Value, Failure> {
        self.send(command, arguments, Some(fd)).await
    }

    async fn send(&self, command: &str, arguments: Value, fd: Option<BorrowedFd<'_>>) -> Result<Value, Failure> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        let (sender, receiver) = oneshot::channel();
        match self.shared.lock().as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(Failure::Closed),
        };
        let _forget = Forget { shared: &self.shared, id };
        let exchange = async {
            let turn = self.writing.lock().await;
            self.write(message.as_bytes(), fd).await.map_err(|_| Failure::Closed)?;
            drop(turn);
            receiver.await.map_err(|_| Failure::Closed)?.map_err(Failure::Refused)
        };
        timeout(ANSWER, exchange).await.unwrap_or(Err(Failure::Late(ANSWER)))
    }

    /// A unix socket takes a message of this size whole or not at all, so being dropped cannot leave half of one.
    async fn write(&self, message: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fds = fd.as_slice();
        let sent = self
            .stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                Ok(rustix::net::sendmsg(&self.stream, &[IoSlice::new(message)], &mut ancillary, flags)?)
            })
            .await?;
        if sent == message.len() {
            return Ok(());
        }
        self.shared.end();
        Err(io::ErrorKind::WriteZero.into())
    }

    /// Resolves when the guest has opened the agent's port; `false` if the connection ended before.
    pub(crate) async fn port_opened(&self) -> bool {
        let mut port = self.shared.port.subscribe();
        port.wait_for(|port| *port != Port::Closed).await.is_ok_and(|port| *port == Port::Open)
    }

    /// What the engine calls its state: `running`, `paused`, `inmigrate`, …
    pub(crate) async fn status(&self) -> Result<String, Failure> {
        let answer = self.call("query-status", json!({})).await?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    /// Limits all disks together, by one group that they share.
    pub(crate) async fn limit_io(&self, limits: IoLimits) -> Result<(), Failure> {
        let answer = self.call("query-block", json!({})).await?;
        let devices: Vec<&str> = answer.as_array().into_iter().flatten().filter_map(|d| d["qdev"].as_str()).collect();
        if devices.len() != DISKS {
            return Err(Failure::Refused(format!("it has {} disks", devices.len())));
        }
        for device in devices {
            self.call("block_set_io_throttle", throttle(device, limits)).await?;
        }
        Ok(())
    }

    /// Gives a disk so many bytes; the guest is told by its device. A disk that has them already is told of again.
    pub(crate) async fn grow(&self, node: &str, bytes: u64) -> Result<(), Failure> {
        self.call("block_resize", json!({"node-name": node, "size": bytes})).await.map(drop)
    }

    /// Whether the engine has no connection on the agent's channel.
    pub(crate) async fn agent_disconnected(&self) -> Result<bool, Failure> {
        let answer = self.call("query-chardev", json!({})).await?;
        let is_agent = |chardev: &&Value| chardev["label"] == "agent";
        let agent = answer.as_array().and_then(|chardevs| chardevs.iter().find(is_agent));
        Ok(agent.and_then(|agent| agent["filename"].as_str()).is_some_and(|name| name.starts_with("disconnected:")))
    }

    /// Writes the device state, without memory, to `into`, which must be open for writing only.
    pub(crate) async fn save_devices(&self, into: BorrowedFd<'_>) -> Result<(), Failure> {
        let set = self.call_with("add-fd", json!({}), into).await?["fdset-id"].as_u64();
        let set = set.ok_or_else(|| Failure::Refused("no descriptor set was made".to_owned()))?;
        // `live` would give the disks away, and the engine could not go on afterwards.
        let arguments = json!({"filename": format!("/dev/fdset/{set}"), "live": false});
        let saved = self.call("xen-save-devices-state", arguments).await.map(drop);
        let removed = self.call("remove-fd", json!({"fdset-id": set})).await.map(drop);
        saved.and(removed)
    }

    /// Loads device state into an engine that waits for it. `how` depends on the engine's version.
    pub(crate) async fn load_devices(&self, from: BorrowedFd<'_>, how: Incoming) -> Result<(), Failure> {
        match how {
            Incoming::File => {
                self.call_with("add-fd", json!({"fdset-id": 9}), from).await?;
                self.call("migrate-incoming", json!({"uri": "file:/dev/fdset/9"})).await?;
            }
            Incoming::Fd => {
                self.call_with("getfd", json!({"fdname": "state"}), from).await?;
                self.call("migrate-incoming", json!({"uri": "fd:state"})).await?;
            }
        }
        let loaded = async {
            loop {
                match self.status().await?.as_str() {
                    "inmigrate" => tokio::time::sleep(Duration::from_micros(500)).await,
                    "paused" | "prelaunch" => return Ok(()),
                    other => return Err(Failure::Refused(format!("after the load the engine is {other}"))),
                }
            }
        };
        timeout(ANSWER, loaded).await.unwrap_or(Err(Failure::Late(ANSWER)))
    }
}

/// What `block_set_io_throttle` takes; 0 is no limit. A burst lasts a second.
fn throttle(device: &str, limits: IoLimits) -> Value {
    let bytes = |megabytes: Option<u64>| megabytes.map(|megabytes| megabytes.saturating_mul(1_000_000));
    let (bandwidth, burst) = (bytes(limits.bandwidth_mbps), bytes(limits.burst_mbps));
    let mut arguments = json!({
        "id": device, "group": "disks",
        "bps": bandwidth.unwrap_or(0), "bps_rd": 0, "bps_wr": 0,
        "iops": limits.ops_per_sec.unwrap_or(0), "iops_rd": 0, "iops_wr": 0,
    });
    for (name, burst) in [("bps_max", burst), ("iops_max", limits.burst_ops)] {
        if let Some(burst) = burst {
            arguments[name] = burst.into();
            arguments[format!("{name}_length")] = 1.into();
        }
    }
    arguments
}

/// How device state is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// A descriptor set, as a file (QEMU 9.1 or newer).
    File,
    /// A named descriptor; the older ones take a regular file there.
    Fd,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everybody who waits for an answer learns it by the loss of the sender.
    fn end(&self) {
        *self.lock() = None;
        self.port.send_replace(Port::Lost);
    }

    /// Takes one line; false if the engine talks nonsense.
    fn take(&self, line: &[u8], greeted: &mut Option<oneshot::Sender<()>>) -> bool {
        let Ok(mut line) = serde_json::from_slice::<Value>(line) else { return false };
        if line.get("QMP").is_some() {
            if let Some(greeted) = greeted.take() {
                let _ = greeted.send(());
            }
        } else if line["event"] == "VSERPORT_CHANGE" {
            let open = line["data"]["open"] == true;
            self.port.send_replace(if open { Port::Open } else { Port::Closed });
        } else if line["event"] == "SHUTDOWN" {
            let reason = line["data"]["reason"].as_str().map(str::to_owned);
            *self.shutdown.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        } else if line.get("event").is_none() {
            let Some(id) = line["id"].as_u64() else { return false };
            let answer = match line.get("error") {
                Some(error) => Err(error["desc"].as_str().unwrap_or("no reason given").to_owned()),
                None => Ok(line["return"].take()),
            };
            if let Some(waiter) = self.lock().as_mut().and_then(|waiting| waiting.remove(&id)) {
                let _ = waiter.send(answer);
            }
        }
        true
    }
}

/// Takes the caller out of the table, however the call ends.
struct Forget<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.shared.lock().as_mut() {
            waiting.remove(&self.id);
        }
    }
}

async fn read(stream: Arc<UnixStream>, shared: Arc<Shared>, greeted: oneshot::Sender<()>) {
    let (mut greeted, mut buffer, mut searched) = (Some(greeted), Vec::new(), 0);
    'connection: loop {
        while let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let rest = buffer.split_off(searched + end + 1);
            if !shared.take(&buffer, &mut greeted) {
                break 'connection;
            }
            (buffer, searched) = (rest, 0);
        }
        searched = buffer.len();
        if searched > LINE || stream.readable().await.is_err() {
            break;
        }
        buffer.reserve(4096);
        match stream.try_read_buf(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    shared.end();
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;

    use super::*;

    fn listen() -> (tempfile::TempDir, std::path::PathBuf, UnixListener) {
        let dir = tempfile::tempdir().expect("can be made");
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).expect("can be bound");
        (dir, path, listener)
    }

    async fn greet(listener: &UnixListener) -> BufReader<UnixStream> {
        let (stream, _) = listener.accept().await.expect("somebody connects");
        let mut stream = BufReader::new(stream);
        stream.write_all(b"{\"QMP\": {}}\r\n").await.expect("can be written");
        answer(&mut stream, &json!({})).await;
        stream
    }

    async fn ask(stream: &mut BufReader<UnixStream>) -> Value {
        // The client sends no newline, as QMP allows.
        let bytes = stream.fill_buf().await.expect("something comes").to_vec();
        stream.consume(bytes.len());
        serde_json::from_slice(&bytes).expect("is one object")
    }

    async fn answer(stream: &mut BufReader<UnixStream>, value: &Value) -> Value {
        let asked = ask(stream).await;
        let line = json!({"return": value, "id": asked["id"]}).to_string() + "\r\n";
        stream.write_all(line.as_bytes()).await.expect("can be written");
        asked
    }

    #[tokio::test]
    async fn answers_find_their_callers_between_events() {
        let (_dir, path, listener) = listen();
        let engine = async {
            let mut stream = greet(&listener).await;
            let abandoned = ask(&mut stream).await;
            let asked = ask(&mut stream).await;
            let event = json!({"event": "VSERPORT_CHANGE", "data": {"open": true}});
            let late = json!({"return": {"status": "late"}, "id": abandoned["id"]});
            let good = json!({"return": {"status": "paused"}, "id": asked["id"]});
            stream.write_all(format!("{event}\n{late}\n{good}\n").as_bytes()).await.expect("can be written");
            let refused = ask(&mut stream).await;
            let line = json!({"error": {"desc": "no such thing"}, "id": refused["id"]}).to_string() + "\n";
            stream.write_all(line.as_bytes()).await.expect("can be written");
            drop(stream);
        };
        let host = async {
            let qmp = Qmp::connect(&path, ANSWER).await.expect("it answers");
            assert!(timeout(Duration::from_millis(50), qmp.call("first", json!({}))).await.is_err());
            assert_eq!(qmp.status().await.expect("it answers"), "paused");
            assert!(qmp.port_opened().await);
            let refused = qmp.call("third", json!({})).await;
            assert!(matches!(refused, Err(Failure::Refused(why)) if why == "no such thing"));
            assert!(matches!(qmp.call("fourth", json!({})).await, Err(Failure::Closed)));
        };
        tokio::join!(engine, host);
    }

    #[tokio::test]
    async fn a_descriptor_goes_with_its_command() {
        let (_dir, path, listener) = listen();
        let engine = async {
            let mut stream = greet(&listener).await.into_inner();
            stream.readable().await.expect("something comes");
            let (mut bytes, mut space) = ([0; 1024], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [io::IoSliceMut::new(&mut bytes)];
            let message =
                rustix::net::recvmsg(&stream, &mut slices, &mut ancillary, RecvFlags::empty()).expect("is there");
            let fds: usize = ancillary
                .drain()
                .map(|part| if let RecvAncillaryMessage::ScmRights(fds) = part { fds.count() } else { 0 })
                .sum();
            assert_eq!(fds, 1);
            let asked: Value = serde_json::from_slice(&bytes[..message.bytes]).expect("is one object");
            let line = json!({"return": {"fdset-id": 3}, "id": asked["id"]}).to_string() + "\n";
            stream.write_all(line.as_bytes()).await.expect("can be written");
        };
        let host = async {
            let qmp = Qmp::connect(&path, ANSWER).await.expect("it answers");
            let file = tempfile::tempfile().expect("can be made");
            let answer = qmp.call_with("add-fd", json!({}), file.as_fd()).await.expect("it answers");
            assert_eq!(answer["fdset-id"], 3);
        };
        tokio::join!(engine, host);
    }

    #[test]
    fn limits_become_figures() {
        let limits = IoLimits { bandwidth_mbps: Some(2), burst_mbps: Some(5), ..IoLimits::default() };
        let said = throttle("/machine/x", limits);
        assert_eq!(
            (&said["bps"], &said["bps_max"], &said["bps_max_length"]),
            (&json!(2_000_000), &json!(5_000_000), &json!(1))
        );
        assert_eq!((&said["iops"], said.get("iops_max")), (&json!(0), None));
        let lifted = throttle("/machine/x", IoLimits::default());
        assert_eq!((&lifted["bps"], &lifted["iops"], &lifted["group"]), (&json!(0), &json!(0), &said["group"]));
    }

    #[tokio::test]
    async fn all_disks_are_limited_or_it_is_refused() {
        let (_dir, path, listener) = listen();
        let engine = async {
            let mut stream = greet(&listener).await;
            answer(&mut stream, &json!([{"qdev": "/one"}, {"qdev": "/two"}])).await;
            for device in ["/one", "/two"] {
                assert_eq!(answer(&mut stream, &json!({})).await["arguments"]["id"], device);
            }
            answer(&mut stream, &json!([{"qdev": "/one"}, {"device": "two"}])).await;
        };
        let host = async {
            let qmp = Qmp::connect(&path, ANSWER).await.expect("it answers");
            let limits = IoLimits { ops_per_sec: Some(9), ..IoLimits::default() };
            qmp.limit_io(limits).await.expect("it does it");
            assert!(matches!(qmp.limit_io(limits).await, Err(Failure::Refused(_))), "one would go unlimited");
        };
        tokio::join!(engine, host);
    }

    #[tokio::test]
    async fn an_endless_line_ends_the_connection() {
        let (_dir, path, listener) = listen();
        let engine = async {
            let mut stream = greet(&listener).await;
            let junk = vec![b'x'; 64 << 10];
            while stream.write_all(&junk).await.is_ok() {}
        };
        let host = async {
            let qmp = Qmp::connect(&path, ANSWER).await.expect("it answers");
            assert!(matches!(qmp.call("anything", json!({})).await, Err(Failure::Closed)));
        };
        tokio::join!(engine, host);
    }

    #[tokio::test]
    async fn silence_is_late() {
        let (_dir, path, _listener) = listen();
        let connected = Qmp::connect(&path, Duration::from_millis(50)).await;
        assert!(matches!(connected, Err(Failure::Late(_))));
    }
}

//! E2B's four calls about watches: `WatchDir` streams, the other three are for clients that would rather ask.
//!
//! One that is asked keeps nothing but its descriptor: what happened waits in the kernel's queue until the next call.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode, end_frame, json_frame};
use wakeful_guest_proto::filesystem::{EventType, FilesystemEvent, WatchMessage, WatchRequest, Watcher, WatcherEvents};
use wakeful_guest_proto::process::Empty;

use super::watch::{Change, Watch};
use super::{blocking, entry, explain};
use crate::body::Body;
use crate::context::{Context, Powers};
use crate::process::Accounts;
use crate::process::rpc::{self, Call, Dialect};

/// Watches at one time. The kernel allows a user twice as many, and programs inside want some too.
const MAX_WATCHES: usize = 64;
/// A watch that nobody has asked for so long gives its place to a new one.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Changes in one answer; the rest comes with the next.
const MAX_ANSWER: usize = 2048;

/// All watches of the agent.
pub(crate) struct Watchers {
    places: Arc<Semaphore>,
    asked: Mutex<HashMap<String, Arc<Asked>>>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_WATCHES)), asked: Mutex::default() }
    }
}

/// A watch that is asked for its changes.
struct Asked {
    last: Mutex<Instant>,
    watching: Mutex<Watching>,
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Asked>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, ErrorBody> {
        if self.places.available_permits() == 0 {
            self.lock().retain(|_, asked| asked.last().elapsed() < FORGOTTEN);
        }
        let none_left = |_| ErrorBody::new(Code::ResourceExhausted, format!("there are {MAX_WATCHES} watches already"));
        Arc::clone(&self.places).try_acquire_owned().map_err(none_left)
    }

    fn find(&self, id: &str) -> Result<Arc<Asked>, ErrorBody> {
        let found = self.lock().get(id).cloned();
        found.ok_or_else(|| unknown(id))
    }
}

impl Asked {
    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(id: &str) -> ErrorBody {
    let id: String = id.chars().take(100).collect();
    ErrorBody::new(Code::NotFound, format!("watcher with id {id} not found"))
}

/// A watch and how its changes are to be told.
struct Watching {
    watch: Watch,
    include_entry: bool,
    dialect: Dialect,
    _place: OwnedSemaphorePermit,
}

impl Watching {
    async fn open(context: &Arc<Context>, call: Call, request: WatchRequest) -> Result<Self, ErrorBody> {
        let place = context.watchers.place()?;
        let dialect = call.dialect;
        // A container's own disk passes for 9p, and nobody else writes to it.
        let any = request.allow_network_mounts || context.powers == Powers::Container;
        blocking(context, call, move |owner| {
            let root = owner.resolve(&request.path)?;
            if !any {
                refuse_network(&root)?;
            }
            let watch = Watch::open(&root, request.recursive)?;
            Ok(Self { watch, include_entry: request.include_entry, dialect, _place: place })
        })
        .await
    }

    fn event(&self, kind: EventType, relative: &Path, accounts: &mut Option<Accounts>) -> FilesystemEvent {
        let there = matches!(kind, EventType::Create | EventType::Write | EventType::Chmod);
        let entry = if self.include_entry && there {
            // Read when the first event needs it: most watches want no entries.
            let accounts = accounts.get_or_insert_with(Accounts::load);
            entry::describe(&self.watch.path(relative), self.dialect, accounts).ok()
        } else {
            None
        };
        let name = if relative.as_os_str().is_empty() { ".".into() } else { relative.to_string_lossy().into_owned() };
        FilesystemEvent { name, kind, entry }
    }

    /// The next frames, as bytes, and what to do next.
    fn frames(&mut self) -> (Vec<u8>, Next) {
        let (changes, more) = self.watch.take();
        let (mut bytes, mut accounts) = (Vec::new(), None);
        let mut next = if more { Next::AtOnce } else { Next::Wait };
        for change in changes {
            let message = match change {
                Change::Happened(kind, path) => {
                    WatchMessage::Filesystem(Box::new(self.event(kind, &path, &mut accounts)))
                }
                // E2B's clients have no word for it, and theirs is not told either.
                Change::Overflow if self.dialect == Dialect::E2b => continue,
                Change::Overflow => WatchMessage::Overflow(Empty {}),
                Change::Gone => {
                    let gone = ErrorBody::new(Code::NotFound, "the watched directory is gone");
                    bytes.extend(end_frame(Some(rpc::spoken(self.dialect, gone.because(WakefulCode::PathNotFound)))));
                    next = Next::Over;
                    break;
                }
            };
            bytes.extend(frame(&message));
        }
        (bytes, next)
    }
}

fn frame(message: &WatchMessage) -> Vec<u8> {
    // Our own shapes: writing them to memory fails for no value.
    json_frame(message).unwrap_or_default()
}

/// Changes that others make on a file system elsewhere are not seen from here.
fn refuse_network(root: &Path) -> Result<(), ErrorBody> {
    // NFS, SMB, CIFS, SMB2, 9p, FUSE
    const NETWORK: [i64; 6] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x6573_5546];
    let found = rustix::fs::statfs(root).map_err(|errno| explain("watch", root, &errno.into()))?;
    if !NETWORK.contains(&found.f_type) {
        return Ok(());
    }
    let message = format!("'{}' is on a network file system, which cannot be watched reliably", root.display());
    Err(ErrorBody::new(Code::InvalidArgument, message))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Wait,
    AtOnce,
    Over,
}

struct Streaming {
    /// To the runtime a pipe's end like any other (see `process::input::Ends`).
    ready: pipe::Receiver,
    watching: Option<Watching>,
    first: Option<Vec<u8>>,
    keepalive: Duration,
    next: Next,
}

/// `WatchDir`.
pub(super) async fn stream(context: &Arc<Context>, call: Call, body: Incoming) -> Result<Response<Body>, ErrorBody> {
    let request: WatchRequest = rpc::read_single(body).await?;
    let keepalive = call.keepalive;
    let watching = Watching::open(context, call, request).await?;
    let failed = |error: std::io::Error| ErrorBody::new(Code::Internal, format!("could not watch: {error}"));
    let ready = watching.watch.descriptor().try_clone().and_then(pipe::Receiver::from_owned_fd_unchecked);
    let ready = ready.map_err(failed)?;
    let first = Some(frame(&WatchMessage::Start(Empty {})));
    let streaming = Streaming { ready, watching: Some(watching), first, keepalive, next: Next::Wait };
    let frames = stream::unfold(streaming, |mut streaming| async move {
        let bytes = streaming.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(bytes))), streaming))
    });
    Ok(rpc::streaming(StreamBody::new(frames).map_err(|never| match never {}).boxed_unsync()))
}

impl Streaming {
    async fn next(&mut self) -> Option<Vec<u8>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            match self.next {
                Next::Over => return None,
                Next::AtOnce => {}
                Next::Wait => match tokio::time::timeout(self.keepalive, self.ready.readable()).await {
                    Err(_) => return Some(frame(&WatchMessage::Keepalive(Empty {}))),
                    // Before it is read: what comes in the meantime must set it again.
                    Ok(Ok(())) => {
                        let _ = self.ready.try_io(|| Err::<(), _>(std::io::ErrorKind::WouldBlock.into()));
                    }
                    Ok(Err(error)) => {
                        self.next = Next::Over;
                        return Some(end_frame(Some(ErrorBody::new(Code::Internal, error.to_string()))));
                    }
                },
            }
            let mut watching = self.watching.take()?;
            let taken = tokio::task::spawn_blocking(move || {
                let (bytes, next) = watching.frames();
                (watching, bytes, next)
            });
            // A panic in there is the end of the stream.
            let (watching, bytes, next) = taken.await.ok()?;
            (self.watching, self.next) = (Some(watching), next);
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
    }
}

/// `CreateWatcher`.
pub(super) async fn create(context: &Arc<Context>, call: Call, body: Incoming) -> Result<Watcher, ErrorBody> {
    let request: WatchRequest = rpc::read_unary(body).await?;
    let watching = Watching::open(context, call, request).await?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| ErrorBody::new(Code::Internal, "no random bytes"))?;
    let watcher_id = format!("{:016x}", u64::from_ne_bytes(random));
    let asked = Asked { last: Mutex::new(Instant::now()), watching: Mutex::new(watching) };
    context.watchers.lock().insert(watcher_id.clone(), Arc::new(asked));
    Ok(Watcher { watcher_id })
}

/// `GetWatcherEvents`.
pub(super) async fn events(context: &Arc<Context>, body: Incoming) -> Result<WatcherEvents, ErrorBody> {
    let request: Watcher = rpc::read_unary(body).await?;
    let asked = context.watchers.find(&request.watcher_id)?;
    *asked.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let work = move || {
        let mut watching = asked.watching.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut events, mut accounts) = (Vec::new(), None);
        loop {
            let (changes, more) = watching.watch.take();
            for change in changes {
                if let Change::Happened(kind, path) = change {
                    events.push(watching.event(kind, &path, &mut accounts));
                }
            }
            if !more || events.len() >= MAX_ANSWER {
                return WatcherEvents { events };
            }
        }
    };
    let failed = |_| ErrorBody::new(Code::Internal, "the watch failed");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// `RemoveWatcher`.
pub(super) async fn remove(context: &Arc<Context>, body: Incoming) -> Result<Empty, ErrorBody> {
    let request: Watcher = rpc::read_unary(body).await?;
    let removed = context.watchers.lock().remove(&request.watcher_id);
    removed.map(|_| Empty {}).ok_or_else(|| unknown(&request.watcher_id))
}

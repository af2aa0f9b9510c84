//! Whole trees through the channel, as tar streams: exports, and what a build copies in.
//!
//! ```text
//!   GET   file system ─▶ pack, on a thread ─▶ channel ─▶ body        PUT   body ─▶ channel ─▶ unpack, on a thread
//! ```
//!
//! Neither side may take half for whole: a stream ends well only if whoever fills it has said so.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_util::stream;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::control::Unpacked;
use wakeful_tree::{Fault, Limits, Owner, Pack, Shape, Unpack};

use crate::body::{self, Body};
use crate::files;
use crate::process::rpc::Dialect;
use crate::process::{Accounts, unknown_user};

/// Pieces under way between the thread and the connection.
const PIECES: usize = 4;
/// A host that sends nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// The guest's disk is what bounds an archive of the host; these only end what has no end.
const LIMITS: Limits = Limits { bytes: 1 << 42, entries: 10_000_000 };
/// What may follow the end of an archive: tar programs fill whole records.
const MAX_TAIL: u64 = 1 << 20;

/// `GET`: what is at a path.
pub(crate) async fn pack(query: Option<&str>) -> Response<Body> {
    let ask = match PackAsk::read(query) {
        Ok(ask) => ask,
        Err(error) => return refused(&error),
    };
    let (sender, mut receiver) = channel(PIECES);
    let work = tokio::task::spawn_blocking(move || ask.run(&sender));
    // The first piece decides: what is not there cannot be said after the head.
    let first = match receiver.recv().await {
        Some(first) => first,
        None => {
            let failed = ErrorBody::new(Code::Internal, "the packing failed");
            return refused(&work.await.map_or(failed.clone(), |result| result.err().unwrap_or(failed)));
        }
    };
    let pieces = stream::try_unfold((Some(first), receiver), |(first, mut receiver)| async move {
        let next = match first {
            Some(first) => Some(first),
            None => receiver.recv().await,
        };
        match next {
            Some(Piece::Data(data)) => Ok(Some((Frame::data(data), (None, receiver)))),
            Some(Piece::End) => Ok(None),
            None => Err(io::Error::other("the packing failed")),
        }
    });
    let mut response = Response::new(StreamBody::new(pieces).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    response
}

/// A part of a stream, or its good end.
enum Piece {
    Data(Bytes),
    End,
}

struct PackAsk {
    path: PathBuf,
    one_file_system: bool,
    follow: bool,
}

impl PackAsk {
    fn read(query: Option<&str>) -> Result<Self, ErrorBody> {
        let mut query = files::query(query)?;
        let path = absolute(query.remove("path"))?;
        let one_file_system = flag(query.get("one_file_system"))?;
        Ok(Self { path: path.into(), one_file_system, follow: flag(query.get("follow"))? })
    }

    fn run(self, sender: &Sender<Piece>) -> Result<(), ErrorBody> {
        let options = Pack { one_file_system: self.one_file_system, follow: self.follow, ..Pack::default() };
        let packed = wakeful_tree::pack(Path::new("/"), &self.path, Outlet(sender), &options);
        packed.map_err(|error| explain(&error))?;
        // Nobody who listens any more needs to know.
        let _ = sender.blocking_send(Piece::End);
        Ok(())
    }
}

/// The writing end, for a thread.
struct Outlet<'a>(&'a Sender<Piece>);

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Piece::Data(Bytes::copy_from_slice(bytes));
        self.0.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `PUT`: an archive, unpacked.
pub(crate) async fn unpack(request: Request<Incoming>) -> Response<Body> {
    let ask = match UnpackAsk::read(request.uri().query()) {
        Ok(ask) => ask,
        Err(error) => return refused(&error),
    };
    let (sender, receiver) = channel(PIECES);
    let work = tokio::task::spawn_blocking(move || ask.run(Inlet { receiver, piece: Bytes::new(), ended: false }));
    let sent = pump(request.into_body(), sender).await;
    let done = work.await.unwrap_or_else(|_| Err(ErrorBody::new(Code::Internal, "the unpacking failed")));
    match (done, sent) {
        // The archive was whole, whatever became of the stream behind it.
        (Ok(unpacked), _) => body::json(StatusCode::OK, &unpacked),
        (Err(_), Err(cut)) => refused(&cut),
        (Err(error), Ok(())) => refused(&error),
    }
}

/// Hands the body to the thread, which may have had enough before its end.
async fn pump(mut body: Incoming, sender: Sender<Piece>) -> Result<(), ErrorBody> {
    loop {
        let frame = tokio::select! {
            frame = tokio::time::timeout(SILENCE, body.frame()) => frame,
            () = sender.closed() => return Ok(()),
        };
        let piece = match frame {
            Ok(None) => Piece::End,
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => Piece::Data(data),
                Err(_) => continue,
            },
            Ok(Some(Err(_))) => return Err(ErrorBody::new(Code::Canceled, "the archive was cut off")),
            Err(_) => return Err(ErrorBody::new(Code::DeadlineExceeded, "the archive stalled")),
        };
        let ended = matches!(piece, Piece::End);
        if sender.send(piece).await.is_err() || ended {
            return Ok(());
        }
    }
}

struct UnpackAsk {
    /// As it was said: whether it ends with a slash matters.
    dest: String,
    owner: Option<String>,
    mode: Option<u32>,
    single: bool,
    keep_top: bool,
}

impl UnpackAsk {
    fn read(query: Option<&str>) -> Result<Self, ErrorBody> {
        let mut query = files::query(query)?;
        let invalid = |text: &str| ErrorBody::new(Code::InvalidArgument, format!("invalid mode: '{text}'"));
        let mode =
            query.remove("mode").map(|text| files::parse_mode(&text).ok_or_else(|| invalid(&text))).transpose()?;
        Ok(Self {
            dest: absolute(query.remove("dest"))?,
            owner: query.remove("owner").filter(|owner| !owner.is_empty()),
            mode,
            single: flag(query.get("single"))?,
            keep_top: flag(query.get("keep_top"))?,
        })
    }

    fn run(self, mut inlet: Inlet) -> Result<Unpacked, ErrorBody> {
        let owner = match &self.owner {
            Some(spec) => owner(&Accounts::load(), spec).ok_or_else(|| unknown_user(spec))?,
            None => Owner::Archived,
        };
        let (prefix, shape) = self.place()?;
        let options = Unpack {
            limits: LIMITS,
            owner,
            mode: self.mode,
            prefix,
            shape,
            keep_top: self.keep_top,
            // What is copied over a system must not tear its `/lib` away.
            keep_directory_links: true,
            ..Unpack::default()
        };
        let summary = wakeful_tree::unpack(&mut inlet, Path::new("/"), &options).map_err(|error| explain(&error))?;
        // So that the host can end its stream well before it reads the answer.
        let _ = io::copy(&mut inlet.take(MAX_TAIL), &mut io::sink());
        Ok(Unpacked { entries: summary.entries, bytes: summary.bytes })
    }

    /// Where entries go, and whether one of them gets a name of ours.
    fn place(&self) -> Result<(PathBuf, Shape), ErrorBody> {
        let dest = PathBuf::from(&self.dest);
        if !self.single {
            return Ok((dest, Shape::Tree));
        }
        if self.dest.ends_with('/') || dest.is_dir() {
            return Ok((dest, Shape::Single { name: None }));
        }
        let (Some(parent), Some(name)) = (dest.parent(), dest.file_name()) else {
            return Err(invalid_path("it has no name"));
        };
        Ok((parent.to_owned(), Shape::Single { name: Some(OsString::from(name)) }))
    }
}

/// The owner that a build names. A number alone is the group's number too, as builds have it.
fn owner(accounts: &Accounts, spec: &str) -> Option<Owner> {
    if let Ok(id) = spec.parse::<u32>() {
        return (id != u32::MAX).then_some(Owner::Fixed { uid: id, gid: id });
    }
    accounts.find(spec).map(|user| Owner::Fixed { uid: user.uid, gid: user.gid })
}

/// The reading end, for a thread.
struct Inlet {
    receiver: Receiver<Piece>,
    piece: Bytes,
    ended: bool,
}

impl Read for Inlet {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended {
            match self.receiver.blocking_recv() {
                Some(Piece::Data(data)) => self.piece = data,
                Some(Piece::End) => self.ended = true,
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        let count = self.piece.len().min(into.len());
        self.piece.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}

fn absolute(path: Option<String>) -> Result<String, ErrorBody> {
    let path = path.unwrap_or_default();
    if !path.starts_with('/') || path.contains('\0') {
        return Err(invalid_path("it is not absolute"));
    }
    Ok(path)
}

fn invalid_path(why: &str) -> ErrorBody {
    ErrorBody::new(Code::InvalidArgument, format!("invalid path: {why}")).because(WakefulCode::InvalidPath)
}

fn flag(value: Option<&String>) -> Result<bool, ErrorBody> {
    match value.map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(ErrorBody::new(Code::InvalidArgument, format!("'{other}' is neither true nor false"))),
    }
}

/// What a failure means to the host.
fn explain(error: &wakeful_tree::Error) -> ErrorBody {
    let text = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    match (error.fault(), error) {
        (_, wakeful_tree::Error::Entry { entry, attempted, source }) => {
            files::explain(attempted, Path::new(entry), source)
        }
        (Fault::Missing, _) => ErrorBody::new(Code::NotFound, text).because(WakefulCode::PathNotFound),
        (Fault::Archive, _) => ErrorBody::new(Code::InvalidArgument, text),
        (Fault::Limit, _) => ErrorBody::new(Code::ResourceExhausted, text),
        (Fault::Space, _) => ErrorBody::new(Code::ResourceExhausted, text).because(WakefulCode::GuestDiskFull),
        (Fault::Stream, _) => ErrorBody::new(Code::Canceled, text),
        (Fault::System, _) => ErrorBody::new(Code::Internal, text),
    }
}

fn refused(error: &ErrorBody) -> Response<Body> {
    files::plain(Dialect::Native, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_are_checked() {
        assert!(PackAsk::read(Some("path=%2Fetc&one_file_system=true")).is_ok_and(|ask| ask.one_file_system));
        for bad in [None, Some("path=etc"), Some("path=/a%00b"), Some("path=/&follow=1"), Some("dest=/")] {
            assert!(PackAsk::read(bad).is_err(), "{bad:?}");
        }
        assert!(UnpackAsk::read(Some("dest=/a/&mode=4755")).is_ok_and(|ask| ask.mode == Some(0o4755)));
        for bad in ["dest=a", "dest=/a&mode=9", "dest=/a&mode=77777", "dest=/a&single=yes", "path=/"] {
            assert!(UnpackAsk::read(Some(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn owners_of_builds() {
        let none = Accounts::default();
        assert_eq!(owner(&none, "1000"), Some(Owner::Fixed { uid: 1000, gid: 1000 }));
        assert_eq!(owner(&none, "1000:7"), Some(Owner::Fixed { uid: 1000, gid: 7 }));
        assert_eq!(owner(&none, "root"), Some(Owner::Fixed { uid: 0, gid: 0 }));
        for unknown in ["nobody-here", "4294967295", "1:nogroup"] {
            assert_eq!(owner(&none, unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_stream_that_is_dropped_is_not_ended() {
        let (sender, receiver) = channel(PIECES);
        sender.try_send(Piece::Data(Bytes::from_static(b"half"))).ok();
        drop(sender);
        let mut inlet = Inlet { receiver, piece: Bytes::new(), ended: false };
        let mut all = Vec::new();
        assert!(inlet.read_to_end(&mut all).is_err());
        assert_eq!(all, b"half");
    }
}

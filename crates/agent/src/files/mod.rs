//! E2B's `filesystem.Filesystem` and `/files`, from which the native files are served too.
//!
//! The agent works as root; what it makes belongs to the user of the request (`username` or the `Authorization` header,
//! else the default user).
//!
//! Everything that touches the disk runs on a blocking thread: a slow disk must not stop other requests.

mod date;
mod download;
mod entry;
mod multipart;
mod path;
mod tree;
mod upload;
mod watch;
mod watchers;

use std::io;
use std::path::Path;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use rustix::io::Errno;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::filesystem::{
    EntryResponse, FilesError, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
};
use wakeful_guest_proto::process::Empty;

use self::path::Owner;
pub(crate) use self::path::query;
pub(crate) use self::upload::parse_mode;
pub(crate) use self::watchers::Watchers;
use crate::body::{self, Body};
use crate::context::Context;
use crate::process::rpc::{self, Call, Dialect};

/// A call of the file service, or `/files`.
pub(crate) async fn handle(context: Arc<Context>, request: Request<Incoming>) -> Response<Body> {
    let call = Call::of(request.headers());
    if request.uri().path() == "/files" {
        let (dialect, method) = (call.dialect, request.method().clone());
        let answer = match method {
            Method::GET | Method::HEAD => download::handle(&context, &call, &request).await,
            Method::POST => upload::handle(&context, &call, request).await,
            _ => return body::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"),
        };
        return match answer {
            Ok(answer) => answer,
            // Bytes after the head would break the protocol.
            Err(error) if method == Method::HEAD => body::status(plain(dialect, &error).status()),
            Err(error) => plain(dialect, &error),
        };
    }
    if request.method() != Method::POST {
        return body::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    }
    let (head, body) = request.into_parts();
    let dialect = call.dialect;
    match head.uri.path().strip_prefix("/filesystem.Filesystem/").unwrap_or_default() {
        "Stat" => rpc::unary(dialect, stat(&context, call, body).await),
        "MakeDir" => rpc::unary(dialect, make_dir(&context, call, body).await),
        "Move" => rpc::unary(dialect, move_entry(&context, call, body).await),
        "ListDir" => rpc::unary(dialect, list_dir(&context, call, body).await),
        "Remove" => rpc::unary(dialect, remove(&context, call, body).await),
        "WatchDir" => watchers::stream(&context, call, body).await.unwrap_or_else(|error| rpc::refused(dialect, error)),
        "CreateWatcher" => rpc::unary(dialect, watchers::create(&context, call, body).await),
        "GetWatcherEvents" => rpc::unary(dialect, watchers::events(&context, body).await),
        "RemoveWatcher" => rpc::unary(dialect, watchers::remove(&context, body).await),
        other => rpc::unary::<Empty>(dialect, Err(ErrorBody::new(Code::Unimplemented, format!("no method {other}")))),
    }
}

async fn stat(context: &Arc<Context>, call: Call, body: Incoming) -> Result<EntryResponse, ErrorBody> {
    let request: PathRequest = rpc::read_unary(body).await?;
    let dialect = call.dialect;
    blocking(context, call, move |owner| {
        let path = owner.resolve(&request.path)?;
        Ok(EntryResponse { entry: entry::describe(&path, dialect, &owner.accounts)? })
    })
    .await
}

async fn make_dir(context: &Arc<Context>, call: Call, body: Incoming) -> Result<EntryResponse, ErrorBody> {
    let request: PathRequest = rpc::read_unary(body).await?;
    let dialect = call.dialect;
    blocking(context, call, move |owner| {
        let path = owner.resolve(&request.path)?;
        tree::make_dir(&path, &owner.user)?;
        Ok(EntryResponse { entry: entry::describe(&path, dialect, &owner.accounts)? })
    })
    .await
}

async fn move_entry(context: &Arc<Context>, call: Call, body: Incoming) -> Result<EntryResponse, ErrorBody> {
    let request: MoveRequest = rpc::read_unary(body).await?;
    let dialect = call.dialect;
    blocking(context, call, move |owner| {
        let (from, to) = (owner.resolve(&request.source)?, owner.resolve(&request.destination)?);
        tree::move_entry(&from, &to, &owner.user)?;
        Ok(EntryResponse { entry: entry::describe(&to, dialect, &owner.accounts)? })
    })
    .await
}

async fn list_dir(context: &Arc<Context>, call: Call, body: Incoming) -> Result<ListDirResponse, ErrorBody> {
    let request: ListDirRequest = rpc::read_unary(body).await?;
    let dialect = call.dialect;
    blocking(context, call, move |owner| {
        let path = owner.resolve(&request.path)?;
        Ok(ListDirResponse { entries: tree::list(&path, request.depth.max(1), dialect, &owner.accounts)? })
    })
    .await
}

async fn remove(context: &Arc<Context>, call: Call, body: Incoming) -> Result<Empty, ErrorBody> {
    let request: PathRequest = rpc::read_unary(body).await?;
    blocking(context, call, move |owner| {
        tree::remove(&owner.resolve(&request.path)?)?;
        Ok(Empty {})
    })
    .await
}

/// Runs `work` where it may block, for the user that the call is made by.
async fn blocking<T: Send + 'static>(
    context: &Arc<Context>,
    call: Call,
    work: impl FnOnce(Owner) -> Result<T, ErrorBody> + Send + 'static,
) -> Result<T, ErrorBody> {
    let context = Arc::clone(context);
    let task = tokio::task::spawn_blocking(move || work(Owner::find(&context, call.user.as_deref())?));
    task.await.unwrap_or_else(|_| Err(ErrorBody::new(Code::Internal, "the file operation failed")))
}

/// What a failed system call means to the caller.
pub(crate) fn explain(what: &str, path: &Path, error: &io::Error) -> ErrorBody {
    let path = path.display();
    let with = |code, reason: &str| ErrorBody::new(code, format!("could not {what} '{path}': {reason}"));
    let text = error.to_string();
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => with(Code::NotFound, "no such path").because(WakefulCode::PathNotFound),
        Some(Errno::NOTDIR) => {
            with(Code::InvalidArgument, "a part of it is not a directory").because(WakefulCode::NotADirectory)
        }
        Some(Errno::ISDIR) => with(Code::InvalidArgument, "it is a directory").because(WakefulCode::IsDirectory),
        Some(Errno::NOSPC | Errno::DQUOT) => {
            with(Code::ResourceExhausted, "the disk is full").because(WakefulCode::GuestDiskFull)
        }
        Some(Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL) => {
            with(Code::InvalidArgument, &text).because(WakefulCode::InvalidPath)
        }
        Some(Errno::EXIST | Errno::NOTEMPTY) => with(Code::AlreadyExists, "it exists already"),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => with(Code::PermissionDenied, &text),
        Some(Errno::BUSY | Errno::TXTBSY) => with(Code::FailedPrecondition, &text),
        _ => with(Code::Internal, &text),
    }
}

/// An error in the form of `/files`, which is not a Connect call.
pub(crate) fn plain(dialect: Dialect, error: &ErrorBody) -> Response<Body> {
    let full = error.wakeful_code == Some(WakefulCode::GuestDiskFull);
    let status = if full { StatusCode::INSUFFICIENT_STORAGE.as_u16() } else { error.code.status() };
    let wakeful_code = error.wakeful_code.filter(|_| dialect == Dialect::Native);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    body::json(status, &FilesError { code: status.as_u16(), message: error.message.clone(), wakeful_code })
}

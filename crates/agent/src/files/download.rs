//! `GET /files`: a file as it is on the disk, never in memory as a whole.

use std::fs::{File, Metadata};
use std::io;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LAST_MODIFIED, RANGE,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use rustix::fs::OFlags;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};

use super::date::http_date;
use super::path::query;
use super::{blocking, explain};
use crate::body::{self, Body};
use crate::context::Context;
use crate::process::rpc::Call;

/// Bytes per read: few enough to hold for every download, many enough to make the thread hop cheap.
const PIECE: usize = 128 << 10;

/// `GET` and `HEAD`.
pub(super) async fn handle(
    context: &Arc<Context>,
    call: &Call,
    request: &Request<Incoming>,
) -> Result<Response<Body>, ErrorBody> {
    let mut query = query(request.uri().query())?;
    let path = query.remove("path").unwrap_or_default();
    let mut call = call.clone();
    call.user = query.remove("username").filter(|name| !name.is_empty()).or(call.user);
    let (file, metadata) = blocking(context, call, move |owner| open(&owner.resolve(&path)?)).await?;

    let size = metadata.len();
    let range = request.headers().get(RANGE).and_then(|range| range.to_str().ok()).map(|range| parse(range, size));
    let mut response = Response::new(body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("inline"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    insert(&mut response, LAST_MODIFIED, &http_date(metadata.mtime()));
    let (start, length) = match range {
        None | Some(Range::Ignored) => (0, size),
        Some(Range::Part { start, end }) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            insert(&mut response, CONTENT_RANGE, &format!("bytes {start}-{end}/{size}"));
            (start, end - start + 1)
        }
        Some(Range::Unsatisfiable) => {
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            insert(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
            insert(&mut response, CONTENT_LENGTH, "0");
            return Ok(response);
        }
    };
    // The kernel's own files say that they are empty and are not: those have no length in advance.
    let unsized_file = size == 0;
    if !unsized_file || request.method() == Method::HEAD {
        insert(&mut response, CONTENT_LENGTH, &length.to_string());
    }
    if request.method() == Method::GET {
        *response.body_mut() = if unsized_file { send(file, 0, None) } else { send(file, start, Some(length)) };
    }
    Ok(response)
}

fn insert(response: &mut Response<Body>, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn open(path: &Path) -> Result<(File, Metadata), ErrorBody> {
    // Opening a pipe must not wait for its other end.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let failed = |error: io::Error| explain("read", path, &error);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if kind.is_dir() {
        let message = format!("path '{}' is a directory", path.display());
        return Err(ErrorBody::new(Code::InvalidArgument, message).because(WakefulCode::IsDirectory));
    }
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return Err(irregular(path));
    }
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(irregular(path)) }
}

/// A device, pipe or socket, which is no place for a file.
pub(super) fn irregular(path: &Path) -> ErrorBody {
    let message = format!("path '{}' is not a regular file", path.display());
    ErrorBody::new(Code::InvalidArgument, message).because(WakefulCode::InvalidPath)
}

struct Reading {
    file: Option<File>,
    /// Where to begin, until the first read.
    start: u64,
    /// What is left to send; `None` until the end, wherever that is.
    left: Option<u64>,
}

fn send(file: File, start: u64, length: Option<u64>) -> Body {
    let reading = Reading { file: Some(file), start, left: length };
    let pieces = stream::try_unfold(reading, |mut reading| async move {
        let Some(file) = reading.file.take().filter(|_| reading.left != Some(0)) else { return Ok(None) };
        let wanted = reading.left.map_or(PIECE, |left| PIECE.min(usize::try_from(left).unwrap_or(PIECE)));
        let start = std::mem::take(&mut reading.start);
        let read = tokio::task::spawn_blocking(move || read(file, start, wanted)).await;
        let (file, piece) = read.map_err(|_| io::Error::other("the read failed"))??;
        match &mut reading.left {
            None if piece.is_empty() => return Ok(None),
            None => {}
            // It has become shorter; an answer that is cut off tells the client so.
            Some(_) if piece.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(left) => *left -= piece.len() as u64,
        }
        reading.file = Some(file);
        Ok(Some((Frame::data(piece), reading)))
    });
    StreamBody::new(pieces).boxed_unsync()
}

fn read(mut file: File, start: u64, wanted: usize) -> io::Result<(File, Bytes)> {
    if start > 0 {
        file.seek(SeekFrom::Start(start))?;
    }
    let mut piece = Vec::with_capacity(wanted);
    (&mut file).take(wanted as u64).read_to_end(&mut piece)?;
    Ok((file, piece.into()))
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// Not in a form that we serve; the whole file is an allowed answer.
    Ignored,
    /// Both inclusive.
    Part {
        start: u64,
        end: u64,
    },
    Unsatisfiable,
}

fn parse(text: &str, size: u64) -> Range {
    let Some((from, to)) = text.strip_prefix("bytes=").filter(|r| !r.contains(',')).and_then(|r| r.split_once('-'))
    else {
        return Range::Ignored;
    };
    let (from, to) = (from.trim(), to.trim());
    match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(start), _) if to.is_empty() && start < size => Range::Part { start, end: size - 1 },
        (Ok(start), Ok(end)) if start <= end && start < size => Range::Part { start, end: end.min(size - 1) },
        (Ok(start), Ok(end)) if start > end => Range::Ignored,
        (Ok(_), Ok(_)) => Range::Unsatisfiable,
        (Ok(_), _) if to.is_empty() => Range::Unsatisfiable,
        (Err(_), Ok(0)) if from.is_empty() => Range::Unsatisfiable,
        (Err(_), Ok(_)) if from.is_empty() && size == 0 => Range::Unsatisfiable,
        (Err(_), Ok(last)) if from.is_empty() => Range::Part { start: size.saturating_sub(last), end: size - 1 },
        _ => Range::Ignored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (text, size, meant) in [
            ("bytes=0-9", 100, Range::Part { start: 0, end: 9 }),
            ("bytes=90-", 100, Range::Part { start: 90, end: 99 }),
            ("bytes=-10", 100, Range::Part { start: 90, end: 99 }),
            ("bytes=-1000", 100, Range::Part { start: 0, end: 99 }),
            ("bytes=50-1000", 100, Range::Part { start: 50, end: 99 }),
            ("bytes=100-", 100, Range::Unsatisfiable),
            ("bytes=100-200", 100, Range::Unsatisfiable),
            ("bytes=-0", 100, Range::Unsatisfiable),
            ("bytes=0-", 0, Range::Unsatisfiable),
            ("bytes=-5", 0, Range::Unsatisfiable),
            ("bytes=9-3", 100, Range::Ignored),
            ("bytes=0-1,5-6", 100, Range::Ignored),
            ("lines=1-2", 100, Range::Ignored),
            ("bytes=-", 100, Range::Ignored),
            ("bytes=a-b", 100, Range::Ignored),
        ] {
            assert_eq!(parse(text, size), meant, "{text}");
        }
    }
}

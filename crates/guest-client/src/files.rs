//! Reading and writing files through the agent, streamed both ways.
//!
//! Names and paths that the guest sends are checked and handed on as text; none is ever used on the host.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use wakeful_guest_proto::filesystem::{
    EntryInfo, EntryKind, EntryResponse, ListDirRequest, ListDirResponse, MAX_ENTRIES, MAX_LISTING, MAX_PATH,
    MoveRequest, PathRequest, WrittenFile,
};
use wakeful_guest_proto::process::Empty;

use crate::connect::{empty, request};
use crate::exec::native;
use crate::{Error, Guest};

/// Calls that look at one file or make one directory.
const SHORT: Duration = Duration::from_secs(30);
/// Calls that may walk a large tree on an emulated machine.
const LONG: Duration = Duration::from_secs(300);
const ANSWER_LIMIT: usize = 1 << 20;
/// A transfer that moves nothing for so long has failed, even if the agent is well.
const STALLED: Duration = Duration::from_secs(300);
/// A byte that is not UTF-8 becomes three.
const MAX_TEXT: usize = 3 * MAX_PATH;
const MAX_NAME: usize = 3 * 255;

/// Something in the guest's file system, itself and not what it may point to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The last part of its path.
    pub name: String,
    /// Its path inside the guest.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Name of its owner, or the number.
    pub owner: String,
    /// Name of its group, or the number.
    pub group: String,
    /// Milliseconds since 1970.
    pub modified_ms: i64,
    /// What a symlink says.
    pub target: Option<String>,
}

impl TryFrom<EntryInfo> for Entry {
    type Error = Error;

    fn try_from(info: EntryInfo) -> Result<Self, Error> {
        let broken = |detail: &str| Error::Protocol { detail: detail.to_owned() };
        let native = info.native.ok_or_else(|| broken("an entry without its native part"))?;
        let name_ok = info.name == "/" || !(info.name.contains('/') || matches!(info.name.as_str(), "" | "." | ".."));
        if !name_ok || info.name.contains('\0') || info.name.len() > MAX_NAME {
            return Err(broken("an entry with an impossible name"));
        }
        let texts = [Some(&info.path), Some(&native.owner), Some(&native.group), native.target.as_ref()];
        if texts.into_iter().flatten().any(|text| text.len() > MAX_TEXT || text.contains('\0')) {
            return Err(broken("an entry with an impossible text"));
        }
        Ok(Self {
            name: info.name,
            path: info.path,
            kind: native.kind,
            size: native.size,
            mode: native.mode & 0o7777,
            owner: native.owner,
            group: native.group,
            modified_ms: native.modified_ms,
            target: native.target,
        })
    }
}

/// What is known of a file before its bytes come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHead {
    /// Bytes that follow; unknown for the kernel's own files.
    pub length: Option<u64>,
    /// If a range was asked for and is served: which.
    pub part: Option<FilePart>,
    /// `Last-Modified`, ready for a header.
    pub modified: Option<String>,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePart {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive.
    pub end: u64,
    /// Size of the whole file.
    pub total: u64,
}

/// The bytes of a file as they come. Dropping it ends the transfer.
pub type FileStream = BoxStream<'static, io::Result<Bytes>>;

impl Guest {
    /// One entry, symlinks not followed.
    ///
    /// # Errors
    /// [`Error::Refused`] with `path_not_found`, `invalid_path`, `not_a_directory`.
    pub async fn stat(&self, path: &str) -> Result<Entry, Error> {
        let message = PathRequest { path: path.to_owned() };
        let answer: EntryResponse =
            self.unary("/filesystem.Filesystem/Stat", "stat a file", &message, None, SHORT).await?;
        answer.entry.try_into()
    }

    /// What is in a directory, by name.
    ///
    /// # Errors
    /// [`Error::Refused`] with `path_not_found` or `not_a_directory`, or with code `resource_exhausted` if there are too
    /// many.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, Error> {
        let message = ListDirRequest { path: path.to_owned(), depth: 1 };
        let (route, attempted) = ("/filesystem.Filesystem/ListDir", "list a directory");
        let answer: ListDirResponse =
            self.unary_bounded(route, attempted, &message, None, LONG, MAX_LISTING + ANSWER_LIMIT).await?;
        if answer.entries.len() > MAX_ENTRIES {
            return Err(Error::Protocol { detail: "a listing with too many entries".to_owned() });
        }
        answer.entries.into_iter().map(Entry::try_from).collect()
    }

    /// Makes a directory and its parents, for a user or the default one.
    ///
    /// # Errors
    /// [`Error::Refused`] with code `already_exists` if it is there, with `not_a_directory` if something else is,
    /// `unknown_user`, `guest_disk_full`.
    pub async fn mkdir(&self, path: &str, user: Option<&str>) -> Result<Entry, Error> {
        let message = PathRequest { path: path.to_owned() };
        let answer: EntryResponse =
            self.unary("/filesystem.Filesystem/MakeDir", "make a directory", &message, user, SHORT).await?;
        answer.entry.try_into()
    }

    /// Moves a file or directory and makes the parents of its new place, for a user or the default one.
    ///
    /// # Errors
    /// [`Error::Refused`] with `path_not_found` and the like.
    pub async fn rename(&self, from: &str, to: &str, user: Option<&str>) -> Result<Entry, Error> {
        let message = MoveRequest { source: from.to_owned(), destination: to.to_owned() };
        let answer: EntryResponse =
            self.unary("/filesystem.Filesystem/Move", "move a file", &message, user, LONG).await?;
        answer.entry.try_into()
    }

    /// Removes whatever is there, with all that is in it. Nothing there is fine.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        let message = PathRequest { path: path.to_owned() };
        let _: Empty = self.unary("/filesystem.Filesystem/Remove", "remove a file", &message, None, LONG).await?;
        Ok(())
    }

    /// Size and date of a file without its bytes.
    ///
    /// # Errors
    /// As [`Guest::read`]; only the status tells, since such an answer has no body: [`Error::Refused`] with code `404`
    /// for a missing file, `400` for a directory.
    pub async fn head(&self, path: &str) -> Result<FileHead, Error> {
        let request = native(request(Method::HEAD, &files_route(path), empty())?, OCTETS);
        let response = tokio::time::timeout(SHORT, self.accepted(request)).await;
        let response = response.map_err(|_| Error::Late { attempted: "describe a file", after: SHORT })??;
        file_head(response.status(), response.headers())
    }

    /// A file, or the part of it that a `Range` header asks for.
    ///
    /// # Errors
    /// [`Error::Refused`] with `path_not_found`, `is_directory`, `invalid_path`; with code `416` for a range outside the
    /// file. Once it has begun, the stream itself tells what goes wrong.
    pub async fn read(&self, path: &str, range: Option<&str>) -> Result<(FileHead, FileStream), Error> {
        let mut request = native(request(Method::GET, &files_route(path), empty())?, OCTETS);
        if let Some(range) = range {
            let value = HeaderValue::from_str(range).map_err(|error| Error::Protocol { detail: error.to_string() })?;
            request.headers_mut().insert(header::RANGE, value);
        }
        let response = self.patiently(self.accepted(request)).await??;
        let head = file_head(response.status(), response.headers())?;
        Ok((head, self.pieces(response.into_body(), STALLED)))
    }

    /// A body as it comes, each piece within `stalled`. It ends without an error only if the agent ended it.
    pub(crate) fn pieces(&self, body: Incoming, stalled: Duration) -> FileStream {
        let late = move |_| io::Error::from(io::ErrorKind::TimedOut);
        let pieces = stream::try_unfold((self.clone(), body), move |(guest, mut body)| async move {
            loop {
                let frame = tokio::time::timeout(stalled, guest.patiently(body.frame())).await.map_err(late)?;
                let frame = match frame.map_err(io::Error::other)? {
                    None => return Ok(None),
                    Some(frame) => frame.map_err(io::Error::other)?,
                };
                if let Ok(data) = frame.into_data() {
                    return Ok(Some((data, (guest, body))));
                }
            }
        });
        pieces.boxed()
    }

    /// Writes a file: beside its place, then renamed, so that it is there whole or not at all. Parents are made. It
    /// belongs to `user` or the default one; without a `mode` it keeps that of the file it replaces, else 0644.
    ///
    /// # Errors
    /// [`Error::Refused`] with `is_directory`, `invalid_path`, `unknown_user`, `guest_disk_full`; [`Error::Io`] if the
    /// stream that was to be written fails; [`Error::Unresponsive`]. Nothing remains in the guest.
    ///
    /// # Cancel safety
    /// Dropping the future cuts the upload off; nothing remains in the guest.
    pub async fn write<S>(
        &self,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
        length: Option<u64>,
        content: S,
    ) -> Result<Entry, Error>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let mut route = files_route(path);
        if let Some(user) = user {
            route.push_str(&format!("&username={}", utf8_percent_encode(user, NON_ALPHANUMERIC)));
        }
        if let Some(mode) = mode {
            route.push_str(&format!("&mode={mode:o}"));
        }
        let mut request = native(request(Method::POST, &route, empty())?, OCTETS);
        if let Some(length) = length {
            request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        let answer = self.upload(request, content, STALLED).await?;
        let broken = |detail: String| Error::Protocol { detail };
        let written: Vec<WrittenFile> = serde_json::from_slice(&answer).map_err(|error| broken(error.to_string()))?;
        let entry = written.into_iter().next().and_then(|file| file.entry);
        entry.ok_or_else(|| broken("an upload was answered without its entry".to_owned()))?.try_into()
    }
}

const OCTETS: &str = "application/octet-stream";

fn files_route(path: &str) -> String {
    format!("/files?path={}", utf8_percent_encode(path, NON_ALPHANUMERIC))
}

fn file_head(status: StatusCode, headers: &HeaderMap) -> Result<FileHead, Error> {
    let broken = |detail: &str| Error::Protocol { detail: detail.to_owned() };
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let length = text(header::CONTENT_LENGTH).map(str::parse).transpose();
    let length = length.map_err(|_| broken("a length that is no number"))?;
    let part = match status {
        StatusCode::OK => None,
        StatusCode::PARTIAL_CONTENT => {
            let part = text(header::CONTENT_RANGE).and_then(content_range);
            let part = part.ok_or_else(|| broken("a part of a file that does not say which"))?;
            if length != Some(part.end - part.start + 1) {
                return Err(broken("a part of a file with another length"));
            }
            Some(part)
        }
        other => return Err(broken(&format!("a file with status {other}"))),
    };
    let modified = text(header::LAST_MODIFIED).filter(|date| date.len() <= 40).map(str::to_owned);
    Ok(FileHead { length, part, modified })
}

/// `bytes 0-9/100`
fn content_range(text: &str) -> Option<FilePart> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let part = FilePart { start: start.parse().ok()?, end: end.parse().ok()?, total: total.parse().ok()? };
    (part.start <= part.end && part.end < part.total).then_some(part)
}

#[cfg(test)]
mod tests {
    use wakeful_guest_proto::filesystem::NativeEntry;

    use super::*;

    #[test]
    fn impossible_entries_are_refused() {
        let native = Some(NativeEntry::default());
        let entry = |name: &str| EntryInfo { name: name.to_owned(), native: native.clone(), ..EntryInfo::default() };
        for name in ["a", "..a", "\u{1b}[31m", "/"] {
            assert!(Entry::try_from(entry(name)).is_ok(), "{name:?}");
        }
        for name in ["", ".", "..", "a/b", "../etc/passwd", "a\0", &"x".repeat(1000)] {
            assert!(Entry::try_from(entry(name)).is_err(), "{name:?}");
        }
        assert!(Entry::try_from(EntryInfo { native: None, ..entry("a") }).is_err());
        assert!(Entry::try_from(EntryInfo { path: "x".repeat(MAX_TEXT + 1), ..entry("a") }).is_err());
    }

    #[test]
    fn ranges_must_make_sense() {
        assert_eq!(content_range("bytes 5-9/100"), Some(FilePart { start: 5, end: 9, total: 100 }));
        for bad in ["bytes 9-5/100", "bytes 5-100/100", "bytes */100", "5-9/100", "bytes 5-9/*", "bytes -1-9/10"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}

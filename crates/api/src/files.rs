//! Files in a sandbox. Both ways they go through as streams; the guest is kept awake until the last byte.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use jiff::Timestamp;
use wakeful_api_types::{FileEntry, FileList, FileType, Instant, WrittenFile};
use wakeful_guest_client::proto::filesystem::EntryKind;
use wakeful_guest_client::{Entry, Error as GuestError, FileHead};
use wakeful_lifecycle::{Access, Use};
use wakeful_model::{Code, SandboxId};

use crate::App;
use crate::body::json;
use crate::caller::Caller;
use crate::frames::Form;
use crate::path::{GuestPath, Target};
use crate::problem::Problem;
use crate::query::{self, Query};
use crate::upload::Upload;
use crate::watch;

/// Permission bits of a new file.
const MODE: u32 = 0o644;

async fn access(app: &App, caller: &Caller, id: &SandboxId, why: Use) -> Result<Access, Problem> {
    Ok(app.lifecycle.access(&caller.tenant, id, why).await?)
}

/// A guest's answer, with its refusal put into the contract's words.
pub(crate) async fn explained<T>(access: &Access, result: Result<T, GuestError>) -> Result<T, Problem> {
    match result {
        Ok(value) => Ok(value),
        Err(error) => match refusal(&error) {
            Some(problem) => Err(problem),
            None => Err(access.explain(error).await.into()),
        },
    }
}

/// Refusals of the agent for which it has no code of ours: what the guest's file system said.
fn refusal(error: &GuestError) -> Option<Problem> {
    let GuestError::Refused { code, message, wakeful_code: None, .. } = error else { return None };
    let code = match code.as_str() {
        "already_exists" | "409" => Code::NameTaken,
        "not_found" | "404" => Code::PathNotFound,
        "invalid_argument" | "failed_precondition" | "permission_denied" | "resource_exhausted" | "400" | "403" => {
            Code::InvalidField
        }
        _ => return None,
    };
    Some(Problem::new(code, message.clone()))
}

fn entry(found: Entry) -> FileEntry {
    FileEntry {
        name: found.name,
        size: found.size,
        kind: match found.kind {
            EntryKind::File => FileType::File,
            EntryKind::Directory => FileType::Directory,
            EntryKind::Symlink => FileType::Symlink,
            EntryKind::Other => FileType::Other,
        },
        modified: modified(found.modified_ms),
        mode: format!("{:04o}", found.mode),
        owner: found.owner,
        target: found.target,
    }
}

/// The guest can set any date, also one that no calendar has.
fn modified(milliseconds: i64) -> Option<Instant> {
    Timestamp::from_millisecond(milliseconds).ok().map(Instant)
}

pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    path: GuestPath,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let upload = Upload::new(&headers, body, app.lifecycle.defaults().upload_bytes)?;
    let mut query = Query::of(&uri, &["mode", "user"])?;
    let mode = query.take("mode").map(|text| octal(&text)).transpose()?.unwrap_or(MODE);
    let user = user(&mut query)?;
    if path.is_root() {
        return Err(Problem::new(Code::IsDirectory, "/ is a directory"));
    }
    let access = access(&app, &caller, &id, Use::Transfer).await?;
    let owner = user.unwrap_or_else(|| access.row().user.clone());
    let (fate, length) = (upload.fate(), upload.length());
    let written = access.write(&path.0, Some(&owner), Some(mode), length, upload).await;
    if written.is_err()
        && let Some(problem) = fate.problem()
    {
        return Err(problem);
    }
    let written = explained(&access, written).await?;
    let name = path.name().to_owned();
    let (size, modified) = (written.size, modified(written.modified_ms));
    Ok(json(StatusCode::OK, &WrittenFile { path: path.0, name, kind: FileType::File, size, modified }))
}

pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    path: GuestPath,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    match View::asked(&uri)? {
        View::Watch { recursive } => {
            let access = access(&app, &caller, &id, Use::Stream).await?;
            watch::response(access, path, recursive, Form::asked(&headers)).await
        }
        View::List => {
            let access = access(&app, &caller, &id, Use::List).await?;
            let listed = access.list(&path.0).await;
            let mut entries: Vec<FileEntry> = explained(&access, listed).await?.into_iter().map(entry).collect();
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(json(StatusCode::OK, &FileList { entries }))
        }
        View::Stat => {
            let access = access(&app, &caller, &id, Use::List).await?;
            let found = access.stat(&path.0).await;
            Ok(json(StatusCode::OK, &entry(explained(&access, found).await?)))
        }
        View::Content if method == Method::HEAD => {
            let access = access(&app, &caller, &id, Use::List).await?;
            let head = described(&access, &path).await?;
            Ok(file_response(&head, Body::empty()))
        }
        View::Content => {
            let access = access(&app, &caller, &id, Use::Transfer).await?;
            let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
            download(access, &path, text(header::RANGE), text(header::IF_RANGE)).await
        }
    }
}

/// Which side of a path is asked for.
#[derive(Debug, PartialEq, Eq)]
enum View {
    Content,
    List,
    Stat,
    Watch { recursive: bool },
}

impl View {
    fn asked(uri: &Uri) -> Result<Self, Problem> {
        let mut query = Query::of(uri, &["list", "stat", "watch", "recursive"])?;
        let recursive = query.flag("recursive")?;
        let mut asked = Vec::new();
        for (name, view) in [
            ("list", Self::List),
            ("stat", Self::Stat),
            ("watch", Self::Watch { recursive: recursive.unwrap_or(false) }),
        ] {
            if query.flag(name)?.unwrap_or(false) {
                asked.push((name, view));
            }
        }
        match (asked.pop(), asked.pop()) {
            (Some((name, _)), Some((other, _))) => {
                Err(query::invalid(name, &format!("and {other} exclude each other")))
            }
            (Some((name, view)), None) if name == "watch" || recursive.is_none() => Ok(view),
            (None, _) if recursive.is_none() => Ok(Self::Content),
            _ => Err(query::invalid("recursive", "belongs to watch=true")),
        }
    }
}

async fn described(access: &Access, path: &GuestPath) -> Result<FileHead, Problem> {
    match access.head(&path.0).await {
        // An answer to HEAD has no body that could say more.
        Err(GuestError::Refused { code, .. }) if code == "400" => {
            Err(Problem::new(Code::IsDirectory, format!("{} is not a file", path.0)))
        }
        other => explained(access, other).await,
    }
}

/// A file, or the part that `range` asks for; all of it after all if it is no longer the one that `if_range` dates.
async fn download(
    access: Access,
    path: &GuestPath,
    range: Option<&str>,
    if_range: Option<&str>,
) -> Result<Response, Problem> {
    let (mut head, mut content) = match access.read(&path.0, range).await {
        // Other than by date files are not told apart here, so what is no date of ours matches nothing.
        Ok((head, _)) if head.part.is_some() && if_range.is_some() && head.modified.as_deref() != if_range => {
            explained(&access, access.read(&path.0, None).await).await?
        }
        Err(GuestError::Refused { code, .. }) if code == "416" && if_range.is_some() => {
            let whole = explained(&access, access.read(&path.0, None).await).await?;
            if whole.0.modified.as_deref() == if_range {
                return Err(unsatisfiable(path, whole.0.length.unwrap_or(0)));
            }
            whole
        }
        Err(GuestError::Refused { code, .. }) if code == "416" => {
            return Err(unsatisfiable(path, described(&access, path).await?.length.unwrap_or(0)));
        }
        other => explained(&access, other).await?,
    };
    // The kernel's own files and empty ones come without a length; the latter can be told by their end.
    let mut first = None;
    if head.length.is_none() {
        first = content.next().await;
        if first.is_none() {
            head.length = Some(0);
        }
    }
    // Held by the stream: the sandbox stays awake until the last byte is out or the caller has gone.
    let content = stream::iter(first).chain(content).map(move |piece| {
        let _awake = &access;
        piece
    });
    Ok(file_response(&head, Body::from_stream(content)))
}

fn unsatisfiable(path: &GuestPath, size: u64) -> Problem {
    let problem = Problem::field(Code::InvalidField, "Range", format!("{} has {size} bytes", path.0));
    let value = HeaderValue::try_from(format!("bytes */{size}")).expect("digits are a header value");
    problem.with_status(StatusCode::RANGE_NOT_SATISFIABLE, header::CONTENT_RANGE, value)
}

fn file_response(head: &FileHead, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // A browser that came here must not take a guest's file for a page of ours.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(length) = head.length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(Ok(date)) = head.modified.as_ref().map(HeaderValue::try_from) {
        headers.insert(header::LAST_MODIFIED, date);
    }
    if let Some(part) = head.part {
        let range = format!("bytes {}-{}/{}", part.start, part.end, part.total);
        headers.insert(header::CONTENT_RANGE, HeaderValue::try_from(range).expect("digits are a header value"));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    path: GuestPath,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    if path.is_root() {
        return Err(Problem::new(Code::InvalidPath, "/ cannot be removed").hint("DELETE the sandbox instead"));
    }
    let access = access(&app, &caller, &id, Use::List).await?;
    match explained(&access, access.remove(&path.0).await).await {
        Err(problem) if problem.code() != Code::PathNotFound => Err(problem),
        _ => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

pub(crate) async fn post(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    path: GuestPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut query = Query::of(&uri, &["mkdir", "move_to", "user"])?;
    let user = user(&mut query)?;
    match (query.flag("mkdir")?.unwrap_or(false), query.take("move_to")) {
        (true, None) => {
            let access = access(&app, &caller, &id, Use::List).await?;
            make_directory(&access, &path, user.as_deref()).await
        }
        (false, Some(to)) => {
            let to = GuestPath::from_parameter("move_to", &to)?;
            if path.is_root() || to.is_root() {
                return Err(Problem::new(Code::InvalidPath, "/ cannot be moved or replaced"));
            }
            let access = access(&app, &caller, &id, Use::List).await?;
            let moved = access.rename(&path.0, &to.0, user.as_deref()).await;
            Ok(json(StatusCode::OK, &entry(explained(&access, moved).await?)))
        }
        _ => Err(Problem::field(Code::MissingField, "mkdir", "POST on a file needs either mkdir=true or move_to")),
    }
}

async fn make_directory(access: &Access, path: &GuestPath, user: Option<&str>) -> Result<Response, Problem> {
    let owner = user.unwrap_or(&access.row().user);
    match access.mkdir(&path.0, Some(owner)).await {
        // Asking twice is not an error, if what is there is a directory.
        Err(GuestError::Refused { code, .. }) if code == "already_exists" => {
            let found = explained(access, access.stat(&path.0).await).await?;
            Ok(json(StatusCode::OK, &entry(found)))
        }
        made => Ok(json(StatusCode::CREATED, &entry(explained(access, made).await?))),
    }
}

/// `?user=`: whom new files belong to.
fn user(query: &mut Query) -> Result<Option<String>, Problem> {
    match query.take("user") {
        Some(user) if user.is_empty() || user.len() > 256 || user.contains('\0') => {
            Err(query::invalid("user", "is not a user's name"))
        }
        other => Ok(other),
    }
}

fn octal(text: &str) -> Result<u32, Problem> {
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if digits => Ok(mode),
        _ => Err(query::invalid("mode", "is up to four octal digits such as 0755")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (text, mode) in [("0755", 0o755), ("644", 0o644), ("7", 7), ("4755", 0o4755)] {
            assert_eq!(octal(text).ok(), Some(mode), "{text}");
        }
        for text in ["", "0o755", "888", "+755", "-1", "07777 ", "00755", "rwx"] {
            assert!(octal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn views() {
        let asked = |query: &str| View::asked(&format!("/x{query}").parse().unwrap());
        for (query, view) in [
            ("", View::Content),
            ("?list=false", View::Content),
            ("?list", View::List),
            ("?stat=true&list=false", View::Stat),
            ("?watch=true", View::Watch { recursive: false }),
            ("?recursive=true&watch=true", View::Watch { recursive: true }),
        ] {
            assert_eq!(asked(query).unwrap(), view, "{query}");
        }
        for query in ["?list&stat", "?watch&list", "?recursive=true", "?stat&recursive=true", "?watch=maybe", "?wtach"]
        {
            assert!(asked(query).is_err(), "{query}");
        }
    }

    #[test]
    fn entries() {
        let found = Entry {
            name: "main.py".into(),
            path: "/home/user/main.py".into(),
            kind: EntryKind::File,
            size: 1024,
            mode: 0o644,
            owner: "user".into(),
            group: "user".into(),
            modified_ms: 1_775_399_400_000,
            target: None,
        };
        let body = serde_json::to_string(&entry(found)).unwrap();
        insta::assert_snapshot!(body, @r#"{"name":"main.py","size":1024,"type":"file","modified":"2026-04-05T14:30:00.000Z","mode":"0644","owner":"user","target":null}"#);
        assert_eq!(modified(i64::MAX), None);
    }

    #[test]
    fn answers() {
        let mut head =
            FileHead { length: Some(10), part: None, modified: Some("Sun, 05 Apr 2026 14:30:00 GMT".into()) };
        let response = file_response(&head, Body::empty());
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_LENGTH], "10");
        head.part = Some(wakeful_guest_client::FilePart { start: 0, end: 9, total: 100 });
        head.modified = Some("a\nb".into());
        let response = file_response(&head, Body::empty());
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
        assert_eq!(response.headers()[header::CONTENT_RANGE], "bytes 0-9/100");
        assert!(!response.headers().contains_key(header::LAST_MODIFIED));
    }
}

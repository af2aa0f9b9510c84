//! `POST /files`: written beside its place and renamed into it, so that nobody ever sees half a file.
//!
//! Whatever goes wrong (a full disk, a client that is cut off), the temporary file goes, and with it the directories that
//! were made for it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::filesystem::WrittenFile;

use super::multipart::{Event, Parser};
use super::path::{Owner, query};
use super::{blocking, download, entry, explain, tree};
use crate::body::{self, Body};
use crate::context::Context;
use crate::process::rpc::{Call, Dialect};

/// Written at once, to make the thread hop cheap.
const BATCH: usize = 256 << 10;
/// A client that sends nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(300);
const MAX_LINKS: usize = 40;

/// `POST`, raw or as a form.
pub(super) async fn handle(
    context: &Arc<Context>,
    call: &Call,
    request: Request<Incoming>,
) -> Result<Response<Body>, ErrorBody> {
    let invalid = |message: String| ErrorBody::new(Code::InvalidArgument, message);
    let mut query = query(request.uri().query())?;
    let path = query.remove("path").filter(|path| !path.is_empty());
    let mode = match query.remove("mode") {
        Some(text) => Some(parse_mode(&text).ok_or_else(|| invalid(format!("invalid mode: '{text}'")))?),
        None => None,
    };
    let mut call = call.clone();
    call.user = query.remove("username").filter(|name| !name.is_empty()).or(call.user);
    let header =
        |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let content_type = header(CONTENT_TYPE);
    let is_form = content_type.to_ascii_lowercase().starts_with("multipart/form-data");
    let gzip = match header(CONTENT_ENCODING).to_ascii_lowercase().as_str() {
        "" | "identity" => false,
        "gzip" if !is_form => true,
        other => return Err(invalid(format!("an upload in the encoding '{other}' is not supported"))),
    };
    let target = Target { context: Arc::clone(context), call, mode, gzip };
    let written = if is_form {
        let parser = Parser::new(&content_type).map_err(|error| invalid(error.to_string()))?;
        form(&target, path, parser, request.into_body()).await?
    } else {
        let path = path.ok_or_else(|| invalid("no path given".to_owned()))?;
        vec![raw(&target, path, request.into_body()).await?]
    };
    Ok(body::json(StatusCode::OK, &written))
}

pub(crate) fn parse_mode(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777)
}

async fn raw(target: &Target, path: String, mut body: Incoming) -> Result<WrittenFile, ErrorBody> {
    let mut sink = target.open(path).await?;
    while let Some(piece) = next_piece(&mut body).await? {
        sink.push(piece).await?;
    }
    sink.finish().await
}

async fn form(
    target: &Target,
    path: Option<String>,
    mut parser: Parser,
    mut body: Incoming,
) -> Result<Vec<WrittenFile>, ErrorBody> {
    let invalid = |message: String| ErrorBody::new(Code::InvalidArgument, message);
    let (mut written, mut seen, mut sink) = (Vec::new(), HashSet::new(), None::<Sink>);
    loop {
        match parser.event().map_err(|error| invalid(error.to_string()))? {
            Some(Event::Part { name, filename }) if name.as_deref() == Some("file") => {
                let path = path.clone().or(filename).ok_or_else(|| invalid("a file has no name".to_owned()))?;
                if !seen.insert(path.clone()) {
                    return Err(invalid(format!("two files for '{path}'")));
                }
                sink = Some(target.open(path).await?);
            }
            // Other fields of the form are nothing to us.
            Some(Event::Part { .. }) => sink = None,
            Some(Event::Data(data)) => {
                if let Some(sink) = &mut sink {
                    sink.push(data.into()).await?;
                }
            }
            Some(Event::PartEnd) => {
                if let Some(sink) = sink.take() {
                    written.push(sink.finish().await?);
                }
            }
            Some(Event::End) => return Ok(written),
            None => match next_piece(&mut body).await? {
                Some(piece) => parser.feed(&piece),
                None => return Err(invalid("the form has no end".to_owned())),
            },
        }
    }
}

async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, ErrorBody> {
    loop {
        match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(_))) => return Err(ErrorBody::new(Code::Canceled, "the upload was cut off")),
            Err(_) => return Err(ErrorBody::new(Code::DeadlineExceeded, "the upload stalled")),
        }
    }
}

/// Where and for whom files are written.
struct Target {
    context: Arc<Context>,
    call: Call,
    mode: Option<u32>,
    gzip: bool,
}

impl Target {
    async fn open(&self, path: String) -> Result<Sink, ErrorBody> {
        let (mode, gzip) = (self.mode, self.gzip);
        let begin = move |owner| Writer::begin(&path, mode, gzip, owner);
        let writer = blocking(&self.context, self.call.clone(), begin).await?;
        Ok(Sink { writer: Some(writer), dialect: self.call.dialect, batch: Vec::new(), length: 0 })
    }
}

/// Gathers pieces and writes them on a blocking thread. Dropping it leaves nothing behind.
struct Sink {
    /// Away only while a write is under way; a dropped request leaves it to the thread that has it.
    writer: Option<Writer>,
    dialect: Dialect,
    batch: Vec<Bytes>,
    length: usize,
}

impl Sink {
    async fn push(&mut self, piece: Bytes) -> Result<(), ErrorBody> {
        self.length += piece.len();
        self.batch.push(piece);
        if self.length >= BATCH { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), ErrorBody> {
        let batch = std::mem::take(&mut self.batch);
        self.length = 0;
        let writer = self.with_writer(move |mut writer| {
            let written = batch.iter().try_for_each(|piece| writer.content.write_all(piece));
            written.map_err(|error| writer.explain(&error))?;
            Ok(writer)
        });
        self.writer = Some(writer.await?);
        Ok(())
    }

    async fn finish(mut self) -> Result<WrittenFile, ErrorBody> {
        self.flush().await?;
        let dialect = self.dialect;
        self.with_writer(move |writer| writer.finish(dialect)).await
    }

    async fn with_writer<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(Writer) -> Result<T, ErrorBody> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        let failed = || ErrorBody::new(Code::Internal, "the write failed");
        let writer = self.writer.take().ok_or_else(failed)?;
        tokio::task::spawn_blocking(move || work(writer)).await.unwrap_or_else(|_| Err(failed()))
    }
}

/// A file on its way. Unless finished, dropping it removes everything again.
struct Writer {
    content: Content,
    /// As the request names it.
    asked: PathBuf,
    /// Where it goes: the same, symlinks followed.
    target: PathBuf,
    mode: u32,
    owner: Owner,
    temporary: Temporary,
}

/// How bytes get into the file. What is compressed is unpacked as it comes, so the disk is its only bound.
enum Content {
    Plain(File),
    Gzip(Box<GzDecoder<File>>),
}

impl Content {
    fn write_all(&mut self, piece: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(piece),
            Self::Gzip(decoder) => decoder.write_all(piece),
        }
    }

    fn file(&self) -> &File {
        match self {
            Self::Plain(file) => file,
            Self::Gzip(decoder) => decoder.get_ref(),
        }
    }

    /// Nothing more comes: what is compressed must be whole.
    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Gzip(decoder) => decoder.try_finish(),
        }
    }
}

struct Temporary {
    path: PathBuf,
    made: Vec<PathBuf>,
    kept: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
            tree::remove_made(&self.made);
        }
    }
}

impl Writer {
    fn begin(path: &str, mode: Option<u32>, gzip: bool, owner: Owner) -> Result<Self, ErrorBody> {
        let asked = owner.resolve(path)?;
        let (target, existing) = follow(&asked)?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else { return Err(directory(&asked)) };
        let failed = |error: io::Error| explain("write", &target, &error);
        let made = tree::make_parents(parent, &owner.user).map_err(failed)?;
        let path = parent.join(temporary_name(name).map_err(failed)?);
        let temporary = Temporary { path, made, kept: false };
        let file = File::options().write(true).create_new(true).mode(0o600).open(&temporary.path).map_err(failed)?;
        let mode = mode.or(existing).unwrap_or(0o644);
        let content = if gzip { Content::Gzip(Box::new(GzDecoder::new(file))) } else { Content::Plain(file) };
        Ok(Self { content, asked, target, mode, owner, temporary })
    }

    /// Errors without a number are not the disk's but the decoder's.
    fn explain(&self, error: &io::Error) -> ErrorBody {
        if matches!(self.content, Content::Gzip(_)) && error.raw_os_error().is_none() {
            return ErrorBody::new(Code::InvalidArgument, format!("the upload is not valid gzip: {error}"));
        }
        explain("write", &self.target, error)
    }

    fn finish(mut self, dialect: Dialect) -> Result<WrittenFile, ErrorBody> {
        self.content.finish().map_err(|error| self.explain(&error))?;
        let (user, file) = (&self.owner.user, self.content.file());
        let settle = || {
            // Owner first: changing it clears the set-user-id bit.
            std::os::unix::fs::fchown(file, Some(user.uid), Some(user.gid))?;
            file.set_permissions(Permissions::from_mode(self.mode))?;
            fs::rename(&self.temporary.path, &self.target)
        };
        settle().map_err(|error| explain("write", &self.target, &error))?;
        self.temporary.kept = true;
        let entry = entry::describe(&self.asked, dialect, &self.owner.accounts)?;
        Ok(WrittenFile {
            path: entry.path.clone(),
            name: entry.name.clone(),
            kind: "file".to_owned(),
            entry: (dialect == Dialect::Native).then_some(entry),
        })
    }
}

/// Where a write to `path` ends up, and the mode of the file that is there. Symlinks are followed, also dangling ones, as
/// opening would: replacing the link itself would surprise. Only regular files are replaced.
fn follow(path: &Path) -> Result<(PathBuf, Option<u32>), ErrorBody> {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::symlink_metadata(&target) {
            Ok(found) if found.is_symlink() => {
                let link = fs::read_link(&target).map_err(|error| explain("write", path, &error))?;
                target = target.parent().unwrap_or(Path::new("/")).join(link);
            }
            Ok(found) if found.is_dir() => return Err(directory(path)),
            Ok(found) if found.is_file() => return Ok((target, Some(found.mode() & 0o7777))),
            Ok(_) => return Err(download::irregular(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((target, None)),
            Err(error) => return Err(explain("write", path, &error)),
        }
    }
    Err(explain("write", path, &rustix::io::Errno::LOOP.into()))
}

fn directory(path: &Path) -> ErrorBody {
    let message = format!("path is a directory: {}", path.display());
    ErrorBody::new(Code::InvalidArgument, message).because(WakefulCode::IsDirectory)
}

/// A hidden name beside `name` that nobody else uses.
pub(super) fn temporary_name(name: &OsStr) -> io::Result<OsString> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    // File names end at 255 bytes; enough of the name stays to recognise it by.
    let kept = &name.as_bytes()[..name.len().min(200)];
    let mut temporary = OsString::from(".");
    temporary.push(OsStr::from_bytes(kept));
    temporary.push(format!(".wakeful-{:016x}", u64::from_ne_bytes(random)));
    Ok(temporary)
}

/// Whether a name is one of those.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    let Some((rest, random)) = name.as_bytes().split_last_chunk::<16>() else { return false };
    rest.starts_with(b".") && rest.ends_with(b".wakeful-") && random.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        assert_eq!((parse_mode("0755"), parse_mode("4711"), parse_mode("0")), (Some(0o755), Some(0o4711), Some(0)));
        assert!(["", "8", "-1", "10000", "rw"].iter().all(|text| parse_mode(text).is_none()));
    }

    #[test]
    fn temporary_names_fit_and_differ() {
        let long = OsString::from("x".repeat(255));
        let (first, second) = (temporary_name(&long).unwrap(), temporary_name(&long).unwrap());
        assert!(first.len() <= 255 && first != second && first.as_bytes()[0] == b'.');
        assert!(is_temporary(&first) && is_temporary(&temporary_name(OsStr::new("a")).unwrap()));
        for other in ["", ".a", ".a.wakeful-", "a.wakeful-0123456789abcdef", ".a.wakeful-0123456789abcdex"] {
            assert!(!is_temporary(OsStr::new(other)), "{other}");
        }
    }
}

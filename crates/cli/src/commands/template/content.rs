//! What is sent to the server before a build: a file as it is, or a directory as a tar that is made on the way.
//!
//! ```text
//!   thread: pack, read ──► pieces, a few at a time ──► request's body
//! ```
//!
//! Nothing is held but those few pieces. If one end fails the other is told: a body that breaks off is never taken for a
//! whole one, and packing stops when nobody takes what it makes.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio_util::io::StreamReader;
use wakeful_client::Client;
use wakeful_client::types::Upload;

use super::context::BuildContext;
use crate::failure::Failure;
use crate::{output, progress, table};

/// Bytes that are sent at a time.
const PIECE: usize = 256 << 10;
/// Pieces that may lie between the two ends.
const PIECES: usize = 4;
/// Who packs has this long to say why it failed, when the request has.
const REASON: Duration = Duration::from_secs(1);

/// What is to be sent.
pub(super) enum Content {
    /// A Dockerfile with what it copies from.
    Context(Box<BuildContext>),
    /// A directory, with owners, links and attributes.
    Tree(PathBuf),
    /// A file, whose length is known if it is a plain one.
    File { file: File, length: Option<u64>, name: String },
    /// Standard input.
    Input,
}

impl Content {
    /// A file or a directory; `-` is standard input.
    pub(super) fn at(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self::Input);
        }
        let wrong = |error: io::Error| Failure::file("read", path, &error);
        let metadata = std::fs::metadata(path).map_err(wrong)?;
        if metadata.is_dir() {
            return Ok(Self::Tree(path.to_owned()));
        }
        let file = File::open(path).map_err(wrong)?;
        let length = metadata.is_file().then_some(metadata.len());
        if length == Some(0) {
            return Err(Failure::refused(format!("{} is empty", path.display())));
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self::File { file, length, name })
    }

    fn name(&self) -> String {
        match self {
            Self::Context(context) => context.dir().display().to_string(),
            Self::Tree(dir) => dir.display().to_string(),
            Self::File { name, .. } => name.clone(),
            Self::Input => "standard input".to_owned(),
        }
    }

    /// Sends it, and shows how far that is.
    pub(super) async fn upload(self, client: &Client) -> Result<Upload, Failure> {
        let (name, length) = (self.name(), if let Self::File { length, .. } = &self { *length } else { None });
        let (send, mut receive) = mpsc::channel(PIECES);
        let packing = tokio::task::spawn_blocking(move || {
            let packed = self.write(Pieces(send.clone()));
            if packed.is_err() {
                // Its reason is told by who waits for this; the body must only not end as if it were whole.
                let _ = send.blocking_send(Err(io::Error::other("packing failed")));
            }
            packed
        });
        let bar = progress::transfer(&table::plain_text(&name), length);
        let pieces = stream::poll_fn(move |context| receive.poll_recv(context));
        let sent = client.upload_source(bar.wrap_async_read(StreamReader::new(pieces)), length).await;
        bar.finish_and_clear();
        match sent {
            Ok(upload) => {
                packing.await.map_err(|_| Failure::bug())?.map_err(Stop::failure)?;
                output::say(&format!("sent {} of {}", table::bytes(upload.bytes), table::plain_text(&name)));
                Ok(upload)
            }
            // Whoever breaks a body off makes the request fail too, and knows more about it.
            Err(error) => match tokio::time::timeout(REASON, packing).await {
                Ok(Ok(Err(Stop::Failed(failure)))) => Err(failure),
                _ => Err(error.into()),
            },
        }
    }

    /// Blocks.
    fn write(self, pieces: Pieces) -> Result<(), Stop> {
        let mut writer = BufWriter::with_capacity(PIECE, pieces);
        match self {
            Self::Context(context) => context.pack(&mut writer)?,
            Self::Tree(dir) => {
                // What is mounted in it (`/proc` of a system that was prepared there) is not a part of it.
                let options = wakeful_tree::Pack { one_file_system: true, ..wakeful_tree::Pack::default() };
                let packed = wakeful_tree::pack(&dir, Path::new(""), &mut writer, &options);
                let packed = packed.map_err(|error| match &error {
                    wakeful_tree::Error::Write { source } if is_gone(source) => Stop::Unwanted,
                    _ => Stop::Failed(Failure::refused(format!(
                        "could not pack {}: {}",
                        dir.display(),
                        Failure::chain(&error)
                    ))),
                })?;
                if packed.changed > 0 {
                    output::warning(&format!("{} files changed while they were read", packed.changed));
                }
            }
            Self::File { mut file, name, .. } => copy(&mut file, &mut writer, &name)?,
            Self::Input => copy(&mut io::stdin().lock(), &mut writer, "standard input")?,
        }
        writer.flush().map_err(|_| Stop::Unwanted)
    }
}

fn copy(from: &mut impl io::Read, to: &mut impl Write, name: &str) -> Result<(), Stop> {
    match io::copy(from, to) {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Err(Stop::Unwanted),
        Err(error) => Err(Stop::Failed(Failure::refused(format!("could not read {name}: {error}")))),
    }
}

/// Why packing ended before its end.
pub(super) enum Stop {
    /// Nobody takes it any more.
    Unwanted,
    /// It could not be packed.
    Failed(Failure),
}

impl Stop {
    fn failure(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Unwanted => Failure::refused("the server took only a part of what was sent"),
        }
    }
}

/// Whether a write failed because nobody takes the pieces any more.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// The end that is written to.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        match self.0.blocking_send(Ok(Bytes::copy_from_slice(piece))) {
            Ok(()) => Ok(piece.len()),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written, or that it broke off.
    async fn written(content: Content) -> Result<Vec<u8>, Stop> {
        let (send, mut receive) = mpsc::channel(PIECES);
        let packing = tokio::task::spawn_blocking(move || content.write(Pieces(send)));
        let mut all = Vec::new();
        while let Some(piece) = receive.recv().await {
            all.extend_from_slice(&piece.unwrap());
        }
        packing.await.unwrap().map(|()| all)
    }

    #[tokio::test]
    async fn a_file_goes_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        std::fs::write(&path, &bytes).unwrap();
        let content = Content::at(&path).unwrap_or_else(|failure| panic!("{failure:?}"));
        assert!(matches!(&content, Content::File { length: Some(1_000_003), .. }));
        assert!(written(content).await.is_ok_and(|all| all == bytes));
        std::fs::write(&path, "").unwrap();
        assert!(Content::at(&path).is_err(), "nothing is no image");
        assert!(Content::at(&dir.path().join("none")).is_err());
    }

    #[tokio::test]
    async fn a_directory_goes_as_an_archive() {
        use std::os::unix::fs::MetadataExt as _;
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::write(dir.path().join("bin/a"), vec![7; 700_000]).unwrap();
        std::fs::hard_link(dir.path().join("bin/a"), dir.path().join("bin/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("bin/c")).unwrap();
        let content = Content::at(dir.path()).unwrap_or_else(|failure| panic!("{failure:?}"));
        let Ok(tar) = written(content).await else { panic!("it can be packed") };
        wakeful_tree::unpack(&tar[..], copy.path(), &wakeful_tree::Unpack::default()).unwrap();
        let look = |name: &str| std::fs::symlink_metadata(copy.path().join("bin").join(name)).unwrap();
        assert_eq!((look("a").len(), look("a").ino()), (700_000, look("b").ino()));
        assert!(look("c").is_symlink());
    }

    #[tokio::test]
    async fn nobody_takes_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("large"), vec![7; 5_000_000]).unwrap();
        let content = Content::at(dir.path()).unwrap_or_else(|failure| panic!("{failure:?}"));
        let (send, receive) = mpsc::channel(PIECES);
        drop(receive);
        let packed = tokio::task::spawn_blocking(move || content.write(Pieces(send))).await.unwrap();
        assert!(matches!(packed, Err(Stop::Unwanted)));
    }
}

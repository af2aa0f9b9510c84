//! Trees of files into a build's machine and out of it, as streams of tar.

use std::path::{Path, PathBuf};

use tokio_util::io::{ReaderStream, StreamReader, SyncIoBridge};
use wakeful_guest_client::{PackOptions, UnpackOptions};
use wakeful_guest_proto::filesystem::EntryKind;

use super::workbench::Workbench;
use crate::Error;
use crate::lifecycle::{Inner, error_chain};

/// Between the two ends of a stream within the daemon.
const PIPE: usize = 256 << 10;

pub(super) fn guest_error(error: &wakeful_guest_client::Error) -> Error {
    Error::Internal(error_chain(error))
}

/// Brings a tree out of a machine into a directory.
pub(super) async fn fetch(
    bench: &Workbench,
    path: &str,
    one_file_system: bool,
    into: PathBuf,
    options: wakeful_tree::Unpack,
) -> Result<(), Error> {
    let stream = bench
        .guest()?
        .pack(path, PackOptions { one_file_system, follow: true })
        .await
        .map_err(|error| guest_error(&error))?;
    let reader = SyncIoBridge::new(StreamReader::new(Box::pin(stream)));
    let unpacked = tokio::task::spawn_blocking(move || {
        let mut reader = reader;
        wakeful_tree::unpack(&mut reader, &into, &options).map_err(|error| error_chain(&error))?;
        // The stream must be seen to end well.
        std::io::copy(&mut reader, &mut std::io::sink()).map_err(|error| error_chain(&error))
    });
    match unpacked.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(detail)) => Err(Error::Internal(detail)),
        Err(panic) => Err(Error::Internal(panic.to_string())),
    }
}

/// Brings a file or a whole directory, under its own name, into a directory.
pub(super) async fn fetch_named(inner: &Inner, bench: &Workbench, path: &str, into: &Path) -> Result<(), Error> {
    let limits = inner.tree_limits();
    let name = path.rsplit('/').next().unwrap_or_default();
    let whole = if path.is_empty() { "/" } else { path };
    let guest = bench.guest()?;
    let entry = guest.stat(whole).await.map_err(|error| guest_error(&error))?;
    let directory = match entry.kind {
        EntryKind::Directory => true,
        // What it leads to comes in its place.
        EntryKind::Symlink => guest.list(whole).await.is_ok(),
        EntryKind::File | EntryKind::Other => false,
    };
    let prefix = if directory { PathBuf::from(name) } else { PathBuf::new() };
    let options = wakeful_tree::Unpack { limits, prefix, ..wakeful_tree::Unpack::default() };
    fetch(bench, whole, directory && path.is_empty(), into.to_owned(), options).await
}

/// Why something could not be put into a machine.
pub(super) enum PutError {
    Pack(wakeful_dockerfile::Error),
    Machine(Error),
}

/// Puts what `pack` writes as a tar into a machine.
pub(super) async fn put<F>(machine: &Workbench, dest: &str, options: &UnpackOptions, pack: F) -> Result<(), PutError>
where
    F: FnOnce(&mut dyn std::io::Write) -> Result<(), wakeful_dockerfile::Error> + Send + 'static,
{
    let (reader, writer) = tokio::io::duplex(PIPE);
    let packing = tokio::task::spawn_blocking(move || {
        let mut writer = SyncIoBridge::new(writer);
        pack(&mut writer)?;
        // Its end is seen when it is dropped.
        Ok::<_, wakeful_dockerfile::Error>(())
    });
    let guest = machine.guest().map_err(PutError::Machine)?;
    let stream: ReaderStream<_> = ReaderStream::with_capacity(reader, PIPE / 4);
    let put = guest.unpack(dest, options, stream).await;
    // What was read is the first to know what is wrong with it; a machine that refused is why it could not go on.
    match (packing.await, put) {
        (Ok(Err(error)), Ok(_)) => Err(PutError::Pack(error)),
        (Ok(Err(wakeful_dockerfile::Error::Io { .. })), Err(refused)) => Err(PutError::Machine(guest_error(&refused))),
        (Ok(Err(error)), Err(_)) => Err(PutError::Pack(error)),
        (Ok(Ok(())), Err(refused)) => Err(PutError::Machine(guest_error(&refused))),
        (Ok(Ok(())), Ok(_)) => Ok(()),
        (Err(panic), _) => Err(PutError::Machine(Error::Internal(panic.to_string()))),
    }
}

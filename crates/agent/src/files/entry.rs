//! What is told of a file.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use wakeful_guest_proto::connect_rpc::ErrorBody;
use wakeful_guest_proto::filesystem::{EntryInfo, EntryKind, FileType, NativeEntry};

use super::date::rfc3339;
use super::explain;
use crate::process::Accounts;
use crate::process::rpc::Dialect;

/// What is at `path`. E2B's fields follow a symlink, ours do not.
pub(super) fn describe(path: &Path, dialect: Dialect, accounts: &Accounts) -> Result<EntryInfo, ErrorBody> {
    let own = fs::symlink_metadata(path).map_err(|error| explain("stat", path, &error))?;
    let link = own.is_symlink();
    // A dangling link is told as itself.
    let (target, followed) = if link {
        let target = fs::canonicalize(path).ok();
        let followed = target.as_ref().and_then(|target| fs::metadata(target).ok());
        (target, followed)
    } else {
        (None, None)
    };
    let seen = followed.as_ref().unwrap_or(&own);
    let kind = if seen.is_dir() {
        FileType::Directory
    } else if seen.is_symlink() {
        FileType::Symlink
    } else if seen.is_file() {
        FileType::File
    } else {
        FileType::Unspecified
    };
    Ok(EntryInfo {
        name: path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned()),
        kind,
        path: path.to_string_lossy().into_owned(),
        size: i64::try_from(seen.size()).unwrap_or(i64::MAX),
        mode: seen.mode() & 0o7777,
        permissions: permissions(seen),
        owner: accounts.user_name(seen.uid()),
        group: accounts.group_name(seen.gid()),
        modified_time: Some(rfc3339(seen.mtime(), seen.mtime_nsec())),
        symlink_target: target.map(|target| target.to_string_lossy().into_owned()),
        native: (dialect == Dialect::Native).then(|| NativeEntry {
            kind: native_kind(&own),
            size: own.size(),
            mode: own.mode() & 0o7777,
            owner: accounts.user_name(own.uid()),
            group: accounts.group_name(own.gid()),
            modified_ms: own.mtime().saturating_mul(1000).saturating_add(own.mtime_nsec() / 1_000_000),
            target: link.then(|| fs::read_link(path).ok()).flatten().map(|t| t.to_string_lossy().into_owned()),
        }),
    })
}

fn native_kind(metadata: &Metadata) -> EntryKind {
    if metadata.is_file() {
        EntryKind::File
    } else if metadata.is_dir() {
        EntryKind::Directory
    } else if metadata.is_symlink() {
        EntryKind::Symlink
    } else {
        EntryKind::Other
    }
}

/// `drwxr-xr-x`, as `ls` writes it.
fn permissions(metadata: &Metadata) -> String {
    let (mode, kind) = (metadata.mode(), metadata.file_type());
    let mut text = String::with_capacity(10);
    text.push(match () {
        () if kind.is_dir() => 'd',
        () if kind.is_symlink() => 'l',
        () if kind.is_char_device() => 'c',
        () if kind.is_block_device() => 'b',
        () if kind.is_fifo() => 'p',
        () if kind.is_socket() => 's',
        () => '-',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

//! Whole trees of the guest as tar streams, both ways.
//!
//! The stream of a guest is a stranger's: unpack it with `wakeful-tree` and limits, never with anything that trusts it.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use wakeful_guest_proto::control::{TREE, Unpacked};

use crate::connect::{empty, request};
use crate::exec::native;
use crate::{Error, FileStream, Guest};

/// A transfer that moves nothing for so long has failed, even if the agent is well.
const STALLED: Duration = Duration::from_secs(60);
const TAR: &str = "application/x-tar";

/// How a tree is packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackOptions {
    /// Do not go into other mounts; their mount points come as empty directories.
    pub one_file_system: bool,
    /// If the path itself is a symlink, what it names instead of the symlink.
    pub follow: bool,
}

/// How a tree is unpacked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnpackOptions {
    /// Everything belongs to this user, by name or number with or without `:group`, instead of whom the archive names.
    pub owner: Option<String>,
    /// Files and directories get this mode instead of their own.
    pub mode: Option<u32>,
    /// The archive holds exactly one entry beside directories; it is put at the destination itself, or, if that is a
    /// directory or ends with `/`, into it.
    pub single: bool,
    /// The destination keeps its mode, owner and time, whatever the archive's `./` says.
    pub keep_top: bool,
}

impl Guest {
    /// What is at an absolute path, packed: a directory as `./` and its content, anything else as one entry. The stream
    /// fails if the packing does; only one that ends without an error is whole.
    ///
    /// # Errors
    /// [`Error::Refused`] with `path_not_found`, `invalid_path`; with code `404` and no `wakeful_code` by an agent that is
    /// too old for this. [`Error::Late`] if nothing comes at all.
    ///
    /// # Cancel safety
    /// Dropping the future or the stream ends the packing.
    pub async fn pack(&self, path: &str, options: PackOptions) -> Result<FileStream, Error> {
        let mut route = format!("{TREE}?path={}", utf8_percent_encode(path, NON_ALPHANUMERIC));
        for (name, wanted) in [("one_file_system", options.one_file_system), ("follow", options.follow)] {
            if wanted {
                route.push_str(&format!("&{name}=true"));
            }
        }
        let request = native(request(Method::GET, &route, empty())?, TAR);
        let answer = tokio::time::timeout(STALLED, self.patiently(self.accepted(request))).await;
        let response = answer.map_err(|_| Error::Late { attempted: "begin to pack", after: STALLED })???;
        Ok(self.pieces(response.into_body(), STALLED))
    }

    /// Unpacks a tar stream below an absolute path, which is made if it is missing; see [`UnpackOptions::single`] for one
    /// file. Entries replace what is there; a directory over a symlink to a directory goes into that one.
    ///
    /// # Errors
    /// [`Error::Refused`] with `guest_disk_full`, `unknown_user`, `invalid_path`, `not_a_directory`, with code `400` for an
    /// archive that is not whole or not acceptable; [`Error::Io`] if the content fails; [`Error::Late`] if nothing moves for
    /// a minute. What was unpacked so far stays in the guest.
    ///
    /// # Cancel safety
    /// Dropping the future cuts the stream off; what was unpacked so far stays.
    pub async fn unpack<S>(&self, dest: &str, options: &UnpackOptions, content: S) -> Result<Unpacked, Error>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let mut route = format!("{TREE}?dest={}", utf8_percent_encode(dest, NON_ALPHANUMERIC));
        if let Some(owner) = &options.owner {
            route.push_str(&format!("&owner={}", utf8_percent_encode(owner, NON_ALPHANUMERIC)));
        }
        if let Some(mode) = options.mode {
            route.push_str(&format!("&mode={mode:o}"));
        }
        for (name, wanted) in [("single", options.single), ("keep_top", options.keep_top)] {
            if wanted {
                route.push_str(&format!("&{name}=true"));
            }
        }
        let request = native(request(Method::PUT, &route, empty())?, TAR);
        let answer = self.upload(request, content, STALLED).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::Protocol { detail: error.to_string() })
    }
}

//! The readers of what engines and disks say, open to any bytes. For `crates/fuzz` only.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use wakeful_driver::{Image, ImageFile};

use crate::control::{Incoming, Qmp};
use crate::diff::Diff;
use crate::place::Record;
use crate::snapshot::Detail;

/// Far more than a reader needs for a few kilobytes.
const PROMPT: Duration = Duration::from_secs(5);
/// Pages of the base that a diff is said to be of.
const BASE_PAGES: u64 = 64;
const PAGE: u64 = wakeful_sys::pages::PAGE;

/// An engine that says `bytes` on its monitor, whatever it is asked, and hangs up.
///
/// # Panics
/// If a call neither fails nor ends.
pub fn monitor(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let talk = async {
        let (ours, mut engines) = UnixStream::pair().expect("a pair of sockets");
        let engine = async {
            // A host that has heard enough hangs up first.
            let _ = engines.write_all(bytes).await;
            let _ = engines.shutdown().await;
        };
        let host = async {
            let Ok(qmp) = Qmp::over(ours, PROMPT).await else { return };
            let state = memory_file(b"state");
            let _ = qmp.status().await;
            let _ = qmp.agent_disconnected().await;
            let _ = qmp.call("stop", json!({})).await;
            let _ = qmp.save_devices(std::os::fd::AsFd::as_fd(&state)).await;
            let _ = qmp.load_devices(std::os::fd::AsFd::as_fd(&state), Incoming::Fd).await;
            let _ = qmp.port_opened().await;
        };
        tokio::join!(engine, host);
    };
    runtime.block_on(async { tokio::time::timeout(6 * PROMPT, talk).await }).expect("the monitor's reader ends");
}

/// A checkpoint's pages. What was opened is applied to a base, which must keep its size.
///
/// # Panics
/// If a diff that passed the checks writes outside its base.
pub fn pages(bytes: &[u8]) {
    let file = memory_file(bytes);
    // The digest is what an attacker cannot give; everything behind it must hold without it.
    let digest = crate::diff::digest_of(&file).unwrap_or_default();
    let account = ImageFile { name: "mem.diff".to_owned(), bytes: bytes.len() as u64, digest, bulk_digest: None };
    let Ok(diff) = Diff::open(file, &account, BASE_PAGES * PAGE) else { return };
    assert!(diff.len() as u64 <= BASE_PAGES, "more pages than the base has");
    let mut base = memory_file(&vec![7; usize::try_from(BASE_PAGES * PAGE).expect("it is small")]);
    let _ = diff.apply(&base, &|| true);
    let mut after = Vec::new();
    base.rewind().expect("a file in memory");
    base.read_to_end(&mut after).expect("a file in memory");
    assert_eq!(after.len() as u64, BASE_PAGES * PAGE, "the base has grown");
}

/// The accounts that are kept of images and engines.
pub fn manifest(bytes: &[u8]) {
    if let Ok(image) = serde_json::from_slice::<Image>(bytes) {
        let _ = Detail::of(&image);
        let _ = serde_json::to_vec(&image).expect("what was read can be written");
    }
    let _ = serde_json::from_slice::<Record>(bytes);
}

fn memory_file(bytes: &[u8]) -> File {
    let mut file = File::from(rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(bytes).expect("a file in memory");
    file
}

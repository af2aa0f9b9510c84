//! The sentry's control socket: one object each way, files beside it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;

/// A checkpoint takes as long as its pages take to be written.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    err: String,
}

/// Has a method of the sentry's container manager called.
pub(crate) fn call(socket: &Path, method: &'static str, arg: &Value, files: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let ask = || -> io::Result<Answer> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let text = format!("{}\n", json!({"method": format!("containerManager.{method}"), "arg": arg}));
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent = sendmsg(stream.as_fd(), &[IoSlice::new(text.as_bytes())], &mut beside, SendFlags::NOSIGNAL)?;
        if sent != text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        // Nothing follows the object, not even a newline.
        Ok(Answer::deserialize(&mut serde_json::Deserializer::from_reader(&stream))?)
    };
    match ask() {
        Ok(Answer { success: true, .. }) => Ok(()),
        Ok(Answer { err, .. }) => Err(Error::engine("obey", format!("{method}: {err}"))),
        Err(error) => Err(Error::engine("be told", format!("{method}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Asks for a pause; what is answered, and what was heard.
    fn exchange(answer: &'static str) -> (Result<(), Error>, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).expect("a socket");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut heard = [0; 256];
            let length = stream.read(&mut heard).expect("a call");
            stream.write_all(answer.as_bytes()).expect("a reader");
            // It stays open, as the sentry's does.
            (stream, String::from_utf8_lossy(&heard[..length]).into_owned())
        });
        let done = call(&path, "Pause", &Value::Null, &[]);
        (done, server.join().expect("no panic").1)
    }

    #[test]
    fn one_object_each_way() {
        let (done, heard) = exchange(r#"{"success":true,"err":"","result":null}"#);
        assert!(done.is_ok(), "{done:?}");
        let heard: Value = serde_json::from_str(heard.strip_suffix('\n').expect("a line")).expect("an object");
        assert_eq!(heard, json!({"method": "containerManager.Pause", "arg": null}));
        let (done, _) = exchange(r#"{"success":false,"err":"it is gone"}"#);
        assert_eq!(done.expect_err("a refusal").to_string(), "the bare engine could not obey: Pause: it is gone");
        assert!(exchange("nonsense").0.is_err());
    }
}

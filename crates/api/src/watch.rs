//! `GET …/files/{path}?watch=true`: what happens to files, as it happens.
//!
//! The answer begins when the watch does: whoever has the head misses nothing from there on. Nothing is buffered here; a
//! client that does not read stops the stream as far as the guest's kernel, whose queue is bounded, and an overflow is
//! told. A watch keeps a sandbox awake by its events, not by being open.

use axum::response::Response;
use futures_util::stream;
use wakeful_api_types::{FileEvent, Frame};
use wakeful_guest_client::proto::filesystem::EventType;
use wakeful_guest_client::{Error as GuestError, WatchEvent, WatchStream};
use wakeful_lifecycle::{Access, Error};
use wakeful_model::Code;

use crate::frames::{Form, SILENCE, streaming};
use crate::path::GuestPath;
use crate::problem::Problem;

struct Watching {
    access: Access,
    events: WatchStream,
    path: String,
    over: bool,
}

/// Begins a watch.
///
/// # Errors
/// If there is no such directory, or it is too large to be watched whole.
pub(crate) async fn response(
    access: Access,
    path: GuestPath,
    recursive: bool,
    form: Form,
) -> Result<Response, Problem> {
    let events = match access.watch(&path.0, recursive).await {
        // A sandbox that sleeps since before there were watches.
        Err(GuestError::Refused { code, .. }) if code == "unimplemented" || code == "501" => {
            let detail = "the agent in this sandbox is too old to watch files";
            return Err(
                Problem::new(Code::UnsupportedByRuntime, detail).hint("a cold boot or a new sandbox has a newer one")
            );
        }
        other => crate::files::explained(&access, other).await?,
    };
    let watching = Watching { access, events, path: path.0, over: false };
    let frames = stream::unfold(watching, move |mut watching| async move {
        let event = watching.next().await?;
        Some((form.write(&event, None), watching))
    });
    Ok(streaming(form, frames))
}

impl Watching {
    /// The next thing to tell; after some silence a keepalive; `None` when all is told.
    async fn next(&mut self) -> Option<FileEvent> {
        while !self.over {
            let event = tokio::select! {
                biased;
                event = tokio::time::timeout(SILENCE, self.events.next()) => event,
                () = self.access.draining() => {
                    self.over = true;
                    return Some(failure(Error::ShuttingDown.into()));
                }
            };
            return Some(match event {
                Err(_) => FileEvent::Keepalive,
                // The agent's own is for those who talk to it directly.
                Ok(Ok(WatchEvent::Keepalive)) => continue,
                Ok(Ok(WatchEvent::Overflow)) => {
                    self.access.touch();
                    FileEvent::Overflow
                }
                Ok(Ok(WatchEvent::Changed { kind, name })) => {
                    self.access.touch();
                    // A kind that we do not know is no reason to end.
                    let Some(event) = change(kind, joined(&self.path, &name)) else { continue };
                    event
                }
                Ok(Err(error)) => {
                    self.over = true;
                    match crate::files::explained(&self.access, Err::<(), _>(error)).await {
                        Ok(()) => return None,
                        Err(problem) if problem.code() == Code::SuspendedDuringExec => FileEvent::Suspended,
                        Err(problem) => failure(problem),
                    }
                }
            });
        }
        None
    }
}

fn change(kind: EventType, path: String) -> Option<FileEvent> {
    Some(match kind {
        EventType::Create => FileEvent::Create { path },
        EventType::Write => FileEvent::Write { path },
        EventType::Remove => FileEvent::Remove { path },
        EventType::Rename => FileEvent::Rename { path },
        EventType::Chmod => FileEvent::Chmod { path },
        EventType::Unspecified => return None,
    })
}

fn joined(directory: &str, name: &str) -> String {
    match (directory, name) {
        (directory, "") => directory.to_owned(),
        ("/", name) => format!("/{name}"),
        (directory, name) => format!("{directory}/{name}"),
    }
}

fn failure(problem: Problem) -> FileEvent {
    match problem.into_frame() {
        Frame::Error { code, detail, .. } => FileEvent::Error { code, detail },
        _ => FileEvent::Suspended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events() {
        let told = |kind, name: &str| {
            let event = change(kind, joined("/home/user", name)).unwrap();
            String::from_utf8(Form::Lines.write(&event, None).to_vec()).unwrap()
        };
        insta::assert_snapshot!(told(EventType::Create, "a/b"), @r#"{"type":"create","path":"/home/user/a/b"}"#);
        insta::assert_snapshot!(told(EventType::Chmod, ""), @r#"{"type":"chmod","path":"/home/user"}"#);
        insta::assert_snapshot!(serde_json::to_string(&FileEvent::Suspended).unwrap(), @r#"{"type":"suspended"}"#);
        insta::assert_snapshot!(serde_json::to_string(&FileEvent::Overflow).unwrap(), @r#"{"type":"overflow"}"#);
        insta::assert_snapshot!(serde_json::to_string(&failure(Error::ShuttingDown.into())).unwrap(), @r#"{"type":"error","code":"shutting_down","detail":"the daemon is shutting down"}"#);
        assert_eq!(joined("/", "etc"), "/etc");
        assert_eq!(change(EventType::Unspecified, String::new()), None);
    }
}

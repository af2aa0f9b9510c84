//! A terminal over WebSocket: binary messages are its bytes, text messages are about it.
//!
//! ```text
//!   client ── binary: keys ───────────▶ StreamInput ─▶ pty        every binary message to the client is one number of the
//!          ◀─ binary: screen ────────── Connect ◀──── journal     journal: a client that counts them from `start` on
//!          ── text: resize, signal ──▶                            knows where to come back to after it was cut off
//!          ◀─ text: start, gap, exit │ suspended │ error ─ close
//! ```
//!
//! A client that goes away leaves the process running; `?pid=&from=` comes back to it.

use std::io;

use axum::extract::State;
use axum::extract::ws::close_code;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::Uri;
use serde_json::Value;
use tokio::sync::mpsc;
use wakeful_api_types::{Frame, TerminalRequest};
use wakeful_guest_client::proto::process::{ProcessConfig, Pty, PtySize, StartRequest};
use wakeful_lifecycle::{Access, Use};
use wakeful_model::Code;

use crate::App;
use crate::caller::Caller;
use crate::follow::{Follow, Told};
use crate::frames;
use crate::path::Target;
use crate::problem::Problem;
use crate::processes::{cells_of, explained, name_terminal, signal_of};
use crate::query::Query;
use crate::socket::{self, Gone, Incoming, Outgoing, PING, Said, Upgrade};

/// Messages on their way to a process that does not read.
const QUEUE: usize = 4;

/// What the query asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    size: PtySize,
    /// Whether it was named: a terminal that exists keeps its own otherwise.
    sized: bool,
    command: Option<String>,
    attach: Option<(u32, u64)>,
}

fn read(uri: &Uri) -> Result<Asked, Problem> {
    let mut query = Query::of(uri, &["cols", "rows", "command", "pid", "from"])?;
    let mut side = |name: &str| {
        let cells = query.take(name).map(|text| frames::number::<u32>(name, &text)).transpose()?;
        cells.map(|cells| cells_of(name, cells)).transpose()
    };
    let (cols, rows) = (side("cols")?, side("rows")?);
    let command = query.take("command").filter(|command| !command.trim().is_empty());
    if command.as_ref().is_some_and(|command| command.contains('\0')) {
        return Err(Problem::field(Code::InvalidField, "command", "command contains NUL"));
    }
    let pid = query.take("pid").map(|text| frames::number("pid", &text)).transpose()?;
    let from = query.take("from").map(|text| frames::number("from", &text)).transpose()?;
    let attach = match (pid, from, &command) {
        (Some(_), _, Some(_)) => {
            return Err(Problem::field(Code::InvalidCombination, "command", "pid and command exclude each other"));
        }
        (None, Some(_), _) => return Err(Problem::field(Code::InvalidCombination, "from", "from needs a pid")),
        (Some(pid), from, None) => Some((pid, from.unwrap_or(0))),
        (None, None, _) => None,
    };
    let size = PtySize { cols: cols.unwrap_or(80), rows: rows.unwrap_or(24) };
    Ok(Asked { size, sized: cols.is_some() && rows.is_some(), command, attach })
}

pub(crate) async fn open(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    asked: Upgrade,
) -> Result<Response, Problem> {
    // What can be refused is refused before the handshake, as a problem.
    let upgrade = socket::upgrade(asked)?;
    let asked = read(&uri)?;
    let access = app.lifecycle.access(&caller.tenant, &id, Use::Stream).await?;
    let (pid, from) = match asked.attach {
        Some((pid, from)) => {
            let found = explained(&access, access.process(pid).await).await?;
            let details = found.details.unwrap_or_default();
            if !details.pty {
                return Err(Problem::field(Code::InvalidField, "pid", format!("process {pid} has no terminal")));
            }
            if asked.sized && details.end.is_none() {
                explained(&access, access.resize(pid, asked.size).await).await?;
            }
            (pid, from)
        }
        None => (start(&access, asked).await?, 0),
    };
    let follow = Follow::open(access.stream(), pid, from, true, PING).await?;
    Ok(socket::accept(&app, upgrade, move |outgoing, incoming| serve(outgoing, incoming, access, follow, pid)))
}

/// A command by the shell, or the user's own shell.
async fn start(access: &Access, asked: Asked) -> Result<u32, Problem> {
    let row = access.row();
    let login_shell = asked.command.is_none();
    let args = match asked.command {
        Some(line) => vec!["-c".to_owned(), line],
        None => vec!["-l".to_owned()],
    };
    let mut process =
        ProcessConfig { cmd: "/bin/sh".into(), args, cwd: Some(row.workdir.clone()), ..Default::default() };
    name_terminal(&mut process.envs, row);
    let (user, pty) = (Some(row.user.clone()), Some(Pty { size: asked.size }));
    let start = StartRequest { process, pty, user, login_shell, ..StartRequest::default() };
    Ok(explained(access, access.launch(start, None).await).await?.pid())
}

/// Why a terminal ended.
enum End {
    /// All was told.
    Told,
    Gone,
    Nonsense(Problem),
}

async fn serve(mut outgoing: Outgoing, mut incoming: Incoming, access: Access, mut follow: Follow, pid: u32) {
    let (keys, taken) = mpsc::channel::<Bytes>(QUEUE);
    let input = stream::unfold(taken, |mut taken| async move { Some((io::Result::Ok(taken.recv().await?), taken)) });
    let end = tokio::select! {
        end = show(&mut outgoing, &mut follow) => end,
        end = listen(&mut incoming, &access, pid, &keys) => end,
        // A process that takes no more input may still have something to show.
        end = async { let _ = access.stream_input(pid, true, input).await; std::future::pending().await } => end,
    };
    match end {
        End::Gone => {}
        End::Told => outgoing.close(incoming, close_code::NORMAL, "").await,
        End::Nonsense(problem) => {
            if outgoing.text(&problem.into_frame()).await.is_ok() {
                outgoing.close(incoming, close_code::POLICY, "").await;
            }
        }
    }
}

async fn show(outgoing: &mut Outgoing, follow: &mut Follow) -> End {
    let shown = async {
        outgoing.text(&follow.start()).await?;
        while let Some(told) = follow.next().await {
            match told {
                Told::Output { data, .. } => outgoing.bytes(data).await?,
                Told::Frame(Frame::Keepalive) => outgoing.ping().await?,
                Told::Frame(frame) => outgoing.text(&frame).await?,
            }
        }
        Ok::<_, Gone>(())
    };
    if shown.await.is_ok() { End::Told } else { End::Gone }
}

async fn listen(incoming: &mut Incoming, access: &Access, pid: u32, keys: &mpsc::Sender<Bytes>) -> End {
    loop {
        let said = match incoming.next().await {
            Ok(said) => said,
            Err(Gone) => return End::Gone,
        };
        access.touch();
        match said {
            Said::Bytes(bytes) if bytes.is_empty() => {}
            Said::Bytes(bytes) => {
                // A process that has ended takes no more; its end is on its way.
                let _ = keys.send(bytes).await;
            }
            Said::Text(text) => match request(&text) {
                // Neither matters to a process that is about to be told of as ended.
                Ok(Request::Resize(size)) => drop(access.resize(pid, size).await),
                Ok(Request::Signal(signal)) => drop(access.signal(pid, signal).await),
                Err(problem) => return End::Nonsense(problem),
            },
        }
    }
}

enum Request {
    Resize(PtySize),
    Signal(wakeful_guest_client::proto::process::Signal),
}

fn request(text: &str) -> Result<Request, Problem> {
    let nonsense = |error: serde_json::Error| {
        Problem::new(Code::InvalidJson, format!("a text message is resize or signal: {error}"))
    };
    Ok(match serde_json::from_str(text).map_err(nonsense)? {
        TerminalRequest::Resize { cols, rows } => {
            let (cols, rows) = (cells_of("cols", cols.into())?, cells_of("rows", rows.into())?);
            Request::Resize(PtySize { cols, rows })
        }
        TerminalRequest::Signal { signal } => Request::Signal(signal_of(&Value::String(signal))?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Asked, Code> {
        read(&format!("/v1/sandboxes/x/pty?{query}").parse().unwrap()).map_err(|problem| problem.code())
    }

    #[test]
    fn queries() {
        let size = PtySize { cols: 80, rows: 24 };
        assert_eq!(asked(""), Ok(Asked { size, sized: false, command: None, attach: None }));
        let wide = PtySize { cols: 132, rows: 50 };
        let top = Asked { size: wide, sized: true, command: Some("top".into()), attach: None };
        assert_eq!(asked("cols=132&rows=50&command=top"), Ok(top));
        assert_eq!(asked("pid=7&from=3").unwrap().attach, Some((7, 3)));
        assert_eq!(asked("pid=7").unwrap().attach, Some((7, 0)));
        assert_eq!(asked("from=3"), Err(Code::InvalidCombination));
        assert_eq!(asked("pid=7&command=x"), Err(Code::InvalidCombination));
        for bad in ["cols=0", "rows=65536", "cols=x", "pid=-1", "pid=7&from=x", "command=%00"] {
            assert_eq!(asked(bad), Err(Code::InvalidField), "{bad}");
        }
        assert_eq!(asked("term=vt100"), Err(Code::UnknownField));
    }

    #[test]
    fn texts() {
        assert!(matches!(
            request(r#"{"type":"resize","cols":100,"rows":30}"#),
            Ok(Request::Resize(PtySize { cols: 100, rows: 30 }))
        ));
        assert!(
            matches!(request(r#"{"type":"signal","signal":"INT"}"#), Ok(Request::Signal(signal)) if signal.number() == 2)
        );
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"type":"resize","cols":0,"rows":30}"#,
            r#"{"type":"resize","cols":100000,"rows":30}"#,
            r#"{"type":"signal","signal":"NO"}"#,
            r#"{"type":"quit"}"#,
        ] {
            assert!(request(bad).is_err(), "{bad}");
        }
    }
}

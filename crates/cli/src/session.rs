//! A terminal in a sandbox, shown in ours, for as long as someone wants it.
//!
//! ```text
//!            ┌────────── suspended ──────────► asleep ── a key ──┐
//!   open ──► live ── connection lost ──► away ── patience ───────┤
//!            ▲  └─ exit: its code        └─ over: 69             │
//!            └───────────── attach by pid and frame ◄────────────┘
//! ```
//! All keys go through, ^C and ^Z too; only `~.` at the beginning of a line is ours.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use wakeful_client::types::PtySize;
use wakeful_client::{Client, Error, Terminal, TerminalEvent, TerminalInput, TerminalOutput, Which};
use wakeful_model::Code;

use crate::escape::{Escape, Key};
use crate::failure::Failure;
use crate::input::Input;
use crate::output;
use crate::patience::{Patience, code_passes, passes};
use crate::sink::{Through, To};
use crate::tty::{self, Raw};

/// How long a server may be away: a laptop's lid, a restart, a train through a tunnel.
const AWAY: Duration = Duration::from_secs(900);
/// Between two looks at the clock.
const TICK: Duration = Duration::from_secs(5);
/// A server that says nothing for so long is asked whether it lives.
const QUIET: Duration = Duration::from_secs(15);
/// One that does not answer is gone.
const DEAD: Duration = Duration::from_secs(45);
/// We have slept ourselves: then the answer must come soon.
const JUMP: Duration = Duration::from_secs(20);
/// What may be typed ahead.
const AHEAD: usize = 4 << 10;
/// Messages that wait to be sent.
const WAITING: usize = 32;

const HELP: &str = "~. leaves (the shell goes on, `--attach` comes back), ~~ is one ~, ~? is this";

/// Shows a terminal until its process ends or the person leaves; the exit code.
pub(crate) async fn show(client: &Client, id: &str, which: Which) -> Result<u8, Failure> {
    let mut session = Session::new(client, id, which)?;
    // opened before the terminal is raw: a refusal is told as always
    let first = session.open().await;
    let first = match first {
        Ok(Opened::Terminal(terminal)) => *terminal,
        Ok(Opened::Left(code)) => return Ok(code),
        Err(error) => return Err(Failure::from(error).never_ran()),
    };
    let raw = Raw::enter().map_err(|error| Failure::refused(format!("could not use the terminal: {error}")))?;
    let ended = session.run(first, &raw).await;
    let left = !matches!(ended, Ok(End::Exit(_)));
    if left {
        let _ = session.screen.write(To::Stdout, tty::settled()).await;
    }
    let Session { screen, pid, .. } = session;
    let written = screen.finish().await;
    drop(raw);
    let ended = ended?;
    written?;
    Ok(match ended {
        End::Exit(code) => code,
        End::Left(code) => {
            if let Some(pid) = pid {
                output::say(&format!("\nleft; `wakeful sandbox shell {id} --attach {pid}` comes back"));
            }
            code
        }
    })
}

enum End {
    /// The process ended.
    Exit(u8),
    /// The person left, or we were told to.
    Left(u8),
}

enum Opened {
    Terminal(Box<Terminal>),
    Left(u8),
}

/// What became of an open terminal.
enum Live {
    End(End),
    Asleep,
    Lost,
}

/// What goes to the server.
enum Out {
    Keys(Bytes),
    Resize(PtySize),
    Ping,
}

struct Session<'a> {
    client: &'a Client,
    id: &'a str,
    which: Which,
    pid: Option<u32>,
    keys: Input,
    escape: Escape,
    /// What is to be sent, keys that were typed while nobody was there among it.
    waiting: VecDeque<Out>,
    screen: Through,
    resized: Signal,
    continued: Signal,
    stops: Stops,
    clock: Interval,
}

/// The signals that end us, with their codes.
struct Stops([(Signal, u8); 4]);

impl Stops {
    async fn came(&mut self) -> u8 {
        let [(hup, a), (int, b), (quit, c), (term, d)] = &mut self.0;
        tokio::select! {
            _ = hup.recv() => *a,
            _ = int.recv() => *b,
            _ = quit.recv() => *c,
            _ = term.recv() => *d,
        }
    }
}

impl<'a> Session<'a> {
    fn new(client: &'a Client, id: &'a str, which: Which) -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::refused(format!("could not listen to signals: {error}")));
        let stops = Stops([
            (listen(SignalKind::hangup())?, 129),
            (listen(SignalKind::interrupt())?, 130),
            (listen(SignalKind::quit())?, 131),
            (listen(SignalKind::terminate())?, 143),
        ]);
        let mut clock = interval(TICK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            client,
            id,
            pid: match which {
                Which::Attach { pid, .. } => Some(pid),
                Which::Shell | Which::Command(_) => None,
            },
            which,
            keys: Input::open(),
            escape: Escape::default(),
            waiting: VecDeque::new(),
            screen: Through::open(),
            resized: listen(SignalKind::window_change())?,
            continued: listen(SignalKind::from_raw(18))?,
            stops,
            clock,
        })
    }

    async fn open(&mut self) -> Result<Opened, Error> {
        tokio::select! {
            opened = self.client.terminal(self.id, tty::size(), &self.which) => Ok(Opened::Terminal(Box::new(opened?))),
            code = self.stops.came() => Ok(Opened::Left(code)),
        }
    }

    async fn run(&mut self, first: Terminal, raw: &Raw) -> Result<End, Failure> {
        let mut terminal = first;
        let mut patience = Patience::new(AWAY);
        loop {
            let mut told = false;
            match self.live(terminal, raw, &mut patience).await? {
                Live::End(end) => return Ok(end),
                Live::Asleep => {
                    self.notice("the sandbox sleeps; any key wakes it").await?;
                    if self.ahead() == 0
                        && let Some(end) = self.until_a_key().await?
                    {
                        return Ok(end);
                    }
                }
                Live::Lost => {
                    self.notice("the connection is lost; trying again (~. leaves)").await?;
                    told = true;
                }
            }
            terminal = match self.again(&mut patience, told).await? {
                Ok(terminal) => terminal,
                Err(end) => return Ok(end),
            };
        }
    }

    /// As long as the connection lives.
    async fn live(&mut self, terminal: Terminal, raw: &Raw, patience: &mut Patience) -> Result<Live, Failure> {
        let Terminal { input, mut output } = terminal;
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut writer = JoinSet::new();
        // beside the reading: a server that waits for us to read must not wait for ever
        writer.spawn(send(input, receiver));
        self.waiting.retain(|out| matches!(out, Out::Keys(_)));
        self.waiting.push_front(Out::Resize(tty::size()));
        let mut heard = Heard::now();
        loop {
            tokio::select! {
                event = output.next() => {
                    heard.again();
                    patience.reset();
                    if let Some(over) = self.event(event).await? {
                        return Ok(over);
                    }
                }
                keys = self.keys.next(), if self.waiting.len() < WAITING => match keys {
                    Some(Ok(keys)) => for key in self.escape.read(&keys) {
                        match key {
                            Key::Send(keys) => self.waiting.push_back(Out::Keys(keys.into())),
                            Key::Leave => return Ok(Live::End(End::Left(0))),
                            Key::Help => self.notice(HELP).await?,
                        }
                    },
                    // our terminal is gone
                    Some(Err(_)) | None => return Ok(Live::End(End::Left(129))),
                },
                Ok(permit) = sender.reserve(), if !self.waiting.is_empty() => {
                    if let Some(out) = self.waiting.pop_front() {
                        permit.send(out);
                    }
                }
                _ = writer.join_next(), if !writer.is_empty() => {
                    // what was written before may still come in, the server's last word for one
                    if let Some(over) = self.last_words(&mut output).await? {
                        return Ok(over);
                    }
                    return Ok(Live::Lost);
                }
                _ = self.resized.recv() => self.waiting.push_back(Out::Resize(tty::size())),
                _ = self.continued.recv() => {
                    raw.again().map_err(|error| Failure::refused(format!("could not use the terminal: {error}")))?;
                    self.waiting.push_back(Out::Resize(tty::size()));
                }
                _ = self.clock.tick() => match heard.look() {
                    Look::Fine => {}
                    Look::Ask => self.waiting.push_back(Out::Ping),
                    Look::Dead => return Ok(Live::Lost),
                },
                code = self.stops.came() => return Ok(Live::End(End::Left(code))),
            }
        }
    }

    /// What one event means; `Some`: this connection is over.
    async fn event(&mut self, event: Result<TerminalEvent, Error>) -> Result<Option<Live>, Failure> {
        match event {
            Ok(TerminalEvent::Start { pid, seq }) => {
                self.pid = Some(pid);
                self.which = Which::Attach { pid, from: seq + 1 };
            }
            Ok(TerminalEvent::Gap { seq }) => {
                if let Which::Attach { from, .. } = &mut self.which {
                    *from = seq + 1;
                }
            }
            Ok(TerminalEvent::Output(bytes)) => {
                if let Which::Attach { from, .. } = &mut self.which {
                    *from += 1;
                }
                self.screen.write(To::Stdout, &bytes).await?;
            }
            Ok(TerminalEvent::Exit { exit_code }) => {
                return Ok(Some(Live::End(End::Exit(u8::try_from(exit_code & 0xff).unwrap_or(1)))));
            }
            Ok(TerminalEvent::Suspended { pid, seq }) => {
                self.pid = Some(pid);
                self.which = Which::Attach { pid, from: seq };
                return Ok(Some(Live::Asleep));
            }
            Ok(TerminalEvent::Error { code, detail }) => {
                if code.parse().is_ok_and(code_passes) {
                    return Ok(Some(Live::Lost));
                }
                return Err(Failure::from_frame(&code, &detail));
            }
            Ok(TerminalEvent::Alive) => {}
            Ok(TerminalEvent::Closed) => return Ok(Some(Live::Lost)),
            Err(error) if passes(&error) => return Ok(Some(Live::Lost)),
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    /// What a connection still says that takes nothing any more.
    async fn last_words(&mut self, output: &mut TerminalOutput) -> Result<Option<Live>, Failure> {
        let until = Instant::now() + Duration::from_secs(2);
        while let Ok(event) = tokio::time::timeout_at(until, output.next()).await {
            if let Some(over) = self.event(event).await? {
                return Ok(Some(over));
            }
        }
        Ok(None)
    }

    /// The sandbox sleeps: nothing happens until someone wants something.
    async fn until_a_key(&mut self) -> Result<Option<End>, Failure> {
        loop {
            tokio::select! {
                keys = self.keys.next() => match self.typed(keys).await? {
                    Typed::Nothing => {}
                    Typed::Keys => return Ok(None),
                    Typed::Leave(code) => return Ok(Some(End::Left(code))),
                },
                code = self.stops.came() => return Ok(Some(End::Left(code))),
            }
        }
    }

    /// Keys while nobody is there to take them.
    async fn typed(&mut self, keys: Option<std::io::Result<Vec<u8>>>) -> Result<Typed, Failure> {
        let Some(Ok(keys)) = keys else { return Ok(Typed::Leave(129)) };
        let mut typed = Typed::Nothing;
        for key in self.escape.read(&keys) {
            match key {
                Key::Send(keys) => {
                    self.keep(&keys);
                    typed = Typed::Keys;
                }
                Key::Leave => return Ok(Typed::Leave(0)),
                Key::Help => self.notice(HELP).await?,
            }
        }
        Ok(typed)
    }

    fn keep(&mut self, keys: &[u8]) {
        let room = AHEAD.saturating_sub(self.ahead()).min(keys.len());
        if room > 0 {
            self.waiting.push_back(Out::Keys(Bytes::copy_from_slice(&keys[..room])));
        }
    }

    /// How much was typed that nobody has taken.
    fn ahead(&self) -> usize {
        let keys = |out: &Out| if let Out::Keys(keys) = out { keys.len() } else { 0 };
        self.waiting.iter().map(keys).sum()
    }

    /// Attaches again, as often as it takes. A key tries at once.
    async fn again(&mut self, patience: &mut Patience, mut told: bool) -> Result<Result<Terminal, End>, Failure> {
        loop {
            let client = self.client;
            let (id, which) = (self.id, self.which.clone());
            let mut opening = std::pin::pin!(client.terminal(id, tty::size(), &which));
            let opened = loop {
                tokio::select! {
                    opened = &mut opening => break opened,
                    keys = self.keys.next() => if let Typed::Leave(code) = self.typed(keys).await? {
                        return Ok(Err(End::Left(code)));
                    },
                    code = self.stops.came() => return Ok(Err(End::Left(code))),
                }
            };
            let error = match opened {
                Ok(terminal) => return Ok(Ok(terminal)),
                Err(error) => error,
            };
            if !passes(&error) {
                return Err(self.gone(&error));
            }
            let Some(delay) = patience.next() else { return Err(error.into()) };
            if !told {
                told = true;
                self.notice("the server cannot be reached; trying again (~. leaves)").await?;
            }
            let until = Instant::now() + delay;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => break,
                    keys = self.keys.next() => match self.typed(keys).await? {
                        Typed::Nothing => {}
                        Typed::Keys => break,
                        Typed::Leave(code) => return Ok(Err(End::Left(code))),
                    },
                    code = self.stops.came() => return Ok(Err(End::Left(code))),
                }
            }
        }
    }

    fn gone(&self, error: &Error) -> Failure {
        match error.problem().and_then(|problem| problem.known_code()) {
            Some(Code::ProcessNotFound) => Failure::refused(format!("the shell in {} is gone", self.id))
                .hint("processes are lost when a sandbox boots from its disk; `wakeful sandbox status` tells"),
            _ => Failure::of(error),
        }
    }

    /// A line of ours between the lines of theirs.
    async fn notice(&mut self, text: &str) -> Result<(), Failure> {
        let line = output::notice(text);
        self.screen.write(To::Stderr, line.as_bytes()).await
    }
}

enum Typed {
    Nothing,
    Keys,
    Leave(u8),
}

async fn send(mut input: TerminalInput, mut receiver: mpsc::Receiver<Out>) {
    while let Some(out) = receiver.recv().await {
        let sent = match out {
            Out::Keys(keys) => input.keys(keys).await,
            Out::Resize(size) => input.resize(size).await,
            Out::Ping => input.ping().await,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// When the server was heard last, by a clock that stands still while this machine sleeps and by one that does not.
struct Heard {
    last: Instant,
    looked: SystemTime,
    /// It must answer until then.
    answer: Option<Instant>,
}

enum Look {
    Fine,
    Ask,
    Dead,
}

impl Heard {
    fn now() -> Self {
        Self { last: Instant::now(), looked: SystemTime::now(), answer: None }
    }

    fn again(&mut self) {
        self.last = Instant::now();
        self.answer = None;
    }

    fn look(&mut self) -> Look {
        let now = SystemTime::now();
        let jumped = now.duration_since(self.looked).is_ok_and(|passed| passed > JUMP);
        self.looked = now;
        if jumped {
            self.answer = Some(Instant::now() + TICK);
            return Look::Ask;
        }
        let quiet = self.last.elapsed();
        if quiet > DEAD || self.answer.is_some_and(|answer| answer < Instant::now()) {
            Look::Dead
        } else if quiet > QUIET {
            Look::Ask
        } else {
            Look::Fine
        }
    }
}

//! Copying both ways, and looking at what the client says as long as that is needed.
//!
//! The server's side is never judged: whom the client reaches is settled by what the client says. Its first bytes are
//! kept for a look, because two things hang upon them: whether a WebSocket begins, and whether TLS begins anew.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::Failure;
use super::check::Connection;
use super::refuse::Refusal;
use crate::sniff::{self, Head, LONGEST, Protocol, Sniffed, http, sniff, tls};

const BUFFER: usize = 16 * 1024;

/// When a byte moved last, either way.
struct Activity {
    start: Instant,
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0) }
    }

    fn note(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Returns when nothing moved for so long.
    async fn ceased(&self, limit: Duration) {
        loop {
            let last = self.start + Duration::from_millis(self.last.load(Ordering::Relaxed));
            if last.elapsed() >= limit {
                return;
            }
            tokio::time::sleep_until(last + limit).await;
        }
    }
}

/// Reads until it is clear what the client begins with. `None` if nothing came for as long as `quiet`.
pub(super) async fn sniffed(
    client: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    quiet: Option<Duration>,
    deadline: Duration,
) -> Result<Option<Sniffed>, Failure> {
    let end = Instant::now() + deadline;
    buffer.reserve(2048);
    if let Some(quiet) = quiet {
        match timeout(quiet, client.read_buf(buffer)).await {
            Err(_) => return Ok(None),
            Ok(Ok(0)) => return Err(Failure::Cut),
            Ok(read) => read?,
        };
    }
    loop {
        match sniff(buffer) {
            Sniffed::NeedMore if buffer.len() >= LONGEST => {
                let protocol = if buffer[0] == 22 { Protocol::Tls } else { Protocol::Http };
                return Ok(Some(Sniffed::Bad(protocol, "it is too long")));
            }
            Sniffed::NeedMore => {}
            settled => return Ok(Some(settled)),
        }
        let left = (LONGEST - buffer.len()) as u64;
        let mut bounded = (&mut *client).take(left);
        match timeout_at(end, bounded.read_buf(buffer)).await {
            Err(_) => return Err(Failure::Cut),
            Ok(Ok(0)) => return Err(Failure::Cut),
            Ok(read) => read?,
        };
    }
}

/// Carries on until both sides have said all.
pub(super) async fn both_ways(
    connection: &Connection<'_>,
    client: &mut TcpStream,
    server: &mut TcpStream,
    first: Option<Sniffed>,
    buffer: Vec<u8>,
) -> Result<(), Failure> {
    let activity = Activity::new();
    let (seen, look) = watch::channel(Vec::new());
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let mut up = Up { connection, activity: &activity, look, from: &mut from_client, to: &mut to_server, buffer };
    let up = up.carry(first);
    let down = down(&activity, seen, &mut from_server, &mut to_client);
    tokio::select! {
        ended = async { tokio::try_join!(up, down) } => ended.map(|_| ()),
        () = activity.ceased(connection.shared.limits.idle) => Err(Failure::Cut),
    }
}

async fn down(
    activity: &Activity,
    seen: watch::Sender<Vec<u8>>,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Failure> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            break;
        }
        activity.note();
        // Shown before it is written, so that a client which does not read holds up nobody who looks.
        seen.send_if_modified(|first| {
            let room = LONGEST.saturating_sub(first.len()).min(length);
            first.extend_from_slice(&buffer[..room]);
            room > 0
        });
        to.write_all(&buffer[..length]).await?;
        activity.note();
    }
    to.shutdown().await?;
    Ok(())
}

/// The client's side.
struct Up<'a, R, W> {
    connection: &'a Connection<'a>,
    activity: &'a Activity,
    look: watch::Receiver<Vec<u8>>,
    from: &'a mut R,
    to: &'a mut W,
    /// What was read and not yet sent on.
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Up<'_, R, W> {
    async fn carry(&mut self, first: Option<Sniffed>) -> Result<(), Failure> {
        let first = match first {
            Some(first) => first,
            None => match self.late().await? {
                Some(first) => first,
                None => return Ok(self.to.shutdown().await?),
            },
        };
        match first {
            Sniffed::Http(head) => self.http(head).await?,
            Sniffed::Tls(hello) => self.tls(&hello).await?,
            Sniffed::Other | Sniffed::NeedMore | Sniffed::Bad(..) => {}
        }
        self.blindly().await
    }

    /// A client that let the server speak first: what it says then is looked at all the same.
    async fn late(&mut self) -> Result<Option<Sniffed>, Failure> {
        if self.read().await? == 0 {
            return Ok(None);
        }
        let hello = self.connection.shared.limits.hello;
        let first = sniffed(self.from, &mut self.buffer, None, hello).await?;
        if let Some(first) = &first {
            self.connection.check(first)?;
        }
        Ok(first)
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(BUFFER);
        let length = self.from.read_buf(&mut self.buffer).await?;
        self.activity.note();
        Ok(length)
    }

    async fn send(&mut self, count: usize) -> io::Result<()> {
        self.to.write_all(&self.buffer[..count]).await?;
        self.activity.note();
        self.buffer.drain(..count);
        Ok(())
    }

    async fn blindly(&mut self) -> Result<(), Failure> {
        loop {
            self.send(self.buffer.len()).await?;
            if self.read().await? == 0 {
                return Ok(self.to.shutdown().await?);
            }
        }
    }

    /// A server may ask for a second ClientHello, which some read a name from again. So nothing follows the first
    /// before the server has spoken.
    async fn tls(&mut self, hello: &tls::Hello) -> Result<(), Failure> {
        self.send(hello.length).await?;
        let spoken = self.look.wait_for(|first| tls::server_reply(first) != tls::Reply::NeedMore).await;
        match spoken.map(|first| tls::server_reply(&first)) {
            Ok(tls::Reply::Retry) => self.second_hello(hello).await,
            // If the server is gone, nobody is there to be deceived.
            _ => Ok(()),
        }
    }

    async fn second_hello(&mut self, hello: &tls::Hello) -> Result<(), Failure> {
        let bad = |why| Failure::Refused(Refusal::broken(self.connection.destination, Protocol::Tls, why));
        loop {
            match tls::before_second_hello(&self.buffer).map_err(bad)? {
                Some(0) => match sniff(&self.buffer) {
                    Sniffed::Tls(second) if second.name == hello.name && second.hides == hello.hides => return Ok(()),
                    Sniffed::NeedMore if self.buffer.len() < LONGEST => {}
                    _ => return Err(bad("the second ClientHello is another")),
                },
                Some(length) if self.buffer.len() >= length => {
                    self.send(length).await?;
                    continue;
                }
                _ => {}
            }
            if self.read().await? == 0 {
                return Err(Failure::Cut);
            }
        }
    }

    /// Requests, one after the other; returns when the rest may go blindly.
    async fn http(&mut self, first: Head) -> Result<(), Failure> {
        let destination = self.connection.destination;
        let bad = |why| Failure::Refused(Refusal::broken(destination, Protocol::Http, why));
        let mut head = first;
        for nth in 0_u64.. {
            self.connection.name(&head.host, Protocol::Http)?;
            self.send(head.length).await?;
            while !head.body.is_done() {
                let count = head.body.advance(&self.buffer).map_err(bad)?;
                self.send(count).await?;
                if !head.body.is_done() && self.read().await? == 0 {
                    return Ok(());
                }
            }
            if head.websocket {
                // The answer to a later request could not be told from what comes before it.
                if nth > 0 {
                    return Err(bad("a WebSocket must be the first request of a connection"));
                }
                let answer =
                    self.look.wait_for(|first| http::switches(first).is_some() || first.len() >= LONGEST).await;
                if answer.is_ok_and(|first| http::switches(&first) == Some(true)) {
                    return Ok(());
                }
            }
            head = match self.next_head().await? {
                Some(head) => head,
                None => return Ok(()),
            };
        }
        Ok(())
    }

    async fn next_head(&mut self) -> Result<Option<Head>, Failure> {
        let destination = self.connection.destination;
        let bad = |why| Failure::Refused(Refusal::broken(destination, Protocol::Http, why));
        if self.buffer.is_empty() && self.read().await? == 0 {
            return Ok(None);
        }
        let end = Instant::now() + self.connection.shared.limits.hello;
        loop {
            if let Some(head) = sniff::http::head(&self.buffer).map_err(bad)? {
                return Ok(Some(head));
            }
            if timeout_at(end, self.read()).await.map_err(|_| Failure::Cut)?? == 0 {
                return Err(Failure::Cut);
            }
        }
    }
}

//! An upgraded connection: two byte streams, each of which is the other's.
//!
//! Of a WebSocket the frames are looked at, because programs keep them open with pings: those neither keep a sandbox awake nor
//! wake it. While it sleeps they are answered here.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::sync::{Mutex, watch};

use crate::frames::{Cutter, GOING_AWAY, Piece, pong};
use crate::line::Pulse;

const BUFFER: usize = 32 * 1024;

/// Bytes both ways until both directions have ended, or one broke.
pub(crate) async fn bytes<C, S>(client: C, service: S)
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut client, mut service) = (client, service);
    // The line below counts them.
    let _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut service, BUFFER, BUFFER).await;
}

/// To the client, from two directions.
struct Output<W> {
    stream: W,
    /// A frame was begun: nothing of ours may come between.
    inside: bool,
    /// The service has said goodbye.
    closed: bool,
}

/// A WebSocket until one of its ends is done with it.
pub(crate) async fn websocket<C, S>(client: C, service: S, attached: watch::Receiver<bool>, pulse: Arc<Pulse>)
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    pulse.only_when_told();
    let (from_client, stream) = split(client);
    let (from_service, to_service) = split(service);
    let output = Mutex::new(Output { stream, inside: false, closed: false });
    tokio::select! {
        () = up(from_client, to_service, &output, &attached, &pulse) => return,
        () = down(from_service, &output, &pulse) => {}
    }
    let mut output = output.into_inner();
    if !output.inside && !output.closed {
        let _ = output.stream.write_all(GOING_AWAY).await;
    }
    let _ = output.stream.shutdown().await;
}

async fn up(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    output: &Mutex<Output<impl AsyncWrite + Unpin>>,
    attached: &watch::Receiver<bool>,
    pulse: &Pulse,
) {
    let mut cutter = Cutter::default();
    loop {
        cutter.buffer().reserve(BUFFER);
        let Ok(1..) = from.read_buf(cutter.buffer()).await else {
            let _ = to.shutdown().await;
            return;
        };
        while let Some(piece) = cutter.next() {
            let asleep = !*attached.borrow();
            match &piece {
                Piece::Ping { payload, .. } if asleep => {
                    let mut output = output.lock().await;
                    if !output.inside && output.stream.write_all(&pong(payload)).await.is_err() {
                        return;
                    }
                    let _ = output.stream.flush().await;
                }
                Piece::Pong(_) if asleep => {}
                piece => {
                    if piece.means_something() {
                        pulse.touch();
                    }
                    if to.write_all(piece.bytes()).await.is_err() {
                        return;
                    }
                }
            }
        }
        if to.flush().await.is_err() {
            return;
        }
    }
}

async fn down(mut from: impl AsyncRead + Unpin, output: &Mutex<Output<impl AsyncWrite + Unpin>>, pulse: &Pulse) {
    let mut cutter = Cutter::default();
    loop {
        cutter.buffer().reserve(BUFFER);
        let Ok(1..) = from.read_buf(cutter.buffer()).await else { return };
        let mut output = output.lock().await;
        while let Some(piece) = cutter.next() {
            if piece.means_something() {
                pulse.touch();
            }
            output.closed |= matches!(piece, Piece::Close(_));
            output.inside = true;
            if output.stream.write_all(piece.bytes()).await.is_err() {
                return;
            }
            output.inside = cutter.is_inside();
        }
        if output.stream.flush().await.is_err() {
            return;
        }
    }
}

//! The resolver: answers on UDP and TCP, decides before anything leaves.

mod answer;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod pace;
mod upstream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

pub use upstream::Upstream;

use crate::gatekeeper::Shared;
use pace::Pace;

/// Longer questions have no honest reason.
const LONGEST_QUESTION: usize = 4096;
const LONGEST_TCP_ANSWER: usize = 65535;
/// After an accept that failed for want of descriptors there is nothing to do but wait.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

pub(crate) fn serve(shared: &Arc<Shared>, udp: UdpSocket, tcp: TcpListener) {
    let doors = Arc::new(Doors { under_way: Arc::new(Semaphore::new(shared.limits.questions)), pace: Pace::new() });
    let (one, other) = (shared.clone(), shared.clone());
    let also = doors.clone();
    shared.tasks.spawn(async move {
        let end = one.end.clone();
        end.run_until_cancelled(datagrams(&one, &Arc::new(udp), &doors)).await;
    });
    shared.tasks.spawn(async move {
        let end = other.end.clone();
        end.run_until_cancelled(connections(&other, &tcp, &also)).await;
    });
}

/// What keeps a guest from asking more than is good for the host.
struct Doors {
    under_way: Arc<Semaphore>,
    pace: Pace,
}

async fn datagrams(shared: &Arc<Shared>, socket: &Arc<UdpSocket>, doors: &Doors) {
    let mut buffer = vec![0; LONGEST_QUESTION];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(e) => {
                tracing::debug!(error = %e, "could not receive a question");
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        if !doors.pace.step() {
            continue;
        }
        let Ok(permit) = doors.under_way.clone().try_acquire_owned() else { continue };
        let (shared, socket, question) = (shared.clone(), socket.clone(), buffer[..length].to_vec());
        let tasks = shared.tasks.clone();
        tasks.spawn(async move {
            let end = shared.end.clone();
            let answered = end.run_until_cancelled(answer::to(&shared, &question)).await;
            if let Some(Some(answer)) = answered
                && let Some(bytes) = answer.for_udp()
                && let Err(e) = socket.send_to(&bytes, from).await
            {
                tracing::debug!(error = %e, "could not send an answer");
            }
            drop(permit);
        });
    }
}

async fn connections(shared: &Arc<Shared>, listener: &TcpListener, doors: &Arc<Doors>) {
    let seats = Arc::new(Semaphore::new(shared.limits.dns_connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::debug!(error = %e, "could not accept a connection to the resolver");
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        let Ok(seat) = seats.clone().try_acquire_owned() else { continue };
        let (shared, doors) = (shared.clone(), doors.clone());
        let tasks = shared.tasks.clone();
        tasks.spawn(async move {
            let end = shared.end.clone();
            if let Some(Err(e)) = end.run_until_cancelled(conversation(&shared, stream, &doors)).await {
                tracing::trace!(error = %e, "a connection to the resolver ended");
            }
            drop(seat);
        });
    }
}

/// One question after the other. Each step has the idle deadline, so that one byte now and then keeps nothing open.
async fn conversation(shared: &Shared, mut stream: TcpStream, doors: &Doors) -> io::Result<()> {
    let idle = shared.limits.dns_idle;
    let read = async |stream: &mut TcpStream| {
        let length = usize::from(stream.read_u16().await?);
        if length > LONGEST_QUESTION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut question = vec![0; length];
        stream.read_exact(&mut question).await?;
        Ok::<_, io::Error>(question)
    };
    loop {
        let question = tokio::time::timeout(idle, read(&mut stream)).await??;
        while !doors.pace.step() {
            tokio::time::sleep(pace::REST).await;
        }
        let permit = doors.under_way.acquire().await.map_err(io::Error::other)?;
        let Some(answer) = answer::to(shared, &question).await else { return Ok(()) };
        let Some(bytes) = answer.encode(LONGEST_TCP_ANSWER) else { return Ok(()) };
        drop(permit);
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], &bytes].concat();
        tokio::time::timeout(idle, stream.write_all(&framed)).await??;
    }
}

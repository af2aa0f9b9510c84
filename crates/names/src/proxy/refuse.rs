//! How a connection is refused: with a word where the protocol has one, then a reset.

use std::net::SocketAddrV4;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::refusals::What;
use crate::sniff::Protocol;

/// A fatal alert, `unrecognized_name`.
const ALERT: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_DRAINED: usize = 64 * 1024;

pub(super) struct Refusal {
    pub(super) name: String,
    pub(super) what: What,
    protocol: Option<Protocol>,
    reason: String,
}

impl Refusal {
    /// Of something that names no host.
    pub(super) fn protocol(destination: SocketAddrV4) -> Self {
        Self { name: destination.to_string(), what: What::Protocol, protocol: None, reason: String::new() }
    }

    pub(super) fn broken(destination: SocketAddrV4, protocol: Protocol, why: &str) -> Self {
        let reason = format!("this request cannot be checked: {why}");
        Self { protocol: Some(protocol), reason, ..Self::protocol(destination) }
    }

    pub(super) fn named(name: &str, what: What, protocol: Protocol, destination: SocketAddrV4) -> Self {
        let reason = match what {
            What::Address => format!("{} is not an address that {name} was resolved to here", destination.ip()),
            _ => format!("this sandbox may not reach {name} on port {}", destination.port()),
        };
        Self { name: name.to_owned(), what, protocol: Some(protocol), reason }
    }
}

/// Makes the drop of a stream a reset.
pub(super) fn reset(stream: &TcpStream) {
    // Fails only for a stream that is gone already.
    let _ = stream.set_zero_linger();
}

/// Says why, waits shortly until it was heard, and resets.
pub(super) async fn say(client: &mut TcpStream, refusal: &Refusal) {
    let words = match refusal.protocol {
        None => Vec::new(),
        Some(Protocol::Tls) => ALERT.to_vec(),
        Some(Protocol::Http) => {
            let text = format!("wakeful: {}\n", refusal.reason);
            let head = "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close";
            format!("{head}\r\ncontent-length: {}\r\n\r\n{text}", text.len()).into_bytes()
        }
    };
    if !words.is_empty() {
        let heard = async {
            client.write_all(&words).await?;
            client.shutdown().await?;
            // A reset overtakes what was not read yet; so the client closes first, if it does so soon.
            let mut drained = 0;
            let mut buffer = [0; 4096];
            while drained < MOST_DRAINED {
                match client.read(&mut buffer).await? {
                    0 => break,
                    length => drained += length,
                }
            }
            Ok::<_, std::io::Error>(())
        };
        // Whether it was heard changes nothing.
        let _ = timeout(PATIENCE, heard).await;
    }
    reset(client);
}

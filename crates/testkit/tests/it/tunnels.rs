//! Raw TCP to a port inside.

use anyhow::{Result, bail, ensure};
use serde_json::json;
use wakeful_testkit::Daemon;

use crate::support::{create, persistent, wait_for};
use crate::wire::{Heard, SOON, Socket, background};

/// Answers with what it has read, as it reads it; after the end of its input it says how much that was.
const SERVER: &str = r#"
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
while True:
    peer, _ = server.accept()
    total = 0
    while data := peer.recv(65536):
        total += len(data)
        peer.sendall(data)
    peer.sendall(b'total %d' % total)
    peer.close()
"#;

/// Waits until somebody listens.
async fn connect(daemon: &Daemon, id: &str, port: u16) -> Result<Socket> {
    let path = format!("ports/{port}/tcp");
    wait_for("the server", SOON, || async { Ok(Socket::open(daemon, id, &path).await.is_ok()) }).await?;
    Socket::open(daemon, id, &path).await
}

#[tokio::test]
async fn bytes_both_ways_with_an_end_each() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"template": "python", "timeout": "10m"})).await?.id.to_string();
    for (address, port) in [("127.0.0.1", 7001), ("::1", 7002)] {
        background(&daemon, &id, json!({"command": ["python3", "-c", SERVER, address, port.to_string()]})).await?;
        let mut socket = connect(&daemon, &id, port).await?;
        let sent: Vec<u8> = (0..600_000_u32).map(|n| u8::try_from(n % 253).unwrap_or(0)).collect();
        let mut back = Vec::new();
        for piece in sent.chunks(100_000) {
            socket.bytes(piece).await?;
            let wanted = back.len() + piece.len();
            while back.len() < wanted {
                match socket.hear().await? {
                    Heard::Bytes(bytes) => back.extend(bytes),
                    other => bail!("{other:?} after {} bytes", back.len()),
                }
            }
        }
        ensure!(back == sent, "other bytes came back");
        socket.text(&json!({"type": "eof"})).await?;
        let mut last = Vec::new();
        let eof = loop {
            match socket.hear().await? {
                Heard::Bytes(bytes) => last.extend(bytes),
                Heard::Text(text) => break text,
                Heard::Closed(code) => bail!("closed with {code:?}"),
            }
        };
        ensure!(last == b"total 600000" && eof == json!({"type": "eof"}), "{} {eof}", String::from_utf8_lossy(&last));
        ensure!(matches!(socket.hear().await?, Heard::Closed(Some(1000))));
    }
    let (status, code) = Socket::refused(&daemon, &id, "ports/7999/tcp").await?;
    ensure!((status, code.as_str()) == (502, "port_not_open"), "{status} {code}");
    for port in ["0", "65536", "x"] {
        let (status, code) = Socket::refused(&daemon, &id, &format!("ports/{port}/tcp")).await?;
        ensure!((status, code.as_str()) == (400, "invalid_field"), "{port}: {status} {code}");
    }
    let mut socket = connect(&daemon, &id, 7001).await?;
    socket.text(&json!({"type": "quit"})).await?;
    let told = socket.hear_text().await?;
    ensure!(told["type"] == "error", "{told}");
    Ok(())
}

#[tokio::test]
async fn a_tunnel_ends_with_its_sandbox_asleep_and_the_next_one_wakes_it() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "python").await?.id.to_string();
    background(&daemon, &id, json!({"command": ["python3", "-c", SERVER, "127.0.0.1", "7001"]})).await?;
    let mut socket = connect(&daemon, &id, 7001).await?;
    socket.bytes(b"hello").await?;
    ensure!(matches!(socket.hear().await?, Heard::Bytes(bytes) if bytes == b"hello"));
    let (suspended, told) = tokio::join!(client.suspend(&id, true), socket.hear_text());
    ensure!(suspended?.status.to_string() == "suspended");
    let told = told?;
    ensure!(told == json!({"type": "suspended"}), "{told}");
    ensure!(matches!(socket.hear().await?, Heard::Closed(Some(1000))));

    let mut socket = connect(&daemon, &id, 7001).await?;
    socket.bytes(b"again").await?;
    ensure!(matches!(socket.hear().await?, Heard::Bytes(bytes) if bytes == b"again"));
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);
    Ok(())
}

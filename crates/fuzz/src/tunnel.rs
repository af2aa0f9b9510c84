//! What the other end of a tunnel says, and what it calls one.

use std::time::Duration;

use wakeful_guest_proto::tunnel::TunnelId;
use wakeful_tunnel::{End, Line};

/// All in memory, but an end that was told of is waited for.
const PROMPT: Duration = Duration::from_secs(20);
/// Largest piece that may come in one frame.
const PIECE: usize = 32 * 1024;

/// The frames of a carrier, to an end that says nothing itself, beside what they mean when they are read without haste.
pub(crate) fn tunnel(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(id) = TunnelId::parse(text)
    {
        assert_eq!(id.to_string(), text);
    }
    let (wanted, wanted_end) = meant(bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let (mut line, mut got) = (Line::default(), Vec::new());
        let (_silent, mut from) = tokio::io::duplex(16);
        let carrier = tokio::io::join(bytes, tokio::io::sink());
        let carried = line.carry(&mut from, &mut got, carrier, 0, std::future::pending(), &|| {});
        let end = tokio::time::timeout(PROMPT, carried).await.expect("ends");
        assert_eq!(end, wanted_end);
        assert!(got == wanted && line.received() == got.len() as u64, "other bytes came");
        assert!(!line.has_unconfirmed() && !line.has_ended(), "it said something");
        // Who has what was never sent makes no sense, on any carrier.
        let (mut fresh, mut more) = (Line::default(), Vec::new());
        let carrier = tokio::io::join(bytes, tokio::io::sink());
        let end = fresh.carry(&mut from, &mut more, carrier, 1, std::future::pending(), &|| {}).await;
        assert!(end == End::Broken && more.is_empty());
    });
}

/// What is given to the local side, and how it ends.
fn meant(mut bytes: &[u8]) -> (Vec<u8>, End) {
    let (mut out, mut ended, mut lied) = (Vec::new(), false, false);
    let end = loop {
        match bytes {
            [1, a, b, c, d, rest @ ..] => {
                let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
                if length == 0 || length > PIECE || ended {
                    break End::Broken;
                }
                let there = length.min(rest.len());
                out.extend_from_slice(&rest[..there]);
                bytes = &rest[there..];
                if there < length {
                    break End::Lost;
                }
            }
            [2, rest @ ..] => (ended, bytes) = (true, rest),
            [3, rest @ ..] => match rest.split_first_chunk() {
                // Nothing was said that it could have.
                Some((count, rest)) => (lied, bytes) = (lied || u64::from_be_bytes(*count) > 0, rest),
                None => break End::Lost,
            },
            [] | [1, ..] => break End::Lost,
            _ => break End::Broken,
        }
    };
    (out, if lied { End::Broken } else { end })
}

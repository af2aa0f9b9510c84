//! The readers of what a guest, and the world, send through the gate, open to any bytes. For `crates/fuzz` only.

pub use crate::dns::fuzz::dns;
use crate::sniff::{Body, LONGEST, Sniffed, clean_name, sniff};

/// The first bytes of a connection.
///
/// # Panics
/// If an answer changes with more bytes, a name is none, or a body ends elsewhere when it is cut in another way.
pub fn first_bytes(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let whole = told(bytes);
    // The first byte says where it is cut.
    let step = usize::from(bytes.first().copied().unwrap_or(0)) % 61 + bytes.len() / 16 + 1;
    for end in (0..bytes.len()).step_by(step) {
        let part = told(&bytes[..end]);
        assert!(part == Sniffed::NeedMore || part == whole, "{part:?} after {end} bytes, then {whole:?}");
    }
    let (name, length) = match &whole {
        Sniffed::Tls(hello) => (hello.name.as_ref(), hello.length),
        Sniffed::Http(head) => (Some(&head.host), head.length),
        Sniffed::NeedMore | Sniffed::Other | Sniffed::Bad(..) => (None, 0),
    };
    assert!(length <= bytes.len(), "longer than what there is");
    if let Some(name) = name {
        assert_eq!(clean_name(name.as_bytes()).as_ref(), Some(name), "not as clean as it can be");
    }
    if let Sniffed::Http(head) = whole {
        let rest = &bytes[length..];
        assert_eq!(followed(head.body.clone(), rest, rest.len().max(1)), followed(head.body, rest, step));
    }
}

/// Without the words of a refusal, which may change.
fn told(bytes: &[u8]) -> Sniffed {
    match sniff(bytes) {
        Sniffed::Bad(protocol, _) => Sniffed::Bad(protocol, ""),
        other => other,
    }
}

/// How much of it is the body; `None` if it is not sound.
fn followed(mut body: Body, bytes: &[u8], piece: usize) -> Option<(usize, bool)> {
    let mut all = 0;
    for piece in bytes.chunks(piece) {
        let taken = body.advance(piece).ok()?;
        assert!(taken == piece.len() || body.is_done(), "a body stops before its end");
        all += taken;
        if body.is_done() {
            break;
        }
    }
    Some((all, body.is_done()))
}

//! Tunnels that outlive the channel.
//!
//! `CONNECT 127.0.0.1:<port>` with [`TUNNEL`], a name of the host's choice, asks for one; an agent that can answers 200 with
//! [`TUNNEL`]: [`KEPT`], and both directions are then the frames of `wakeful-tunnel` instead of bare bytes. An older agent
//! does not know the header and opens a plain tunnel.
//!
//! A quiesce parks such a tunnel: the agent confirms what it has, ends the stream, and keeps the socket inside. The same
//! `CONNECT` with [`RECEIVED`] as well takes it up again; the answer's [`RECEIVED`] is how much the agent has, and 404 says
//! that it has no such tunnel (any more).

/// Names a tunnel: 32 hex digits.
pub const TUNNEL: &str = "x-wakeful-tunnel";
/// The answer to it.
pub const KEPT: &str = "kept";
/// How many bytes of the other side's were passed on so far, in decimal.
pub const RECEIVED: &str = "x-wakeful-received";

/// A tunnel's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunnelId(pub [u8; 16]);

impl TunnelId {
    /// From its digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let value = fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
        Some(Self(value.to_be_bytes()))
    }
}

impl std::fmt::Display for TunnelId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let id = TunnelId(*b"0123456789abcdef");
        assert_eq!(TunnelId::parse(&id.to_string()), Some(id));
        for bad in ["", "0", &"g".repeat(32), &"+".repeat(32), &"A".repeat(32), &"0".repeat(33)] {
            assert_eq!(TunnelId::parse(bad), None, "{bad}");
        }
    }
}

//! Leaving a terminal whose keys all belong to someone else: `~` at the beginning of a line, as in ssh.

/// What keys mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// For the remote side.
    Send(Vec<u8>),
    /// `~.`
    Leave,
    /// `~?`
    Help,
}

/// Reads keys.
#[derive(Debug, Default)]
pub(crate) struct Escape {
    at: At,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// The beginning of a line, as far as keys tell.
    #[default]
    Line,
    /// After a `~` there, which waits for what follows.
    Tilde,
    Within,
}

impl Escape {
    /// What these keys mean; nothing after a `Leave`.
    pub(crate) fn read(&mut self, keys: &[u8]) -> Vec<Key> {
        let mut found = Vec::new();
        let mut plain = Vec::with_capacity(keys.len() + 1);
        for &key in keys {
            match (self.at, key) {
                (At::Line, b'~') => {
                    self.at = At::Tilde;
                    continue;
                }
                (At::Tilde, b'.' | b'?') => {
                    if !plain.is_empty() {
                        found.push(Key::Send(std::mem::take(&mut plain)));
                    }
                    self.at = At::Line;
                    if key == b'.' {
                        found.push(Key::Leave);
                        return found;
                    }
                    found.push(Key::Help);
                    continue;
                }
                // `~~` is one
                (At::Tilde, b'~') => {}
                (At::Tilde, _) => plain.push(b'~'),
                (At::Line | At::Within, _) => {}
            }
            plain.push(key);
            self.at = if matches!(key, b'\r' | b'\n') { At::Line } else { At::Within };
        }
        if !plain.is_empty() {
            found.push(Key::Send(plain));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&str]) -> Vec<Key> {
        let mut escape = Escape::default();
        pieces.iter().flat_map(|piece| escape.read(piece.as_bytes())).collect()
    }

    fn send(text: &str) -> Key {
        Key::Send(text.into())
    }

    #[test]
    fn only_at_the_beginning_of_a_line() {
        assert_eq!(read(&["~."]), [Key::Leave]);
        assert_eq!(read(&["ls\r~.more"]), [send("ls\r"), Key::Leave]);
        assert_eq!(read(&["ls ~."]), [send("ls ~.")]);
        assert_eq!(read(&["\r", "~", "."]), [send("\r"), Key::Leave]);
        assert_eq!(read(&["~?", "x"]), [Key::Help, send("x")]);
    }

    #[test]
    fn nothing_else_is_lost() {
        assert_eq!(read(&["~~."]), [send("~.")]);
        assert_eq!(read(&["~", "x"]), [send("~x")]);
        assert_eq!(read(&["~\r", "~."]), [send("~\r"), Key::Leave]);
        assert_eq!(read(&["~/bin/x\r"]), [send("~/bin/x\r")]);
        assert_eq!(read(&["\x03", "~."]), [send("\x03"), send("~.")]);
    }
}

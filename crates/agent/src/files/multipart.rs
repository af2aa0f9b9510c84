//! `multipart/form-data`, read piece by piece: nothing but the head of a part and the length of a boundary is ever held.

use std::fmt;

/// The head of a part is a name and a file name.
const MAX_HEAD: usize = 16 << 10;
/// RFC 2046.
const MAX_BOUNDARY: usize = 70;

/// What comes next in the form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A part begins.
    Part { name: Option<String>, filename: Option<String> },
    /// Some of its bytes.
    Data(Vec<u8>),
    /// It is complete.
    PartEnd,
    /// The form is complete.
    End,
}

/// Not a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed multipart body: {}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    Delimiter,
    Head,
    Data,
    Over,
}

pub(super) struct Parser {
    buffer: Vec<u8>,
    /// `\r\n--boundary`
    delimiter: Vec<u8>,
    state: State,
}

impl Parser {
    /// From the `Content-Type` header.
    pub(super) fn new(content_type: &str) -> Result<Self, Malformed> {
        let boundary = parameter(content_type, "boundary").ok_or(Malformed("no boundary"))?;
        if boundary.is_empty() || boundary.len() > MAX_BOUNDARY {
            return Err(Malformed("bad boundary"));
        }
        // The first delimiter may be at the very beginning: then it has no line before it.
        let (buffer, delimiter) = (b"\r\n".to_vec(), format!("\r\n--{boundary}").into_bytes());
        Ok(Self { buffer, delimiter, state: State::Preamble })
    }

    pub(super) fn feed(&mut self, piece: &[u8]) {
        if self.state != State::Over {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// The next event, or `None` if more bytes are needed for it.
    pub(super) fn event(&mut self) -> Result<Option<Event>, Malformed> {
        loop {
            match self.state {
                State::Over => return Ok(None),
                State::Preamble => match find(&self.buffer, &self.delimiter) {
                    Some(at) => {
                        self.consume(at + self.delimiter.len());
                        self.state = State::Delimiter;
                    }
                    None => {
                        self.consume(self.certain());
                        return Ok(None);
                    }
                },
                State::Delimiter => {
                    // Blanks are allowed between boundary and line end.
                    let blanks = self.buffer.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                    if blanks > MAX_BOUNDARY {
                        return Err(Malformed("bad delimiter"));
                    }
                    match self.buffer.get(blanks..blanks + 2) {
                        None => return Ok(None),
                        Some(b"--") => {
                            self.state = State::Over;
                            self.buffer = Vec::new();
                            return Ok(Some(Event::End));
                        }
                        Some(b"\r\n") => {
                            // The line end stays: a head without any header is an empty line right here.
                            self.consume(blanks);
                            self.state = State::Head;
                        }
                        Some(_) => return Err(Malformed("bad delimiter")),
                    }
                }
                State::Head => {
                    let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
                        if self.buffer.len() > MAX_HEAD {
                            return Err(Malformed("head of a part is too long"));
                        }
                        return Ok(None);
                    };
                    let head = String::from_utf8(self.buffer[..end].to_vec());
                    let head = head.map_err(|_| Malformed("head of a part is not UTF-8"))?;
                    self.consume(end + 4);
                    self.state = State::Data;
                    return Ok(Some(part(&head)));
                }
                State::Data => {
                    let (length, complete) = match find(&self.buffer, &self.delimiter) {
                        Some(at) => (at, true),
                        None => (self.certain(), false),
                    };
                    if length > 0 {
                        let data = self.buffer[..length].to_vec();
                        self.consume(length);
                        return Ok(Some(Event::Data(data)));
                    }
                    if !complete {
                        return Ok(None);
                    }
                    self.consume(self.delimiter.len());
                    self.state = State::Delimiter;
                    return Ok(Some(Event::PartEnd));
                }
            }
        }
    }

    /// Bytes that cannot be the beginning of a delimiter, since it would be complete.
    fn certain(&self) -> usize {
        self.buffer.len().saturating_sub(self.delimiter.len() - 1)
    }

    fn consume(&mut self, length: usize) {
        self.buffer.drain(..length);
    }
}

/// Where `needle`, which begins with a carriage return, is in `hay`.
fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += hay.get(at..)?.iter().position(|byte| *byte == b'\r')?;
        if hay[at..].starts_with(needle) {
            return Some(at);
        }
        at += 1;
    }
}

fn part(head: &str) -> Event {
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let parameter = |name| disposition.and_then(|value| parameter(value, name));
    Event::Part { name: parameter("name"), filename: parameter("filename") }
}

/// The value of `name` in `form-data; name="a;b"; filename=c`, quotes taken off. Browsers write a quote as `%22`.
fn parameter(header: &str, name: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim().to_owned();
        let (value, next) = if let Some(quoted) = after.trim_start().strip_prefix('"') {
            let (mut value, mut escaped, mut end) = (String::new(), false, quoted.len());
            for (at, letter) in quoted.char_indices() {
                match letter {
                    _ if escaped => {
                        value.push(letter);
                        escaped = false;
                    }
                    '\\' => escaped = true,
                    '"' => {
                        end = at + 1;
                        break;
                    }
                    _ => value.push(letter),
                }
            }
            (value.replace("%22", "\""), quoted.get(end..).unwrap_or_default())
        } else {
            let (value, _) = after.split_once(';').unwrap_or((after, ""));
            (value.trim().to_owned(), &after[value.len()..])
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = next.split_once(';')?.1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parts with name, file name and content.
    type Form = Vec<(Option<String>, Option<String>, Vec<u8>)>;

    fn read(body: &[u8], cuts: &[usize]) -> Result<(Form, bool), Malformed> {
        let mut parser = Parser::new("multipart/form-data; boundary=\"XX\"")?;
        let (mut form, mut over, mut at): (Form, _, _) = (Vec::new(), false, 0);
        for cut in cuts.iter().cycle() {
            let end = body.len().min(at + cut);
            parser.feed(&body[at..end]);
            at = end;
            while let Some(event) = parser.event()? {
                match event {
                    Event::Part { name, filename } => form.push((name, filename, Vec::new())),
                    Event::Data(data) => form.last_mut().expect("a part is open").2.extend(data),
                    Event::PartEnd => {}
                    Event::End => over = true,
                }
            }
            if at == body.len() {
                return Ok((form, over));
            }
        }
        unreachable!("cuts are cycled")
    }

    #[test]
    fn what_clients_send() {
        let body = b"ignored\r\n--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"sub/b\"\r\nContent-Type: x\r\n\r\none\r\n--XX \r\ncontent-disposition: form-data; filename=c%22; name=file\r\n\r\n\r\n--XX\r\n\r\nbare\r\n--XX--\r\ntrailer";
        for cut in 1..body.len() {
            let (form, over) = read(body, &[cut]).unwrap();
            assert!(over);
            assert_eq!(form[0], (Some("file".into()), Some("sub/b".into()), b"one".to_vec()));
            assert_eq!((form[1].0.as_deref(), form[1].2.len()), (Some("file"), 0));
            assert_eq!(form[2], (None, None, b"bare".to_vec()));
        }
        assert!(read(b"--XX?\r\n", &[1]).is_err());
        assert!(Parser::new("multipart/form-data").is_err());
        assert_eq!(parameter(r#"form-data; name="a\"b;c"; filename="d""#, "filename").as_deref(), Some("d"));
        assert_eq!(parameter(r#"form-data; name="open"#, "name").as_deref(), Some("open"));
    }

    proptest! {
        #[test]
        fn contents_survive_any_cut(
            contents in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'X'), any::<u8>()], 0..200), 0..4),
            cuts in prop::collection::vec(1usize..50, 1..20),
        ) {
            prop_assume!(contents.iter().all(|content| find(content, b"\r\n--XX").is_none()));
            let mut body = Vec::new();
            for content in &contents {
                body.extend_from_slice(b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n");
                body.extend_from_slice(content);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"--XX--\r\n");
            // A content may end in what the delimiter begins with, and then the first one found is not the real one.
            prop_assume!(contents.iter().all(|content| find(&[content, &b"\r\n--XX"[..]].concat(), b"\r\n--XX") == Some(content.len())));
            let (form, over) = read(&body, &cuts).unwrap();
            prop_assert!(over);
            prop_assert_eq!(form.into_iter().map(|part| part.2).collect::<Vec<_>>(), contents);
        }

        #[test]
        fn garbage_is_survived(body in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'X'), any::<u8>()], 0..300), cut in 1usize..40) {
            let body = [b"--XX\r\n", &body[..]].concat();
            let _ = read(&body, &[cut]);
        }
    }
}

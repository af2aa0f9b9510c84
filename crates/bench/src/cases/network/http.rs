//! The least HTTP/1.1 that a measurement needs: one connection, one request after the other, lengths that are said.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};

use super::{CHUNK, read_over};

/// No answer's head is near this.
const HEAD: u64 = 64 << 10;

pub(super) struct Http<S> {
    stream: BufReader<S>,
    host: String,
    buffer: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http<S> {
    pub(super) fn new(stream: S, host: String) -> Self {
        Self { stream: BufReader::with_capacity(CHUNK, stream), host, buffer: vec![b'x'; CHUNK] }
    }

    /// Gets a page of so many bytes.
    pub(super) async fn get(&mut self, bytes: usize) -> io::Result<()> {
        let request = format!("GET /{bytes} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        self.answer(bytes).await
    }

    /// Sends so many bytes, and waits for the answer.
    pub(super) async fn post(&mut self, bytes: usize) -> io::Result<()> {
        let head = format!("POST /0 HTTP/1.1\r\nHost: {}\r\nContent-Length: {bytes}\r\n\r\n", self.host);
        self.stream.get_mut().write_all(head.as_bytes()).await?;
        let mut left = bytes;
        while left > 0 {
            let most = left.min(CHUNK);
            self.stream.get_mut().write_all(&self.buffer[..most]).await?;
            left -= most;
        }
        self.answer(0).await
    }

    async fn answer(&mut self, expected: usize) -> io::Result<()> {
        let (mut head, mut bounded) = (String::new(), (&mut self.stream).take(HEAD));
        while !head.ends_with("\r\n\r\n") {
            if bounded.read_line(&mut head).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let length = length(&head);
        if !head.starts_with("HTTP/1.1 200") || length != Some(expected) {
            return Err(io::Error::other(format!("an unexpected answer: {}", head.trim_end())));
        }
        read_over(&mut self.stream, &mut self.buffer, expected).await
    }
}

fn length(head: &str) -> Option<usize> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answered(answer: &'static [u8], bytes: usize) -> io::Result<()> {
        let (near, mut far) = tokio::io::duplex(1024);
        let write = async {
            far.write_all(answer).await.expect("there is room");
            far.shutdown().await.expect("it can be closed");
        };
        let mut http = Http::new(near, "x".into());
        tokio::join!(http.answer(bytes), write).0
    }

    #[tokio::test]
    async fn an_answer_has_the_length_that_was_asked_for() {
        assert!(answered(b"HTTP/1.1 200 OK\r\nX: y\r\ncontent-LENGTH: 3\r\n\r\nabc", 3).await.is_ok());
        assert!(answered(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", 3).await.is_err());
        assert!(answered(b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nabc", 3).await.is_err());
        for cut in [&b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"[..], b"HTTP/1.1 200 OK\r\n", b""] {
            assert!(answered(cut, 3).await.is_err());
        }
    }
}

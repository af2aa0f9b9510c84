//! Connections to the outside, which a stop keeps and a save ends.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::lab::{self, GvisorLab};
use crate::probe::{ask, connect, started};

const SOON: Duration = Duration::from_secs(20);

/// A line to the program that stays.
struct Line(BufReader<TcpStream>);

impl Line {
    async fn open(lab: &GvisorLab) -> Self {
        let mut line = Self(BufReader::new(connect(lab).await));
        line.0.write_all(b"{\"op\":\"lines\"}\n").await.expect("it is open");
        assert_eq!(line.say("first").await.as_deref(), Ok("again first\n"));
        line
    }

    async fn say(&mut self, word: &str) -> Result<String, std::io::ErrorKind> {
        let mut said = String::new();
        let exchange = async {
            self.0.write_all(format!("{word}\n").as_bytes()).await?;
            self.0.read_line(&mut said).await
        };
        match tokio::time::timeout(SOON, exchange).await.expect("it does not hang") {
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof),
            Ok(_) => Ok(said),
            Err(error) => Err(error.kind()),
        }
    }

    /// Whether it ends, without a word from us.
    async fn ends(&mut self) -> bool {
        let mut said = String::new();
        let read = tokio::time::timeout(SOON, self.0.read_line(&mut said)).await;
        read.is_ok_and(|read| matches!(read, Ok(0) | Err(_)))
    }
}

/// What the program saw of its end of the line.
async fn inside(lab: &GvisorLab) -> String {
    let seen = async {
        loop {
            let said = ask(lab, json!({"op": "line"})).await.expect("it answers");
            match said.as_str() {
                Some("open") => tokio::time::sleep(Duration::from_millis(20)).await,
                Some(end) => return end.to_owned(),
                None => panic!("there was no line"),
            }
        }
    };
    tokio::time::timeout(SOON, seen).await.expect("it does not hang inside")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_without_a_save_keeps_them() {
    let lab = lab::open().await;
    let (_sandbox, engine, guest) = started(&lab, "stop").await;
    let mut line = Line::open(&lab).await;
    for _ in 0..3 {
        engine.pause().await.expect("it stops");
        tokio::time::sleep(Duration::from_millis(300)).await;
        engine.resume().await.expect("it goes on");
        assert_eq!(line.say("word").await.as_deref(), Ok("again word\n"));
    }
    guest.health(SOON).await.expect("the host's own is kept too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_ends_them_at_once() {
    let lab = lab::open().await;
    let (mut sandbox, engine, guest) = started(&lab, "save").await;
    let mut line = Line::open(&lab).await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    assert!(line.ends().await, "the other end is told while it stands still");
    // Called off: inside it is over too, and a new one works.
    let guest = sandbox.go(&*engine).await;
    assert_ne!(inside(&lab).await, "open");
    let mut line = Line::open(&lab).await;
    drop(image);
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(1)).await;
    assert!(line.ends().await, "again");
    sandbox.end(&*engine).await;
    let engine = sandbox.wake(&sandbox.checkpoint(1), &image).await.expect("can be woken");
    let _guest = sandbox.go(&*engine).await;
    assert_ne!(inside(&lab).await, "open");
    Line::open(&lab).await;
}

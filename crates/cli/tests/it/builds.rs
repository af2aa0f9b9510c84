//! Templates by the command line, against a server that says what the test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::run::{Ended, end, wakeful};

/// What a request was: its first line and its body.
type Asked = (String, Vec<u8>);

/// A server whose answers are written down; it ends with the test.
struct Stub {
    url: String,
    asked: Receiver<Asked>,
    _thread: JoinHandle<()>,
}

/// An answer: status, body, and whether the body is all of it. One that is not goes on until the caller hangs up.
struct Answer(u16, String, bool);

fn json_answer(status: u16, value: &Value) -> Answer {
    Answer(status, value.to_string(), true)
}

impl Stub {
    fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (send, asked) = channel();
        let answer = Arc::new(answer);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, send) = (Arc::clone(&answer), send.clone());
                std::thread::spawn(move || serve(stream, &*answer, &send));
            }
        });
        Self { url, asked, _thread: thread }
    }

    fn run(&self, args: &[&str]) -> Ended {
        let home = tempfile::tempdir().unwrap();
        end(&mut wakeful(home.path(), &[&["--api-url", &self.url], args].concat()))
    }

    /// The request that begins like this, among those that came.
    fn asked(&self, line: &str) -> Vec<u8> {
        let came: Vec<Asked> = self.asked.try_iter().collect();
        let found = came.iter().find(|(asked, _)| asked.starts_with(line));
        found.unwrap_or_else(|| panic!("{line}: {:?}", came.iter().map(|(line, _)| line).collect::<Vec<_>>())).1.clone()
    }
}

fn serve(stream: TcpStream, answer: &(dyn Fn(&str) -> Answer + Send + Sync), asked: &Sender<Asked>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let header = header.trim_end().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(text) = header.strip_prefix("content-length: ") {
            length = text.parse().unwrap();
        }
        chunked |= header == "transfer-encoding: chunked";
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    while chunked {
        let mut size = String::new();
        reader.read_line(&mut size).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut piece = vec![0; size + 2];
        reader.read_exact(&mut piece).unwrap();
        body.extend_from_slice(&piece[..size]);
        chunked = size > 0;
    }
    let line = line.trim_end().to_owned();
    let Answer(status, text, whole) = answer(&line);
    let _ = asked.send((line, body));
    let mut stream = stream;
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    let _ = match whole {
        true => write!(stream, "{head}content-length: {}\r\n\r\n{text}", text.len()),
        false => write!(stream, "{head}\r\n{text}").and_then(|()| reader.read(&mut [0]).map(drop)),
    };
}

const ID: &str = "tpl_k3v7q2m5x6a4b2c7d5ef";

fn template(status: &str, build_error: &Value) -> Value {
    json!({
        "id": ID, "name": "shop", "tags": [], "description": "", "status": status, "build_error": build_error,
        "source": {"kind": "image", "reference": "shop:1", "upload": null}, "user": "root", "workdir": "/",
        "env_keys": [], "default_size": "shared-cpu-1x",
        "egress": {"mode": "allow_all", "allow_cidrs": [], "deny_cidrs": [], "allow_ports": [], "allow_domains": []},
        "disk_mb": null, "io": {}, "entry": null, "base": null, "disk_bytes": 0,
        "created_at": "2026-04-05T14:30:00.000Z", "built_at": null
    })
}

fn progress(second: u32, step: &str, line: Option<&str>, layer: &Value) -> String {
    let at = format!("2026-04-05T14:30:{second:02}.000Z");
    json!({"type": "progress", "at": at, "step": step, "fraction": null, "line": line, "layer": layer}).to_string()
        + "\n"
}

fn last(status: &str) -> String {
    json!({"type": "end", "status": status, "build_error": null}).to_string() + "\n"
}

fn log(end: &str) -> String {
    let layer = json!({"number": 1, "count": 2, "digest": "4f53cda18c2b", "done": 31_000_000, "total": 31_000_000});
    [
        progress(0, "wait", None, &Value::Null),
        progress(1, "pull", Some("shop:1"), &Value::Null),
        progress(2, "pull", None, &layer),
        progress(3, "[2/3] RUN make", Some("\u{1b}[31mcc: not found\u{1b}[0m"), &Value::Null),
        end.to_owned(),
    ]
    .concat()
}

#[test]
fn a_build_is_shown_to_its_end() {
    let server = Stub::start(|line| match line {
        _ if line.starts_with("POST /v1/templates ") => json_answer(202, &template("pending", &Value::Null)),
        _ if line.contains("/logs?follow=true") => Answer(200, log(&last("ready")), true),
        _ => json_answer(200, &template("ready", &Value::Null)),
    });
    let ended = server.run(&["template", "create", "shop", "--image", "shop:1", "--start", "serve"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "shop\n"), "{}", ended.stderr);
    insta::assert_snapshot!(ended.stderr, @r"
    wait
    pull
      shop:1
      layer 1/2 4f53cda18c2b 31.00 MB
    [2/3] RUN make
      cc: not found
    template shop is ready
    ");
    let asked: Value = serde_json::from_slice(&server.asked("POST /v1/templates ")).unwrap();
    assert_eq!(asked, json!({"name": "shop", "source": {"kind": "image", "reference": "shop:1"}, "start": "serve"}));
    let begun = server.run(&["template", "create", "shop", "--image", "shop:1", "--no-wait"]);
    assert_eq!((begun.code, begun.stdout, begun.stderr), (0, format!("{ID}\n"), String::new()));
    let document = server.run(&["--json", "template", "rebuild", "shop", "-q"]);
    let document: Value = serde_json::from_str(&document.stdout).expect("one document");
    assert_eq!(document["status"], "ready");
}

#[test]
fn a_build_that_fails_says_where() {
    let error = json!({"step": "RUN make", "line": 7, "detail": "the command ended with 2\ncc: not found\nmake: stop"});
    let answered = error.clone();
    let server = Stub::start(move |line| match line {
        _ if line.starts_with("POST ") => json_answer(202, &template("pending", &Value::Null)),
        _ if line.contains("/logs?") => Answer(200, log(&last("failed")), true),
        // What was built once is ready still.
        _ if line.contains("/v1/templates/shop") => json_answer(200, &template("ready", &answered)),
        _ => json_answer(200, &template("failed", &answered)),
    });
    for flags in [&["-q"][..], &[]] {
        let ended = server.run(&[&["template", "create", "shop", "--image", "shop:1"], flags].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""));
        let why = "error: template shop was not built: RUN make: the command ended with 2 (line 7)\n\nhint: `wakeful template logs shop`";
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
        // What it said is there once: as it came, or at the end.
        assert_eq!(ended.stderr.matches("cc: not found").count(), 1, "{}", ended.stderr);
        assert_eq!(ended.stderr.contains("make: stop"), flags == ["-q"], "{}", ended.stderr);
    }
    let shown = server.run(&["template", "show", "shop"]);
    assert!(shown.stdout.contains("RUN make: the command ended with 2 (line 7)\n"), "{}", shown.stdout);
}

#[test]
fn a_log_that_breaks_off_is_read_again() {
    let times = Mutex::new(0);
    let server = Stub::start(move |line| {
        let mut times = times.lock().unwrap();
        match line {
            _ if line.starts_with("POST ") => json_answer(202, &template("pending", &Value::Null)),
            _ if line.contains("/logs?") => {
                *times += 1;
                match *times {
                    // The server goes down: the log ends, and the build has not.
                    1 => Answer(200, log(&last("building")), true),
                    2 => Answer(503, json!({"type": "about:blank", "title": "x", "status": 503, "code": "shutting_down", "detail": "x", "hint": null, "field": null, "request_id": "r"}).to_string(), true),
                    _ => Answer(200, log(&(progress(9, "ready", None, &Value::Null) + &last("ready"))), true),
                }
            }
            _ if *times < 3 => json_answer(200, &template("building", &Value::Null)),
            _ => json_answer(200, &template("ready", &Value::Null)),
        }
    });
    let ended = server.run(&["template", "rebuild", "shop"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("cc: not found").count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.ends_with("ready\ntemplate shop is ready\n"), "{}", ended.stderr);
}

#[test]
fn to_stop_looking_is_not_to_stop_the_build() {
    let server = Stub::start(|line| match line {
        _ if line.starts_with("POST ") => json_answer(202, &template("pending", &Value::Null)),
        _ if line.contains("/logs?") => Answer(200, log(""), false),
        _ => json_answer(200, &template("building", &Value::Null)),
    });
    let home = tempfile::tempdir().unwrap();
    let args = ["--api-url", &server.url, "template", "create", "shop", "--image", "shop:1"];
    let mut child = wakeful(home.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("cc: not found")), "it follows");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let said = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(
        said.contains("the build of shop goes on in the server") && said.contains("`wakeful template cancel shop`"),
        "{said}"
    );
}

#[test]
fn a_context_is_sent_without_what_is_hidden() {
    let server = Stub::start(|line| match line {
        _ if line.starts_with("POST /v1/uploads") => {
            json_answer(201, &json!({"id": "upl_k3v7q2m5x6a4b2c7d5ef", "bytes": 10240, "digest": "0"}))
        }
        _ => json_answer(202, &template("pending", &Value::Null)),
    });
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("Dockerfile", "FROM scratch\nCOPY . /\n");
    write("kept", "this is kept");
    write("secret", "this is a secret");
    write(".dockerignore", "secret\n");
    write(
        "wakeful-template.toml",
        "name = \"shop\"\nready_timeout = \"40s\"\n[io]\nops_per_sec = 100\nops_burst = 200\n",
    );
    let context = dir.path().to_str().unwrap();
    let ended = server.run(&["template", "create", "--dockerfile", context, "--build-arg", "A=1", "--no-wait"]);
    assert_eq!((ended.code, ended.stdout), (0, format!("{ID}\n")), "{}", ended.stderr);
    let came: Vec<Asked> = server.asked.try_iter().collect();
    let [(upload, tar), (create, body)] = came.as_slice() else { panic!("{}", came.len()) };
    assert!(upload.starts_with("POST /v1/uploads ") && create.starts_with("POST /v1/templates "));
    let has = |text: &str| tar.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("this is kept") && has("COPY . /") && !has("this is a secret"));
    assert_eq!(
        serde_json::from_slice::<Value>(body).unwrap(),
        json!({
            "name": "shop", "ready_timeout": "40s", "io": {"ops_per_sec": 100, "burst_ops": 200, "bandwidth_mbps": null, "burst_mbps": null},
            "source": {"kind": "dockerfile", "upload": "upl_k3v7q2m5x6a4b2c7d5ef", "dockerfile": "Dockerfile", "build_args": {"A": "1"}},
        })
    );
}

#[test]
fn a_refused_upload_says_why() {
    let problem = json!({"type": "about:blank", "title": "x", "status": 413, "code": "body_too_large",
        "detail": "an upload may have 1000 bytes, and this one has more", "hint": null, "field": null, "request_id": "r"});
    let server = Stub::start(move |_| json_answer(413, &problem));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), vec![7; 2_000_000]).unwrap();
    let ended = server.run(&["template", "create", "x", "--rootfs", dir.path().to_str().unwrap()]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.starts_with("error: an upload may have 1000 bytes"), "{}", ended.stderr);
}

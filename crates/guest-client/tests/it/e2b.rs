//! The same services as E2B's clients call them: nothing of ours in the answers, their error codes, their forms.

use std::fs;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use tokio::time::timeout;
use wakeful_guest_client::proto::connect_rpc::{Decoder, message_frame};
use wakeful_guest_client::{Guest, full};

use crate::agent::{Agent, SOON};

async fn call(guest: &Guest, method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Response<Vec<u8>> {
    let mut request = Request::builder().method(method).uri(format!("http://agent{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(full(body)).expect("a request");
    let response = timeout(SOON, guest.request(request)).await.expect("in time").expect("an answer");
    let (head, body) = response.into_parts();
    let body = timeout(SOON, Limited::new(body, 1 << 20).collect()).await.expect("in time").expect("a body");
    Response::from_parts(head, body.to_bytes().to_vec())
}

async fn unary(guest: &Guest, method: &str, message: Value) -> (StatusCode, Value) {
    let headers = [("content-type", "application/json"), ("connect-protocol-version", "1")];
    let answer = call(guest, Method::POST, method, &headers, message.to_string().into_bytes()).await;
    (answer.status(), serde_json::from_slice(answer.body()).expect("JSON"))
}

async fn stream(guest: &Guest, method: &str, message: Value, headers: &[(&str, &str)]) -> Vec<Value> {
    let mut all = vec![("content-type", "application/connect+json"), ("connect-protocol-version", "1")];
    all.extend_from_slice(headers);
    let answer = call(guest, Method::POST, method, &all, message_frame(message.to_string().as_bytes())).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "application/connect+json");
    let mut decoder = Decoder::default();
    decoder.feed(answer.body());
    let mut messages = Vec::new();
    while let Some(frame) = decoder.frame().expect("a frame") {
        messages.push(serde_json::from_slice(&frame.payload).expect("JSON"));
    }
    assert!(decoder.ended() && decoder.finish().is_ok());
    messages
}

#[tokio::test]
async fn a_command_as_the_sdk_runs_it() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let start = json!({"process": {"cmd": "/bin/sh", "args": ["-c", "echo hi; exit 3"], "cwd": "/"}, "stdin": false});
    let headers =
        [("keepalive-ping-interval", "50"), ("connect-timeout-ms", "20000"), ("authorization", "Basic bm9ib2R5Og==")];
    let messages = stream(&guest, "/process.Process/Start", start, &headers).await;
    let pid = messages[0]["event"]["start"]["pid"].as_u64().expect("a pid");
    assert_eq!(messages[0], json!({"event": {"start": {"pid": pid}}}));
    assert_eq!(messages[1], json!({"event": {"data": {"stdout": "aGkK"}}}));
    let end = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
    assert_eq!(messages[2], json!({"event": {"end": end}}));
    assert_eq!(messages[3..], [json!({})]);

    let again = stream(&guest, "/process.Process/Connect", json!({"process": {"pid": pid}}), &[]).await;
    assert_eq!(again, [messages[0].clone(), messages[2].clone(), json!({})]);
    let selector = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    let (status, error) = unary(&guest, "/process.Process/SendSignal", selector).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(error, json!({"code": "not_found", "message": format!("process with pid {pid} not found")}));
}

#[tokio::test]
async fn errors_of_streams_are_in_the_end_frame() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let start = |cwd: &str| json!({"process": {"cmd": "true", "cwd": cwd}});
    let messages = stream(&guest, "/process.Process/Start", start("/no/such"), &[]).await;
    let error = json!({"code": "invalid_argument", "message": "cwd '/no/such' does not exist"});
    assert_eq!(messages, [json!({"error": error})]);
    // "nosuch:"
    let messages =
        stream(&guest, "/process.Process/Start", start("/"), &[("authorization", "Basic bm9zdWNoOg==")]).await;
    assert_eq!(messages, [json!({"error": {"code": "unauthenticated", "message": "invalid username: 'nosuch'"}})]);
    let watch = |path: &str| stream(&guest, "/filesystem.Filesystem/WatchDir", json!({"path": path}), &[]);
    assert_eq!(watch("/no/such").await[0]["error"]["code"], "not_found");
    let messages = watch("/etc/passwd").await;
    let error = json!({"code": "invalid_argument", "message": "path is not a directory: /etc/passwd"});
    assert_eq!(messages, [json!({"error": error})]);
    for method in ["GetWatcherEvents", "RemoveWatcher"] {
        let (status, error) =
            unary(&guest, &format!("/filesystem.Filesystem/{method}"), json!({"watcherId": "x"})).await;
        assert_eq!((status, &error["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
    }
    let (status, error) = unary(&guest, "/process.Process/SendSignal", json!({"process": {}})).await;
    assert_eq!((status, &error["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_argument")));
}

#[tokio::test]
async fn entries_follow_links_and_lists_have_depth() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = agent.directory().join("w");
    let path = directory.display();
    fs::create_dir_all(directory.join("b/c")).expect("directories");
    fs::write(directory.join("b/c/d"), "12345").expect("a file");
    std::os::unix::fs::symlink("b/c/d", directory.join("a")).expect("a link");
    let (_, stat) = unary(&guest, "/filesystem.Filesystem/Stat", json!({"path": format!("{path}/a")})).await;
    let entry = &stat["entry"];
    assert_eq!(
        (&entry["type"], &entry["size"], &entry["permissions"]),
        (&json!("FILE_TYPE_FILE"), &json!("5"), &json!("-rw-r--r--"))
    );
    assert_eq!(entry["symlinkTarget"], json!(format!("{path}/b/c/d")));
    assert!(entry.get("native").is_none(), "{entry}");
    let (_, list) =
        unary(&guest, "/filesystem.Filesystem/ListDir", json!({"path": path.to_string(), "depth": 2})).await;
    let names: Vec<_> = list["entries"].as_array().expect("a list").iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let (status, error) = unary(&guest, "/filesystem.Filesystem/Stat", json!({"path": "/no/such"})).await;
    assert_eq!((status, error.get("wakefulCode")), (StatusCode::NOT_FOUND, None));
}

#[tokio::test]
async fn forms_write_each_file_at_its_own_path() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = agent.directory().join("w");
    let path = directory.display();
    let part = |name: &str, content: &str| {
        format!(
            "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{path}/{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n{content}\r\n"
        )
    };
    let headers = [("content-type", "multipart/form-data; boundary=B")];
    let body = format!(
        "{}--B\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\nignored\r\n{}--B--\r\n",
        part("one", "1\r\n"),
        part("sub/two", "")
    );
    let answer = call(&guest, Method::POST, "/files?username=nobody", &headers, body.into_bytes()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let written: Value = serde_json::from_slice(answer.body()).expect("JSON");
    let expected = |name: &str, last: &str| json!({"path": format!("{path}/{name}"), "name": last, "type": "file"});
    assert_eq!(written, json!([expected("one", "one"), expected("sub/two", "two")]));
    assert_eq!(fs::read(directory.join("one")).expect("is there"), b"1\r\n");
    // One path for one file, by the query.
    let target = format!("/files?path={path}/three");
    let body = format!("{}--B--", part("elsewhere", "3")).into_bytes();
    assert_eq!(call(&guest, Method::POST, &target, &headers, body).await.status(), StatusCode::OK);
    assert_eq!(fs::read(directory.join("three")).expect("is there"), b"3");
    // Without its end, or twice the same.
    let cut = part("four", "4").into_bytes();
    let twice = format!("{}{}--B--", part("five", "5"), part("five", "6")).into_bytes();
    for body in [cut, twice] {
        assert_eq!(call(&guest, Method::POST, "/files", &headers, body).await.status(), StatusCode::BAD_REQUEST);
    }
    let raw = call(&guest, Method::POST, &format!("/files?path={path}/raw"), &[], b"raw".to_vec()).await;
    assert_eq!(raw.status(), StatusCode::OK);
    let read = call(&guest, Method::GET, &format!("/files?path={path}/raw"), &[], Vec::new()).await;
    assert_eq!((read.status(), read.body().as_slice()), (StatusCode::OK, &b"raw"[..]));
    let mut names: Vec<_> =
        fs::read_dir(&directory).expect("is there").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["five", "one", "raw", "sub", "three"]);
    let missing = call(&guest, Method::GET, "/files?path=/no/such", &[], Vec::new()).await;
    let error: Value = serde_json::from_slice(missing.body()).expect("JSON");
    assert_eq!(
        (missing.status(), &error["code"], error.get("wakefulCode")),
        (StatusCode::NOT_FOUND, &json!(404), None)
    );
}

#[tokio::test]
async fn a_watcher_is_asked_for_its_events() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = agent.directory().join("w");
    fs::create_dir(&directory).expect("a directory");
    let path = directory.display().to_string();
    let request = json!({"path": path, "recursive": true, "includeEntry": true});
    let (status, watcher) = unary(&guest, "/filesystem.Filesystem/CreateWatcher", request).await;
    assert_eq!(status, StatusCode::OK);
    let events = async || unary(&guest, "/filesystem.Filesystem/GetWatcherEvents", watcher.clone()).await.1;
    assert_eq!(events().await, json!({"events": []}));
    // One new file by an upload: exactly three, as their own server would tell.
    let uploaded = call(&guest, Method::POST, &format!("/files?path={path}/a"), &[], b"raw".to_vec()).await;
    assert_eq!(uploaded.status(), StatusCode::OK);
    let told = events().await;
    let kinds: Vec<_> = told["events"].as_array().expect("a list").iter().map(|e| (&e["name"], &e["type"])).collect();
    let name = &json!("a");
    let [create, chmod, write] = ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"].map(|kind| json!(kind));
    assert_eq!(kinds, [(name, &create), (name, &chmod), (name, &write)]);
    assert_eq!(told["events"][2]["entry"]["size"], "3");
    assert!(told["events"][2]["entry"].get("native").is_none(), "{told}");
    let made = json!({"path": format!("{path}/new")});
    unary(&guest, "/filesystem.Filesystem/MakeDir", made.clone()).await;
    fs::write(directory.join("new/file"), "").expect("a file");
    unary(&guest, "/filesystem.Filesystem/Remove", json!({"path": format!("{path}/a")})).await;
    let told = events().await["events"].as_array().expect("a list").clone();
    let has = |name: &str, kind: &str| told.iter().any(|e| e["name"] == name && e["type"] == kind);
    assert!(has("new", "EVENT_TYPE_CREATE") && has("new/file", "EVENT_TYPE_CREATE"), "{told:?}");
    let removed = json!({"name": "a", "type": "EVENT_TYPE_REMOVE"});
    assert!(told.contains(&removed), "{told:?}");
    let (status, _) = unary(&guest, "/filesystem.Filesystem/RemoveWatcher", watcher.clone()).await;
    assert_eq!(status, StatusCode::OK);
    let (status, _) = unary(&guest, "/filesystem.Filesystem/GetWatcherEvents", watcher.clone()).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn watches_are_counted() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let request = json!({"path": agent.directory().display().to_string()});
    let create = async || unary(&guest, "/filesystem.Filesystem/CreateWatcher", request.clone()).await;
    let (_, first) = create().await;
    let mut made = 1;
    let refused = loop {
        let (status, answer) = create().await;
        if status != StatusCode::OK {
            break answer;
        }
        made += 1;
        assert!(made < 1000, "there is no end");
    };
    assert_eq!(refused["code"], "resource_exhausted");
    unary(&guest, "/filesystem.Filesystem/RemoveWatcher", first).await;
    assert_eq!(create().await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_upload_may_be_compressed() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let path = agent.directory().join("plain");
    let content = b"compressed ".repeat(100_000);
    let compressed = {
        use std::io::Write as _;
        let mut command = std::process::Command::new("gzip");
        command.arg("-c").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("gzip");
        let mut input = child.stdin.take().expect("a pipe");
        let feeding = std::thread::spawn({
            let content = content.clone();
            move || input.write_all(&content)
        });
        let output = child.wait_with_output().expect("gzip").stdout;
        feeding.join().expect("no panic").expect("written");
        output
    };
    let target = format!("/files?path={}", path.display());
    let headers = [("content-type", "application/octet-stream"), ("content-encoding", "gzip")];
    let answer = call(&guest, Method::POST, &target, &headers, compressed.clone()).await;
    assert_eq!(answer.status(), StatusCode::OK, "{}", String::from_utf8_lossy(answer.body()));
    assert!(fs::read(&path).expect("is there") == content);
    // Cut off, damaged, or with something behind it: refused, and what was there stays.
    let mut damaged = compressed.clone();
    damaged[40] ^= 0xff;
    let cut = compressed[..compressed.len() - 9].to_vec();
    for bad in [damaged, cut, b"not gzip at all".to_vec()] {
        let answer = call(&guest, Method::POST, &target, &headers, bad).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    }
    let unknown = [("content-encoding", "br")];
    assert_eq!(call(&guest, Method::POST, &target, &unknown, Vec::new()).await.status(), StatusCode::BAD_REQUEST);
    assert!(fs::read(&path).expect("is there") == content);
    assert_eq!(fs::read_dir(agent.directory()).expect("a directory").count(), 3, "secret, socket and the file");
}

//! Files in and out, streamed.

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use wakeful_testkit::Daemon;

use crate::support::{create, sh};

fn url(daemon: &Daemon, id: &str, path: &str) -> String {
    format!("{}/v1/sandboxes/{id}/files{path}", daemon.url())
}

#[tokio::test]
async fn a_file_comes_back_as_it_went() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let http = reqwest::Client::new();
    let bytes: Vec<u8> = (0..20_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();

    let answer = http.put(url(&daemon, &id, "/home/user/deep/er/data%20file")).body(bytes.clone()).send().await?;
    ensure!(answer.status() == 200, "{}", answer.text().await?);
    let answer: Value = answer.json().await?;
    ensure!(
        answer["path"] == "/home/user/deep/er/data file" && answer["size"] == bytes.len() && answer["type"] == "file",
        "{answer}"
    );
    let digest = sh(&client, &id, "cd ~/deep/er; stat -c '%U %a' .. . 'data file'; md5sum < 'data file'").await?;
    ensure!(digest.starts_with("user 755\nuser 755\nuser 644\n"), "{digest}");

    let back = http.get(url(&daemon, &id, "/home/user/deep/er/data%20file")).send().await?;
    ensure!(
        back.headers()["content-length"] == "20000000" && back.headers().contains_key("last-modified"),
        "{:?}",
        back.headers()
    );
    ensure!(back.headers()["content-type"] == "application/octet-stream");
    let mut body = back.bytes_stream();
    let mut at = 0;
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        ensure!(bytes[at..at + chunk.len()] == chunk[..], "differs near {at}");
        at += chunk.len();
    }
    ensure!(at == bytes.len());

    let part =
        http.get(url(&daemon, &id, "/home/user/deep/er/data%20file")).header("range", "bytes=10-19").send().await?;
    ensure!(part.status() == 206 && part.bytes().await?[..] == bytes[10..20]);
    // The other forms of a range, one that is outside, several (the whole file is an allowed answer), and one of a file
    // that has changed since.
    let file = url(&daemon, &id, "/home/user/deep/er/data%20file");
    let ranged = async |range: &str, if_range: Option<&str>| -> Result<reqwest::Response> {
        let request = http.get(&file).header("range", range);
        Ok(if_range.into_iter().fold(request, |request, date| request.header("if-range", date)).send().await?)
    };
    let last = ranged("bytes=-5", None).await?;
    ensure!(last.status() == 206 && last.headers()["content-range"] == "bytes 19999995-19999999/20000000");
    let modified = last.headers()["last-modified"].to_str()?.to_owned();
    ensure!(last.bytes().await?[..] == bytes[19_999_995..]);
    let open = ranged("bytes=19999990-", Some(&modified)).await?;
    ensure!(open.status() == 206 && open.headers()["content-length"] == "10");
    let outside = ranged("bytes=20000000-", None).await?;
    ensure!(outside.status() == 416 && outside.headers()["content-range"] == "bytes */20000000");
    ensure!(outside.json::<Value>().await?["field"] == "Range");
    for (range, if_range) in [
        ("bytes=0-1,5-6", None),
        ("bytes=0-9", Some("Sun, 05 Apr 2026 14:30:00 GMT")),
        ("bytes=20000000-", Some("\"an-etag\"")),
    ] {
        let whole = ranged(range, if_range).await?;
        ensure!(whole.status() == 200 && whole.headers()["content-length"] == "20000000", "{range}");
    }
    let head = http.head(url(&daemon, &id, "/home/user/deep/er/data%20file")).send().await?;
    ensure!(head.status() == 200 && head.headers()["content-length"] == "20000000");

    // Over an existing file, executable, as root.
    let again = http
        .put(url(&daemon, &id, "/home/user/deep/er/data%20file?mode=0755&user=root"))
        .body("#!/bin/sh\necho ran")
        .send()
        .await?;
    ensure!(again.status() == 200, "{}", again.text().await?);
    ensure!(sh(&client, &id, "~/deep/er/'data file'; stat -c '%U %a' ~/deep/er/'data file'").await? == "ran\nroot 755");
    Ok(())
}

#[tokio::test]
async fn directories_are_listed_moved_and_removed() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let http = reqwest::Client::new();
    sh(&client, &id, "mkdir -p d/sub; echo hello > d/b; ln -s b d/a; mkfifo d/f; touch -d '2026-04-05T14:30:00Z' d/b")
        .await?;

    let list: Value = http.get(url(&daemon, &id, "/home/user/d?list=true")).send().await?.json().await?;
    let entries = list["entries"].as_array().expect("entries");
    let names: Vec<_> =
        entries.iter().map(|e| (e["name"].as_str().unwrap_or(""), e["type"].as_str().unwrap_or(""))).collect();
    ensure!(names == [("a", "symlink"), ("b", "file"), ("f", "other"), ("sub", "directory")], "{list}");
    ensure!(
        entries[1]["size"] == 6
            && entries[1]["mode"] == "0644"
            && entries[1]["owner"] == "user"
            && entries[1]["target"].is_null(),
        "{list}"
    );
    ensure!(entries[1]["modified"] == "2026-04-05T14:30:00.000Z" && entries[0]["target"] == "b", "{list}");

    let root: Value = http.get(url(&daemon, &id, "/?list=true")).send().await?.json().await?;
    ensure!(root["entries"].as_array().is_some_and(|all| all.iter().any(|e| e["name"] == "home")), "{root}");
    let stat: Value = http.get(url(&daemon, &id, "/home/user/d/b?stat=true")).send().await?.json().await?;
    ensure!(stat["name"] == "b" && stat["type"] == "file", "{stat}");

    let link: Value = http.get(url(&daemon, &id, "/home/user/d/a?stat=true")).send().await?.json().await?;
    ensure!(link["type"] == "symlink" && link["target"] == "b" && link.get("entries").is_none(), "{link}");
    let head = http.head(url(&daemon, &id, "/home/user/d")).send().await?;
    ensure!(head.status() == 400, "a directory has no content");
    ensure!(http.head(url(&daemon, &id, "/home/user/none")).send().await?.status() == 404);

    let made = http.post(url(&daemon, &id, "/home/user/new/dir?mkdir=true")).send().await?;
    ensure!(made.status() == 201, "{}", made.text().await?);
    let moved = http.post(url(&daemon, &id, "/home/user/d/b?move_to=/home/user/new/dir/c")).send().await?;
    ensure!(moved.status() == 200, "{}", moved.text().await?);
    let moved: Value = moved.json().await?;
    ensure!(moved["name"] == "c" && moved["type"] == "file" && moved["size"] == 6, "{moved}");
    ensure!(sh(&client, &id, "cat new/dir/c; stat -c %U new").await? == "hello\nuser");
    // Parents that a move makes are for whom one says; a name with a space and a plus survives the query.
    let to = url(&daemon, &id, "/home/user/new/dir/c?move_to=/home/user/new/by%20root/d%2Be&user=root");
    ensure!(http.post(to).send().await?.status() == 200);
    ensure!(sh(&client, &id, "stat -c %U 'new/by root' 'new/by root/d+e'").await? == "root\nuser");
    let again = http.post(url(&daemon, &id, "/home/user/d/b?move_to=/home/user/x")).send().await?;
    ensure!(again.status() == 404, "{}", again.text().await?);
    let relative = http.post(url(&daemon, &id, "/home/user/d/a?move_to=x")).send().await?;
    ensure!(relative.status() == 400, "{}", relative.text().await?);
    for _ in 0..2 {
        let gone = http.delete(url(&daemon, &id, "/home/user/new")).send().await?;
        ensure!(gone.status() == 204, "{}", gone.text().await?);
    }
    ensure!(sh(&client, &id, "ls ~").await? == "d");
    Ok(())
}

#[tokio::test]
async fn bad_paths_and_sizes_are_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let http = reqwest::Client::new();
    let code = async |answer: reqwest::Response| -> Result<(u16, String)> {
        let status = answer.status().as_u16();
        let body: Value = answer.json().await?;
        Ok((status, body["code"].as_str().unwrap_or_default().to_owned()))
    };
    ensure!(
        code(http.get(url(&daemon, &id, "/home/user/nothing")).send().await?).await? == (404, "path_not_found".into())
    );
    ensure!(code(http.get(url(&daemon, &id, "/home/user")).send().await?).await? == (400, "is_directory".into()));
    ensure!(
        code(http.put(url(&daemon, &id, "/home/user")).body("x").send().await?).await? == (400, "is_directory".into())
    );
    ensure!(
        code(http.get(url(&daemon, &id, "/etc/hostname?list=true")).send().await?).await?
            == (400, "not_a_directory".into())
    );
    // Over the limit: told before the body when its length is known, and nothing remains when it is not.
    let known = http.put(url(&daemon, &id, "/home/user/big")).body(vec![0u8; 104_857_601]).send().await;
    match known {
        Ok(answer) => ensure!(code(answer).await? == (413, "file_too_large".into())),
        // The server may close before it has read a hundred megabytes that it does not want.
        Err(error) => ensure!(error.is_request() || error.is_body(), "{error}"),
    }
    let chunks = futures_util::stream::iter((0..101).map(|_| Ok::<_, std::io::Error>(vec![7u8; 1 << 20])));
    let unknown = http.put(url(&daemon, &id, "/home/user/big")).body(reqwest::Body::wrap_stream(chunks)).send().await;
    match unknown {
        Ok(answer) => ensure!(code(answer).await? == (413, "file_too_large".into())),
        Err(error) => ensure!(error.is_request() || error.is_body(), "{error}"),
    }
    ensure!(sh(&client, &id, "ls -A ~ | grep -c big || true").await? == "0", "something remains");
    // At the limit it fits.
    let most = http.put(url(&daemon, &id, "/home/user/most")).body(vec![1u8; 104_857_600]).send().await?;
    ensure!(most.status() == 200, "{}", most.text().await?);
    ensure!(sh(&client, &id, "stat -c %s ~/most").await? == "104857600");
    Ok(())
}

//! Valid input of every target, to begin with.

use wakeful_guest_proto::connect_rpc::message_frame;

use crate::channel::signed;

pub(crate) fn hello() -> Vec<Vec<u8>> {
    let plain = signed(1).to_vec();
    let late = [&b"old output of a dead session\n"[..], &signed(2), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat();
    let twice = [&signed(3)[..], b"wakeful-channel\n", &signed(4), &signed(5)[..40]].concat();
    vec![plain, late, twice]
}

const EVENTS: [&str; 6] = [
    r#"{"event":{"start":{"pid":214}},"seq":0}"#,
    r#"{"event":{"data":{"stdout":"aGVsbG8K"}},"seq":"1"}"#,
    r#"{"event":{"data":{"pty":"-_8="}},"seq":2}"#,
    r#"{"event":{"gap":{"droppedBytes":"4096"}},"seq":3}"#,
    r#"{"event":{"keepalive":{}}}"#,
    r#"{"event":{"end":{"exitCode":-1,"exited":false,"status":"signal: killed","signal":9,"timedOut":true,"durationMs":"12"}},"seq":4}"#,
];

fn events() -> Vec<u8> {
    let mut bytes: Vec<u8> = EVENTS.iter().flat_map(|event| message_frame(event.as_bytes())).collect();
    // The end frame has its own flag.
    let mut end = message_frame(b"{}");
    end[0] = 2;
    bytes.extend(end);
    bytes
}

pub(crate) fn stream_frames() -> Vec<Vec<u8>> {
    let listing = message_frame(
        br#"{"entries":[{"name":"a","type":"FILE_TYPE_FILE","path":"/a","native":{"kind":"file","size":3,"mode":420,"owner":"root","group":"root","modified_ms":0,"target":null}}]}"#,
    );
    vec![events(), listing.to_vec()]
}

/// `status 0x1f name 0x1f value 0x1f … body`, answers separated by 0x1e.
pub(crate) fn agent_answers() -> Vec<Vec<u8>> {
    let answer = |status: &str, headers: &[(&str, &str)], body: &[u8]| {
        let mut bytes = status.as_bytes().to_vec();
        for (name, value) in headers {
            bytes.push(0x1f);
            bytes.extend(name.as_bytes());
            bytes.push(0x1f);
            bytes.extend(value.as_bytes());
        }
        bytes.push(0x1f);
        bytes.extend(body);
        bytes
    };
    let stream = answer("200", &[("content-type", "application/connect+json")], &events());
    let refusal = answer(
        "404",
        &[("content-type", "application/json")],
        br#"{"code":"not_found","message":"no such file","details":[{"type":"wakeful","value":"path_not_found"}]}"#,
    );
    let document = answer("200", &[("content-type", "application/json")], br#"{"clock_error_us":12,"synced":true}"#);
    let part = answer(
        "206",
        &[("content-range", "bytes 0-9/100"), ("last-modified", "Mon, 16 Nov 2026 00:00:00 GMT")],
        b"0123456789",
    );
    vec![stream.clone(), refusal.clone(), document.clone(), part.clone(), [stream, refusal, document, part].join(&0x1e)]
}

pub(crate) fn request_body() -> Vec<Vec<u8>> {
    [
        r#"{"template":"python","mode":"persistent","idle_timeout":"10m","env":{"A":"b"},"metadata":{"k":"v"}}"#,
        r#"{"template":"python:latest","timeout":300,"size":"shared-cpu-1x","egress":{"mode":"deny_all","allow_cidrs":["10.0.0.0/8"],"allow_ports":[443]}}"#,
        r#"{"template":"base","cpu":2,"memory_mb":512,"disk_mb":4096,"hard_ttl":"1h30m","auto_resume":false,"runtime":"qemu"}"#,
        r#"{"name":"tools","source":{"kind":"debian","suite":"bookworm","packages":["git"]},"default_size":"shared-cpu-1x","env":{}}"#,
        r#"{"egress":{"allow_domains":["*.example.com"],"deny_cidrs":["192.168.0.0/16"]},"template":"x"}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(crate) fn request_target() -> Vec<Vec<u8>> {
    [
        "/v1/sandboxes/sbx_k3v7q2m5x6a4b2c7d5ef/files/home/user/a%20b.txt?list=true",
        "/v1/sandboxes/k3v7q2m5x6a4b2c7d5ef/files/%2e%2e/etc/passwd",
        "/v1/sandboxes?status=running&mode=persistent&metadata.a=1&limit=10&cursor=abc",
        "/v1/sandboxes/sbx_k3v7q2m5x6a4b2c7d5ef/processes/12/output?from=3&follow=true",
        "/v1/templates/python%3Alatest/logs?follow=1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(crate) fn monitor() -> Vec<Vec<u8>> {
    let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}"#;
    let lines = [
        greeting,
        r#"{"return": {}, "id": 1}"#,
        r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "VSERPORT_CHANGE", "data": {"open": true, "id": "agent"}}"#,
        r#"{"return": {"status": "paused", "running": false}, "id": 2}"#,
        r#"{"return": [{"label": "agent", "filename": "disconnected:unix:fd"}], "id": 3}"#,
        r#"{"error": {"class": "GenericError", "desc": "no"}, "id": 4}"#,
        r#"{"return": {"fdset-id": 3, "fd": 9}, "id": 5}"#,
        r#"{"return": {}, "id": 6}"#,
        r#"{"return": {}, "id": 7}"#,
    ];
    vec![lines.join("\r\n").into_bytes(), (lines.join("\n") + "\n").into_bytes(), greeting.as_bytes().to_vec()]
}

pub(crate) fn pages() -> Vec<Vec<u8>> {
    let diff = |entries: &[u32], data_pages: u64| {
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(b"WKDIFF1\n");
        bytes[8..16].copy_from_slice(&(entries.len() as u64).to_le_bytes());
        bytes[16..24].copy_from_slice(&data_pages.to_le_bytes());
        bytes[24..32].copy_from_slice(&(64u64 * 4096).to_le_bytes());
        for nth in 0..data_pages {
            bytes.extend(vec![u8::try_from(nth % 250).unwrap_or(0) + 1; 4096]);
        }
        bytes.extend(entries.iter().flat_map(|entry| entry.to_le_bytes()));
        bytes
    };
    vec![diff(&[], 0), diff(&[0, 63], 2), diff(&[5, 6 | 1 << 31, 7], 2)]
}

pub(crate) fn manifest() -> Vec<Vec<u8>> {
    [
        r#"{"engine":"k","files":[{"name":"dev.state","bytes":17000,"digest":"ab","bulk_digest":null}],"base":{"golden":"/x"},"detail":{"engine":"qemu","accel":"tcg","machine":{"cpu":1,"memory_mb":256,"disk_mb":2048}}}"#,
        r#"{"engine":"k","files":[],"base":"own","detail":{}}"#,
        r#"{"engine":"qemu","key":"k","accel":"tcg","machine":{"cpu":1,"memory_mb":256,"disk_mb":2048},"memory":{"private":"own"},"memory_inode":1,"memory_bytes":2,"console_from":0,"started":12}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

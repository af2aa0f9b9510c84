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
    let tunnel = answer("200", &[("x-wakeful-tunnel", "kept"), ("x-wakeful-received", "12")], b"");
    let all = [stream.clone(), refusal.clone(), document.clone(), part.clone(), tunnel.clone()].join(&0x1e);
    vec![stream, refusal, document, part, tunnel, all]
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

/// A ClientHello for a name, in records of `each` bytes.
fn client_hello(name: &[u8], each: usize) -> Vec<u8> {
    let sized = |content: &[u8]| [&u16::try_from(content.len()).unwrap_or(0).to_be_bytes()[..], content].concat();
    let entry = [&[0][..], &sized(name)].concat();
    let extensions = [&[0, 0][..], &sized(&sized(&entry)), &[0, 43], &sized(&[2, 3, 4])].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0], &sized(&extensions)].concat();
    let length = u32::try_from(body.len()).unwrap_or(0).to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    message.chunks(each).flat_map(|part| [&[22, 3, 1][..], &sized(part)].concat()).collect()
}

pub(crate) fn first_bytes() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        "GET / HTTP/1.1\r\nHost: Allowed.Example:80\r\n\r\n",
        "POST http://a.example/x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhelloGET",
        "PUT /x HTTP/1.1\r\nhost: a.example.\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\nGET /",
        "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    seeds.extend([client_hello(b"Allowed.Example", 9999), client_hello(b"a.example.", 20)]);
    seeds
}

/// Length of the question, the question, and an answer to it.
pub(crate) fn dns() -> Vec<Vec<u8>> {
    let name = |labels: &[&str]| -> Vec<u8> {
        let each =
            labels.iter().flat_map(|label| [&[u8::try_from(label.len()).unwrap_or(0)], label.as_bytes()].concat());
        each.chain([0]).collect()
    };
    let head = |flags: u16, counts: [u16; 4]| -> Vec<u8> {
        [7, flags].into_iter().chain(counts).flat_map(u16::to_be_bytes).collect()
    };
    let allowed = name(&["www", "allowed", "example"]);
    let asked = |name: &[u8], kind: u8| [name, &[0, kind, 0, 1][..]].concat();
    // To the name at the beginning of the question.
    let record = |kind: u8, data: &[u8]| {
        [&[0xc0, 12, 0, kind, 0, 1, 0, 1, 0x51, 0x80, 0][..], &[u8::try_from(data.len()).unwrap_or(0)], data].concat()
    };
    let pair = |question: Vec<u8>, answer: Vec<u8>| {
        [&u16::try_from(question.len()).unwrap_or(0).to_be_bytes()[..], &question, &answer].concat()
    };
    let edns = [0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0];
    let plain = [head(0x100, [1, 0, 0, 0]), asked(&allowed, 1)].concat();
    let with_edns = [head(0x100, [1, 0, 0, 1]), asked(&allowed, 1), edns.to_vec()].concat();
    let other = [head(0x100, [1, 0, 0, 0]), asked(&name(&["denied", "example"]), 1)].concat();
    let public = [head(0x8180, [1, 1, 0, 0]), asked(&allowed, 1), record(1, &[203, 0, 113, 10])].concat();
    let private =
        [head(0x8180, [1, 2, 0, 0]), asked(&allowed, 1), record(1, &[10, 0, 0, 1]), record(1, &[203, 0, 113, 10])]
            .concat();
    let alias = [
        head(0x8180, [1, 2, 0, 0]),
        asked(&allowed, 1),
        record(5, &[4, b'h', b'o', b's', b't', 0xc0, 16]),
        [&[4, b'h', b'o', b's', b't', 0xc0, 16][..], &[0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 203, 0, 113, 11]].concat(),
    ]
    .concat();
    vec![pair(plain.clone(), public), pair(with_edns, private), pair(plain, alias.clone()), pair(other, alias)]
}

pub(crate) fn preview_host() -> Vec<Vec<u8>> {
    [
        "localhost\n3000-k3v7q2m5x6a4b2c7d5ef.localhost:8080",
        "Sandboxes.Example\n1-K3V7Q2M5X6A4B2C7D5EF.sandboxes.example.",
        "localhost\nwww.65535-k3v7q2m5x6a4b2c7d5ef.localhost",
        "localhost\n[::1]:8080",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(crate) fn preview_headers() -> Vec<Vec<u8>> {
    let request = "connection: close, x-mine\nx-mine: 1\nte: gzip, trailers\ntransfer-encoding: chunked\ncontent-length: 3\n\
                   cookie: a=1; wakeful_preview=x; b=2\ncookie: wakeful_preview=y\nx-forwarded-for: 10.0.0.1\n\
                   x-wakeful-tenant: acme\nexpect: 100-continue\nauthorization: Basic eDp5";
    let answer = "set-cookie: a=1; Path=/; Domain=.example; HttpOnly\nset-cookie: wakeful_preview=evil\nupgrade: x\n\
                  content-security-policy: default-src 'self'\nclear-site-data: \"*\"\ntrailer: x-sum";
    let mut seeds = Vec::new();
    for how in [b'0', b'1', b'2', b'3', b'6'] {
        seeds.extend([request, answer].map(|lines| [&[how], lines.as_bytes()].concat()));
    }
    seeds
}

pub(crate) fn preview_frames() -> Vec<Vec<u8>> {
    let ping = [&[0x89, 0x85, 1, 2, 3, 4][..], b"hello"].concat();
    let text = [&[0x81, 126, 1, 44][..], &[b'x'; 300]].concat();
    let long = [&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0][..], &[7; 500]].concat();
    let close = vec![0x88, 2, 3, 0xe9];
    vec![ping.clone(), [text, ping, close.clone()].concat(), long, [&[0x8a, 0][..], &close].concat()]
}

pub(crate) fn preview_cookie() -> Vec<Vec<u8>> {
    vec![wakeful_gateway::fuzz::good_cookie(), b"4102444800.admin.00".to_vec(), b"0123456789abcdef".to_vec()]
}

pub(crate) fn preview_request() -> Vec<Vec<u8>> {
    [
        "/a/b?x=1&wakeful_token=abc&y=2\ncookie: a=1; wakeful_preview=x=y; b=2\ncookie: wakeful_preview=z",
        "//evil.example/?wakeful_token=abc\naccept: text/html,application/xml;q=0.9,*/*;q=0.8",
        "http://h/?wakeful_token\naccept: application/json, text/html;q=0.5\ncookie: \twakeful_preview\t=1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(crate) fn problem_page() -> Vec<Vec<u8>> {
    ["nothing listens", "<script>alert('x')</script>", "&lt; &#60; \"quoted\" 'so'"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

pub(crate) fn tunnel() -> Vec<Vec<u8>> {
    let data = |bytes: &[u8]| [&[1][..], &u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes(), bytes].concat();
    let have = |count: u64| [&[3][..], &count.to_be_bytes()].concat();
    vec![
        [data(b"hello"), have(0), data(&[7; 3000]), vec![2]].concat(),
        [vec![2], data(b"late")].concat(),
        [have(1), data(b"x"), vec![4]].concat(),
        b"0123456789abcdef0123456789abcdef".to_vec(),
    ]
}

/// A block of tar with a checksum that is right.
fn tar_entry(name: &str, kind: u8, link: &str, data: &[u8]) -> Vec<u8> {
    let mut block = [0u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0000000\0");
    block[116..124].copy_from_slice(b"0000000\0");
    block[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    block[136..148].copy_from_slice(b"00000000000\0");
    block[148..156].copy_from_slice(b"        ");
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = block.to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub(crate) fn layer() -> Vec<Vec<u8>> {
    let end = vec![0u8; 1024];
    let plain = [
        tar_entry("d/", b'5', "", b""),
        tar_entry("d/file", b'0', "", b"words"),
        tar_entry("d/link", b'2', "../x", b""),
        tar_entry("d/hard", b'1', "d/file", b""),
        tar_entry("d/.wh.gone", b'0', "", b""),
        end.clone(),
    ];
    let pax = b"30 SCHILY.xattr.user.colour=x\n17 path=other/name\n";
    let long = [tar_entry("PaxHeaders/x", b'x', "", pax), tar_entry("x", b'0', "", &[7; 600]), end];
    vec![plain.concat(), long.concat()]
}

pub(crate) fn image_documents() -> Vec<Vec<u8>> {
    let digest = format!("sha256:{}", "a".repeat(64));
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":100}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"{digest}","size":1000}}]}}"#
    );
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{digest}","size":100,"platform":{{"architecture":"amd64","os":"linux"}}}}]}}"#
    );
    let config = format!(
        r#"{{"architecture":"amd64","os":"linux","config":{{"Env":["PATH=/bin"],"Cmd":["sh"],"User":"1000:1000","WorkingDir":"/srv","Healthcheck":{{"Test":["CMD","true"],"Interval":5000000000}}}},"rootfs":{{"type":"layers","diff_ids":["{digest}"]}}}}"#
    );
    let challenge =
        r#"Bearer realm="https://auth.invalid/token",service="registry.invalid",scope="repository:a/b:pull""#;
    [manifest, index, config, challenge.to_owned(), format!("registry.invalid:5000/a/b:1.2@{digest}")]
        .into_iter()
        .map(String::into_bytes)
        .collect()
}

pub(crate) fn dockerfile() -> Vec<Vec<u8>> {
    let build = "# syntax=docker/dockerfile:1\nARG BASE=debian\nFROM ${BASE:-x} AS build\nENV A=1 B=\"two words\"\nWORKDIR /src\nCOPY --chown=1:1 . .\nRUN --mount=type=cache,target=/c make ${A%1} \\\n  # between\n  && true\nRUN <<EOF\necho here\nEOF\nFROM scratch\nCOPY --from=build /out/* /\nHEALTHCHECK --interval=5s CMD [\"/x\"]\nENTRYPOINT [\"/x\"]\n";
    let template =
        "name = \"app\"\ntags = [\"1\"]\ndisk_mb = 512\nstart = [\"a\"]\n[env]\nA = \"b\"\n[io]\nops_per_sec = 5\n";
    vec![build.as_bytes().to_vec(), template.as_bytes().to_vec()]
}

//! What surrounds a sentry and its gofer, and who may speak to the agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use wakeful_confine::range::IDS;
use wakeful_driver::Source;
use wakeful_driver_contract::{Lab, Sandbox, shell};
use wakeful_driver_gvisor::boot::PORT;
use wakeful_guest_proto::hello::{Hello, PROTOCOL, Side, encode};
use wakeful_net::GUEST;

use crate::lab::{self, GvisorLab};
use crate::probe::{ask, started};

/// As the host calls it.
const NOBODY: u32 = 65_534;
const SOON: Duration = Duration::from_secs(20);

fn status(pid: u32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let pairs = text.lines().filter_map(|line| line.split_once(":\t"));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn namespace(pid: impl std::fmt::Display, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("it lives")
}

/// Every process of a sandbox on the host.
fn surrounded(sandbox: &Sandbox, lab: &GvisorLab) {
    let account = fs::read(sandbox.place.run.join("engine.json")).expect("is there");
    let account: Value = serde_json::from_slice(&account).expect("is data");
    let first = u32::try_from(account["first_id"].as_u64().expect("a number")).expect("an id");
    let (ids, pids) = (first..first + IDS, sandbox.processes());
    assert!(pids.len() >= 2, "a sentry and a gofer at least");
    let mut alone = 0;
    for pid in pids {
        let status = status(pid);
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("it lives");
        let name = command.split('\0').next().unwrap_or_default();
        let powers = u64::from_str_radix(&status["CapEff"], 16).expect("a number");
        // runsc makes a sentry that may do nothing the host's nobody, in a user namespace of its own.
        let nobody = lab.config.hardened && name != "runsc-gofer" && powers == 0;
        for word in ["Uid", "Gid", "Groups"] {
            let mut numbers = status[word].split_ascii_whitespace().map(|id| id.parse::<u32>().expect("an id"));
            assert!(numbers.all(|id| ids.contains(&id) || nobody && id == NOBODY), "{name}: {word} {}", status[word]);
        }
        assert!(!lab.config.hardened || nobody || name == "runsc-gofer", "{name} may {powers:x}");
        assert_eq!((status["Seccomp"].as_str(), status["NoNewPrivs"].as_str()), ("2", "1"), "{name} has a filter");
        for kind in ["user", "mnt", "ipc", "net"] {
            assert_ne!(namespace(pid, kind), namespace("self", kind), "{name} has its own {kind}");
        }
        alone += u32::from(namespace(pid, "pid") != namespace("self", "pid"));
        // Its root is a part of what it was given.
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        for path in [lab.work(), lab.run(), Path::new(env!("CARGO_MANIFEST_DIR")), Path::new("/sys/fs/cgroup/memory")] {
            let seen = root.join(path.strip_prefix("/").expect("is absolute"));
            assert!(!seen.exists(), "{name} sees {}", path.display());
        }
        assert!(!root.join("proc/self").exists() && !root.join("proc/1").exists(), "{name} sees processes");
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("it lives");
        for line in mounts.lines() {
            let (root, at) = {
                let mut words = line.split(' ').skip(3);
                (words.next().expect("a root"), words.next().expect("a place"))
            };
            let fs_type = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
            // Of a file system with files of the host in it: only what it was given, and never all of it.
            let host_disk = !matches!(fs_type, "proc" | "tmpfs" | "overlay" | "sysfs" | "devpts" | "nsfs" | "mqueue");
            let given = root.ends_with("/agent") || at.starts_with("/mnt");
            assert!(!host_disk || (root != "/" && given), "{name} has {line}");
        }
    }
    // A sentry is in the host's: it has no `/proc` to find anybody by, and its filter lets it signal nobody.
    assert!(alone >= 1, "a gofer has processes of its own");
}

async fn within_walls(hardened: bool) {
    let lab = Arc::new(GvisorLab::new(hardened).await);
    let whole: Arc<dyn Lab> = Arc::clone(&lab) as Arc<dyn Lab>;
    let (mut sandbox, engine, guest) = Sandbox::started(&whole, "walls").await;
    shell(&guest, "echo mine > /root/file; ls -R /usr > /dev/null; (sleep 1000 &) > /dev/null 2>&1 < /dev/null").await;
    surrounded(&sandbox, &lab);
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    surrounded(&sandbox, &lab);
    sandbox.end(&*engine).await;
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(shell(&guest, "cat /root/file; id -u").await, "mine\n0");
    surrounded(&sandbox, &lab);
    // Of what is inside nothing is the host's: its processes, its links, the paths of what is mounted.
    let seen =
        format!("test -e /proc/{}/exe && echo process; ip -o link | cut -d: -f2 | sort | xargs", std::process::id());
    assert_eq!(shell(&guest, &seen).await, "eth0 lo");
    let mounts = shell(&guest, "cat /proc/self/mountinfo /proc/self/mounts /proc/1/maps").await;
    for path in [lab.base(), lab.work(), lab.run(), &lab.config.data_dir] {
        assert!(!mounts.contains(&*path.to_string_lossy()), "{mounts}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_are_walled_in() {
    within_walls(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardened_engines_have_no_capability_at_all() {
    within_walls(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_engines_share_no_id() {
    let whole: Arc<dyn Lab> = lab::open().await;
    let (one, _engine, _guest) = Sandbox::started(&whole, "one").await;
    let (other, _engine, _guest) = Sandbox::started(&whole, "other").await;
    let first = |sandbox: &Sandbox| -> u64 {
        let account = fs::read(sandbox.place.run.join("engine.json")).expect("is there");
        serde_json::from_slice::<Value>(&account).expect("is data")["first_id"].as_u64().expect("a number")
    };
    assert!(first(&one).abs_diff(first(&other)) >= u64::from(IDS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agents_port_is_closed_to_those_inside() {
    let lab = lab::open().await;
    let (sandbox, _engine, guest) = started(&lab, "port").await;
    // A guess that is as good as one can be without the secret: of the right form, under another.
    let guess = encode(Side::Host, &[1; 32], &Hello { nonce: [2; 16], protocol: PROTOCOL });
    let guess: String = guess.iter().map(|byte| format!("{byte:02x}")).collect();
    let asked = ask(&lab, json!({"op": "dial", "port": PORT, "secret": guess})).await.expect("it answers");
    let told: Vec<&str> = asked.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let nothing = ["0 bytes", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "TimeoutError"];
    assert!(told.iter().all(|outcome| nothing.contains(outcome)), "{told:?}");
    guest.health(SOON).await.expect("the host's session is not disturbed");
    // Nor is the secret anywhere for them to find.
    let look = "tr '\\0' '\\n' < /proc/1/environ; ls -l /proc/1/fd/0; cat /proc/1/cmdline | tr '\\0' ' '";
    let said = shell(&guest, look).await;
    assert!(said.contains("/dev/null"), "{said}");
    let first: String = [7_u8; 32].iter().map(|byte| format!("{byte:02x}")).collect();
    let current: String = sandbox.secret.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!said.contains(&first) && !said.contains(&current));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_at_the_gateway_disturb_nobody() {
    let lab = lab::open().await;
    let whole: Arc<dyn Lab> = Arc::clone(&lab) as Arc<dyn Lab>;
    let (_sandbox, _engine, guest) = Sandbox::started(&whole, "strangers").await;
    let mut held = Vec::new();
    for _ in 0..20 {
        let socket = std::net::TcpStream::from(lab.slot().tcp_socket().expect("a socket"));
        let stream = TcpSocket::from_std_stream(socket).connect((GUEST, PORT).into());
        held.push(tokio::time::timeout(SOON, stream).await.expect("in time").expect("it listens"));
    }
    let guess = encode(Side::Host, &[1; 32], &Hello { nonce: [2; 16], protocol: PROTOCOL });
    for stream in &mut held {
        let _ = stream.write_all(&guess).await;
    }
    guest.health(SOON).await.expect("the host's session is not disturbed");
    for mut stream in held {
        let mut said = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut said)).await.expect("it is hung up on");
        assert!(said.is_empty(), "{read:?}: {said:?}");
    }
    guest.health(SOON).await.expect("the host's session is not disturbed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_sentry_leaves_the_files() {
    let whole: Arc<dyn Lab> = lab::open().await;
    let (mut sandbox, engine, guest) = Sandbox::started(&whole, "sentry").await;
    shell(&guest, "head -c 3000000 /dev/urandom > /root/kept; md5sum /root/kept > /root/sum; rm /etc/debian_version")
        .await;
    let pid = i32::try_from(engine.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    let exit = tokio::time::timeout(SOON, engine.exited()).await.expect("it is noticed");
    assert!(!exit.out_of_memory, "{exit:?}");
    tokio::time::timeout(SOON, guest.closed()).await.expect("its line is cut");
    sandbox.end(&*engine).await;
    sandbox.secret = [8; 32];
    // Not a byte of it was synced from inside.
    let engine = sandbox.launch(Source::Boot { secret: [8; 32] }).await.expect("can be booted");
    let guest = sandbox.go(&*engine).await;
    assert!(shell(&guest, "md5sum -c /root/sum").await.contains("OK"));
    assert_eq!(shell(&guest, "test -e /etc/debian_version || echo gone").await, "gone");
}

//! Restore and quiesce.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use wakeful_guest_client::proto::contact::Repair;
use wakeful_guest_client::proto::control::{ObstacleKind, Restore};
use wakeful_guest_client::proto::hello::{self, Hello, Side};
use wakeful_guest_client::proto::process::{ProcessConfig, StartRequest};
use wakeful_guest_client::{Error, ExecEvent, Guest, Revived};

use crate::agent::{Agent, SOON};

fn restore() -> Restore {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
    Restore::new(u64::try_from(now).expect("fits"), &[5; 64])
}

#[tokio::test]
async fn a_restore_replaces_env_and_rotates_the_secret() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut ask = restore().with_secret(&[7; 32]);
    ask.env = Some([("A".to_owned(), "1".to_owned()), ("B".to_owned(), "ü".to_owned())].into());
    ask.hostname = Some("left-alone".to_owned());
    let answer = guest.restore(&ask).await.expect("restore");
    assert!((0..20_000_000).contains(&answer.clock_error_us), "{answer:?}");
    assert_eq!(guest.envs().await.expect("envs"), ask.env.clone().expect("set above"));
    guest.health(SOON).await.expect("the session goes on");
    guest.close().await;

    let old = tokio::time::timeout(
        SOON,
        wakeful_guest_client::Guest::connect(agent.dial().await, &agent.secret, Duration::from_millis(200)),
    );
    assert!(matches!(old.await.expect("in time"), Err(Error::Hello { .. })));
    let guest = agent.connect_with(&[7; 32]).await.expect("the new secret");
    ask.env = Some([("C".to_owned(), "3".to_owned())].into());
    guest.restore(&ask).await.expect("restore");
    assert_eq!(guest.envs().await.expect("envs").len(), 1, "replaced, not merged");
}

#[tokio::test]
async fn a_first_contact_needs_no_http() {
    let agent = Agent::start().await;
    let env = [("A".to_owned(), "1".to_owned()), ("EMPTY".to_owned(), String::new())].into();
    let identity = Repair {
        env: Some(env),
        secret: Some([7; 32]),
        clone_generation: Some(1),
        hostname: Some("left-alone".to_owned()),
        ..Repair::new(0, [0; 64])
    };
    let revived = Guest::revive(agent.dial().await, &agent.secret, SOON, SOON, identity.clone()).await;
    let Revived { guest, answer, .. } = revived.expect("revived");
    assert!((0..20_000_000).contains(&answer.clock_error_us), "{answer:?}");
    assert_eq!(Some(guest.envs().await.expect("envs")), identity.env, "the session follows on the same stream");
    guest.close().await;

    let bad = Repair { hostname: Some("a b".to_owned()), secret: Some([8; 32]), ..Repair::new(0, [0; 64]) };
    let refused = Guest::revive(agent.dial().await, &[7; 32], SOON, SOON, bad).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let guest = agent.connect_with(&[7; 32]).await.expect("the secret of the one that was confirmed");
    guest.health(SOON).await.expect("health");
}

#[tokio::test]
async fn an_agent_of_protocol_1_is_put_right_by_its_route() {
    let agent = Agent::start().await;
    // A relay that signs the hellos of both sides anew, with the older number.
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let secret = agent.secret;
    let relay = async {
        let mut real = agent.dial().await;
        let mut bytes = [0; hello::LENGTH];
        for (side, from_host) in [(Side::Host, true), (Side::Agent, false)] {
            if from_host {
                theirs.read_exact(&mut bytes).await.expect("a hello");
            } else {
                real.read_exact(&mut bytes).await.expect("an answer");
            }
            let said = hello::decode(side, &secret, &bytes).expect("authentic");
            let older = hello::encode(side, &secret, &Hello { protocol: 1, ..said });
            if from_host {
                real.write_all(&older).await.expect("write");
            } else {
                theirs.write_all(&older).await.expect("write");
            }
        }
        tokio::io::copy_bidirectional(&mut theirs, &mut real).await.ok();
    };
    let host = async {
        let identity = Repair { env: Some([("A".to_owned(), "1".to_owned())].into()), ..Repair::new(0, [0; 64]) };
        let revived = Guest::revive(ours, &secret, SOON, SOON, identity).await.expect("revived");
        assert_eq!(revived.guest.protocol(), 1);
        assert_eq!(revived.guest.envs().await.expect("envs").len(), 1);
        revived.guest.close().await;
    };
    tokio::join!(relay, host);
}

#[tokio::test]
async fn a_bad_restore_changes_nothing() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut short = restore().with_secret(&[7; 32]);
    short.entropy_base64 = "AAAA".to_owned();
    let mut name = restore().with_secret(&[7; 32]);
    name.hostname = Some("a b".to_owned());
    for bad in [short, name] {
        let refused = guest.restore(&bad).await;
        assert!(matches!(&refused, Err(Error::Refused { code, .. }) if code == "400"), "{refused:?}");
    }
    guest.close().await;
    agent.connect().await.health(SOON).await.expect("the old secret still holds");
}

#[tokio::test]
async fn clone_hooks_run_once_per_generation() {
    let agent = Agent::start_with(|directory| {
        let hooks = directory.join("clone.d");
        std::fs::create_dir(&hooks).expect("a directory");
        let log = directory.join("log");
        let write = |name: &str, text: String, mode| {
            std::fs::write(hooks.join(name), text).expect("a hook");
            std::fs::set_permissions(hooks.join(name), std::fs::Permissions::from_mode(mode)).expect("its mode");
        };
        write("10-good", format!("#!/bin/sh\necho good $CLONE_GENERATION >> {}\n", log.display()), 0o755);
        write("20-bad", "#!/bin/sh\nexit 3\n".to_owned(), 0o755);
        write("30-data", format!("#!/bin/sh\necho data >> {}\n", log.display()), 0o644);
        write("40-last", format!("#!/bin/sh\necho last >> {}\n", log.display()), 0o755);
        vec!["--clone-hooks".to_owned(), hooks.display().to_string()]
    })
    .await;
    let guest = agent.connect().await;
    let mut ask = restore();
    for generation in [1, 1, 2] {
        ask.clone_generation = Some(generation);
        let answer = guest.restore(&ask).await.expect("restore");
        let expected = std::fs::read_to_string(agent.directory().join("log")).expect("a log").lines().count();
        assert_eq!(expected, if generation == 1 { 2 } else { 4 });
        assert!(answer.failed_hooks.is_empty() || answer.failed_hooks == ["20-bad"], "{answer:?}");
    }
    let log = std::fs::read_to_string(agent.directory().join("log")).expect("a log");
    assert_eq!(log, "good 1\nlast\ngood 2\nlast\n");
}

#[tokio::test]
async fn a_late_clone_hook_is_cut_off() {
    let agent = Agent::start_with(|directory| {
        let hook = directory.join("slow");
        std::fs::write(&hook, "#!/bin/sh\nsleep 60\n").expect("a hook");
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).expect("its mode");
        vec!["--clone-hooks".to_owned(), directory.display().to_string()]
    })
    .await;
    let guest = agent.connect().await;
    let mut ask = restore();
    ask.clone_generation = Some(1);
    let begun = Instant::now();
    let answer = guest.restore(&ask).await.expect("restore");
    assert_eq!(answer.failed_hooks, ["slow"]);
    assert!(begun.elapsed() < Duration::from_secs(9));
}

#[tokio::test]
async fn quiesce_answers_and_ends_the_session() {
    let agent = Agent::start().await;
    for _ in 0..3 {
        let guest = agent.connect().await;
        let begun = Instant::now();
        assert!(guest.quiesce(SOON).await.expect("quiesce"));
        timeout(SOON, guest.closed()).await.expect("the agent ends it");
        // Without other streams nothing is waited for; the flush itself depends on the machine.
        assert!(begun.elapsed() < SOON);
        assert!(matches!(guest.health(SOON).await, Err(Error::Lost)));
        guest.close().await;
    }
    agent.connect().await.health(SOON).await.expect("the next session");
}

#[tokio::test]
async fn quiesce_gives_open_streams_one_second() {
    let agent = Agent::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let guest = agent.connect().await;
    let _tunnel = guest.tunnel(listener.local_addr().expect("bound"), SOON).await.expect("a tunnel");
    assert!(guest.quiesce(SOON).await.expect("quiesce"));
    let begun = Instant::now();
    timeout(SOON, guest.closed()).await.expect("the agent ends it");
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
    agent.connect().await.health(SOON).await.expect("the next session");
}

#[tokio::test]
async fn an_agent_without_a_machine_keeps_it_on() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let refused = guest.poweroff().await;
    assert!(matches!(&refused, Err(Error::Refused { code, .. }) if code == "501"), "{refused:?}");
}

#[tokio::test]
async fn what_has_lost_its_name_is_told() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    // The build's directory is on a disk; a temporary one may be in memory.
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("obstacle-{}", std::process::id()));
    std::fs::write(&file, "x").expect("writable");
    let file = file.canonicalize().expect("just made");
    let line = format!("exec 5<{0}; rm {0}; echo ready; read line", file.display());
    let process = ProcessConfig { cmd: "/bin/sh".into(), args: vec!["-c".into(), line], ..ProcessConfig::default() };
    let start = StartRequest { process, ..StartRequest::default() };
    let mut events = guest.start(&start, None).await.expect("starts");
    let mut pid = 0;
    loop {
        match timeout(SOON, events.next()).await.expect("in time").expect("goes on") {
            Some(ExecEvent::Started { pid: started }) => pid = started,
            Some(ExecEvent::Output { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    let found = guest.obstacles(SOON).await.expect("looked").obstacles;
    let found: Vec<_> = found.iter().filter(|obstacle| obstacle.pid == pid).collect();
    let expected = (ObstacleKind::File, file.to_str().expect("text"), "sh");
    assert_eq!(found.iter().map(|o| (o.kind, o.path.as_str(), o.process.as_str())).collect::<Vec<_>>(), [expected]);
    guest.end_input(pid).await.expect("it ends");
}

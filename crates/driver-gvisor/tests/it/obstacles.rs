//! What no image can keep: the agent knows of it before, the engine refuses it, and nothing is lost.

use std::time::Duration;

use wakeful_driver::Error;
use wakeful_driver_contract::{Lab, Sandbox, shell};
use wakeful_guest_proto::control::ObstacleKind;

use crate::lab;

const SOON: Duration = Duration::from_secs(20);

/// Does this in a shell that stays, and looks whether a save works; the agent must have foreseen it.
async fn habit(name: &str, line: &str, kinds: &[ObstacleKind], path: &str) {
    let whole: std::sync::Arc<dyn Lab> = lab::open().await;
    let (mut sandbox, engine, guest) = Sandbox::started(&whole, name).await;
    assert!(guest.obstacles(SOON).await.expect("it answers").obstacles.is_empty(), "a fresh one holds nothing");
    let line = format!(
        "cd /root; (set -e; {line}; echo done > /tmp/done; wait) > /tmp/said 2>&1 < /dev/null & \
         while ! test -s /tmp/done; do sleep 0.02; done"
    );
    shell(&guest, &line).await;
    let told = guest.obstacles(SOON).await.expect("it answers").obstacles;
    for kind in kinds {
        assert!(
            told.iter().any(|one| one.kind == *kind && one.path == path && one.pid > 1),
            "{kind:?} {path}: {told:?}"
        );
    }
    assert_eq!(told.is_empty(), kinds.is_empty(), "{told:?}");

    whole.begin_count(&sandbox, &guest).await;
    let before = whole.count(&sandbox, &guest).await;
    sandbox.stop(&*engine, guest).await;
    let checkpoint = sandbox.checkpoint(0);
    std::fs::create_dir(&checkpoint).expect("can be made");
    let saved = engine.save(&checkpoint).await;
    let image = if kinds.is_empty() {
        saved.expect("nothing is in the way")
    } else {
        let error = saved.expect_err("the agent has foreseen that");
        let Error::Refused { answer, .. } = &error else { panic!("{error:?}") };
        let file = path.rsplit('/').next().expect("a name");
        assert!(answer.contains(file), "the engine says which: {answer}");
        assert_eq!(std::fs::read_dir(&checkpoint).expect("is there").count(), 0, "nothing is left of it");
        // It goes on, and when whoever holds it is gone the next save is good.
        let guest = sandbox.go(&*engine).await;
        assert_eq!(whole.count(&sandbox, &guest).await.token, before.token);
        let told = guest.obstacles(SOON).await.expect("it answers").obstacles;
        let holders: Vec<String> = told.iter().map(|one| one.pid.to_string()).collect();
        shell(&guest, &format!("kill -9 {}; true", holders.join(" "))).await;
        let gone = async {
            while !guest.obstacles(SOON).await.expect("it answers").obstacles.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, gone).await.expect("they are gone");
        sandbox.stop(&*engine, guest).await;
        engine.save(&checkpoint).await.expect("nothing is in the way any more")
    };
    sandbox.end(&*engine).await;
    let engine = sandbox.wake(&checkpoint, &image).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(whole.count(&sandbox, &guest).await.token, before.token);
}

macro_rules! habits {
    ($($name:ident: $line:expr, [$($kind:ident),*], $path:expr;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let looked = habit(stringify!($name), $line, &[$(ObstacleKind::$kind),*], $path);
                tokio::time::timeout(wakeful_driver_contract::PATIENCE, looked).await.expect("done in time");
            }
        )+
    };
}

habits! {
    a_program_that_was_removed: "cp /usr/bin/sleep s; ./s 1000 & sleep .3; rm s", [Program], "/root/s";
    a_library_that_was_replaced:
        "cp $(ldd /usr/bin/sleep | sed -n 's/.*=> \\([^ ]*\\).*/\\1/p' | head -1) l.so; \
         LD_PRELOAD=/root/l.so sleep 1000 & sleep .3; cp l.so n; mv n l.so", [Library], "/root/l.so";
    a_directory_that_was_removed: "mkdir d; cd d; sleep 1000 & sleep .3; rmdir ../d; cd /", [Directory], "/root/d";
    a_file_that_was_replaced: "echo a > f; sleep 1000 < f & sleep .3; echo b > g; mv g f", [File], "/root/f";
    a_file_that_was_removed_on_the_disk: "sleep 1000 5> /var/tmp/x & sleep .3; rm /var/tmp/x", [File], "/var/tmp/x";
    a_file_of_the_template_that_was_removed: "sleep 1000 < /etc/debian_version & sleep .3; rm /etc/debian_version", [File],
        "/etc/debian_version";
    a_file_that_was_renamed: "echo a > f; sleep 1000 < f & sleep .3; mv f h", [], "";
    a_directory_that_was_renamed: "mkdir d; cd d; sleep 1000 & sleep .3; mv ../d ../e; cd /", [], "";
    a_file_that_was_removed_in_memory: "sleep 1000 5> /tmp/x 6> /dev/shm/y & sleep .3; rm /tmp/x /dev/shm/y", [], "";
    a_socket_that_was_removed:
        "python3 -c 'import socket,time; s=socket.socket(socket.AF_UNIX); s.bind(\"/root/sock\"); s.listen(); time.sleep(1000)' & \
         while ! test -e sock; do sleep .05; done; rm sock", [], "";
    a_name_that_looks_removed: "echo a > 'f (deleted)'; sleep 1000 < 'f (deleted)' & sleep .3", [], "";
}

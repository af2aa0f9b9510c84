//! What comes back after a sleep, each three times, always in a new slot.

use crate::lab;
use crate::probe::{put_program, started_as, tell};
use wakeful_driver::Machine;

async fn survives(what: &str) {
    let lab = lab::open().await;
    let foreign = ["tmux", "node"].contains(&what);
    // Node takes 100 MB.
    let machine = if foreign { Machine { disk_mb: 512, ..lab::MACHINE } } else { lab::MACHINE };
    let (mut sandbox, mut engine, mut guest) = started_as(&lab, what, machine).await;
    if foreign {
        put_program(&guest, what).await;
    }
    tell(&lab, "hold", what).await;
    for cycle in 0..3 {
        let checkpoint = sandbox.checkpoint(cycle);
        let image = sandbox.suspend(&*engine, guest, &checkpoint).await;
        sandbox.end(&*engine).await;
        engine = sandbox.wake(&checkpoint, &image).await.expect("can be woken");
        guest = sandbox.go(&*engine).await;
        tell(&lab, "check", what).await;
    }
}

macro_rules! survivors {
    ($($what:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $what() {
                let done = tokio::time::timeout(wakeful_driver_contract::PATIENCE, survives(stringify!($what)));
                done.await.expect("done in time");
            }
        )+
    };
}

survivors!(
    memory,
    threads,
    children,
    terminal,
    tmux,
    listeners,
    connections,
    pipes,
    files,
    tmpfs,
    memfd,
    inotify,
    epoll,
    timers,
    program,
    node
);

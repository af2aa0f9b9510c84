//! Drives one channel from the command line.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::UnixStream;
use wakeful_guest_client::{Error, Guest, proto::control::Restore};

async fn open(path: &str, secret: &[u8; 32], total: Duration) -> (Guest, Duration, u32) {
    let begun = Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let stream = UnixStream::connect(path).await.unwrap();
        println!("dialled");
        match Guest::connect(stream, secret, Duration::from_secs(2)).await {
            Ok(g) => return (g, begun.elapsed(), tries),
            Err(e) => {
                println!("try {tries}: {e}");
                assert!(begun.elapsed() < total, "no hello");
            }
        }
    }
}

fn now() -> u64 { SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 }

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let path = &args[1];
    let mut secret = [0u8; 32];
    for (i, b) in secret.iter_mut().enumerate() { *b = u8::from_str_radix(&args[2][2 * i..2 * i + 2], 16).unwrap(); }
    let (mut guest, took, tries) = open(path, &secret, Duration::from_secs(60)).await;
    println!("connected after {took:?} in {tries} tries");
    for command in &args[3..] {
        let begun = Instant::now();
        let (word, value) = command.split_once(':').unwrap_or((command, ""));
        match word {
            "health" => {
                let mut times = Vec::new();
                for _ in 0..value.parse::<u32>().unwrap_or(1) {
                    let t = Instant::now();
                    guest.health(Duration::from_secs(5)).await.unwrap();
                    times.push(t.elapsed());
                }
                times.sort();
                println!("health min {:?} p50 {:?} max {:?}", times[0], times[times.len() / 2], times[times.len() - 1]);
            }
            "version" => println!("{:?}", guest.version().await),
            "metrics" => println!("{:?}", guest.metrics().await),
            "envs" => println!("{:?}", guest.envs().await),
            "restore" => {
                let mut entropy = [0u8; 64];
                getrandom::fill(&mut entropy).unwrap();
                let mut r = Restore::new(now(), &entropy);
                if !value.is_empty() { r.hostname = Some(value.to_owned()); }
                println!("{:?} in {:?}", guest.restore(&r).await, begun.elapsed());
            }
            "rotate" => {
                secret = [value.parse().unwrap(); 32];
                let r = Restore::new(now(), &[3; 64]).with_secret(&secret);
                println!("{:?}", guest.restore(&r).await);
            }
            "quiesce" => println!("quiesce {:?} in {:?}", guest.quiesce(Duration::from_secs(5)).await, begun.elapsed()),
            "poweroff" => { println!("{:?}", guest.poweroff().await); guest.closed().await; println!("gone after {:?}", begun.elapsed()); }
            "sleep" => tokio::time::sleep(Duration::from_millis(value.parse().unwrap())).await,
            "tunnel" => {
                let e: Result<_, Error> = guest.tunnel(([127, 0, 0, 1], value.parse().unwrap()).into(), Duration::from_secs(5)).await;
                println!("tunnel {:?}", e.map(|_| ()));
            }
            "reconnect" => {
                let mut times = Vec::new();
                let mut retried = 0;
                for i in 0..value.parse::<u32>().unwrap() {
                    if i % 3 == 1 { guest.quiesce(Duration::from_secs(5)).await.unwrap(); }
                    if i % 3 == 2 {
                        // In the middle of many requests.
                        let mut set = tokio::task::JoinSet::new();
                        for _ in 0..20 { let g = guest.clone(); set.spawn(async move { let _ = g.metrics().await; }); }
                        tokio::task::yield_now().await;
                        tokio::time::sleep(Duration::from_millis(u64::from(i) % 7)).await;
                        set.abort_all();
                        while set.join_next().await.is_some() {}
                    }
                    guest.close().await;
                    let (g, took, tries) = open(path, &secret, Duration::from_secs(30)).await;
                    guest = g;
                    guest.health(Duration::from_secs(5)).await.unwrap();
                    retried += tries - 1;
                    times.push(took);
                }
                times.sort();
                println!("reconnect min {:?} p50 {:?} max {:?}, {retried} retries", times[0], times[times.len() / 2], times[times.len() - 1]);
            }
            other => panic!("{other}"),
        }
    }
    guest.close().await;
    println!("closed");
}

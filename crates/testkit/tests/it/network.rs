//! What a guest reaches and what not, with real servers outside; and that rules, sleep and crashes do what they should.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wakeful_client::Client;
use wakeful_testkit::Daemon;

use crate::outside::{Guest, host, on_a_host, options};
use crate::support::{create, sh, wait_for};

async fn change(client: &Client, id: &str, egress: serde_json::Value) -> Result<()> {
    client.patch_sandbox(id, &serde_json::from_value(json!({"egress": egress}))?).await?;
    Ok(())
}

#[test]
fn an_open_guest_reaches_the_outside_and_nothing_inside() -> Result<()> {
    on_a_host(async |_world| {
        let daemon = Daemon::start_with(options()).await?;
        let client = daemon.client()?;
        let sandbox = create(&client, json!({"template": "python"})).await?;
        ensure!(sandbox.capabilities.is_some_and(|can| can.network), "{:?}", daemon.log());
        let id = sandbox.id.to_string();
        let guest = Guest::new(&client, &id).await?;
        guest.reaches("http 203.0.113.11", "203.0.113.11 203.0.113.11").await?;
        guest.reaches("https 203.0.113.10 any.example", "203.0.113.10").await?;
        guest.reaches("udp 203.0.113.2 9000", "hello").await?;
        guest.reaches("dns allowed.example", "203.0.113.10").await?;
        guest.reaches("dns allowed.example 203.0.113.53", "203.0.113.10").await?;
        guest.reaches("http other.example", "203.0.113.11 other.example").await?;

        // The host's own addresses, whoever listens there; a neighbour; the cloud's metadata; private ranges.
        let _listener = tokio::net::TcpListener::bind("0.0.0.0:9000").await?;
        let port = daemon.url().rsplit(':').next().context("a port")?.trim_end_matches('/').to_owned();
        let neighbour = create(&client, json!({"template": "base"})).await?.id.to_string();
        let links = host("ip -4 -o address | sed -n 's/.*wk[^ ]* *inet \\([0-9.]*\\).*/\\1/p'")?;
        let ours: Vec<&str> = links.lines().collect();
        ensure!(ours.len() >= 2, "every slot has an address on the host: {links}");
        for address in ["203.0.113.1", "10.77.0.1"].iter().chain(&ours) {
            guest.is_refused(&format!("tcp {address} 9000")).await?;
            guest.is_refused(&format!("tcp {address} {port}")).await?;
        }
        guest.blocked("host", "203.0.113.1").await?;
        for address in ["169.254.169.254", "10.77.0.2", "127.0.0.1", "192.0.0.1"] {
            guest.is_refused(&format!("tcp {address} 80")).await?;
        }
        let metadata = guest.blocked("link_local", "169.254.169.254").await?;
        ensure!(metadata.allowed_by.is_none(), "{metadata:?}");
        let private = guest.blocked("private", "10.77.0.2").await?;
        ensure!(private.allowed_by.is_some_and(|by| by.allow_cidrs == ["10.77.0.2/32"]));

        // As root, by hand: other senders, other cards, IPv6, another address of its own. (gVisor gives nobody raw sockets.)
        if wakeful_testkit::microvm() {
            let root = Some("root");
            for what in ["spoof 198.51.100.7 203.0.113.10", "frame 020000000009 203.0.113.10"] {
                let said = guest.tries_as(what, root).await?;
                ensure!(said == "sent", "{what}: {said}");
            }
            let spoofed = |report: wakeful_client::types::EgressReport| {
                report.blocked.iter().filter(|line| line.reason == "spoofed").map(|line| line.count).sum::<u64>()
            };
            ensure!(spoofed(guest.report().await?) >= 2, "{:?}", guest.report().await?);
            sh(&client, &id, "sudo ip address add 203.0.113.77/24 dev eth0 && sudo ip route replace 203.0.113.0/24 dev eth0 via 192.0.0.1 src 203.0.113.77").await?;
            guest.is_refused("tcp 203.0.113.10 9000").await?;
            sh(&client, &id, "sudo ip route del 203.0.113.0/24; sudo ip address del 203.0.113.77/24 dev eth0").await?;
            guest.reaches("tcp 203.0.113.10 9000", "hello").await?;
        }

        let report = guest.report().await?;
        ensure!(report.bytes_out > 500 && report.bytes_in > 500, "{report:?}");
        for id in [&id, &neighbour] {
            client.destroy_sandbox(id).await?;
        }
        ensure!(daemon.places().is_empty(), "{:?}", daemon.places());
        Ok(())
    })
}

#[test]
fn names_are_allowed_one_by_one() -> Result<()> {
    on_a_host(async |_world| {
        let daemon = Daemon::start_with(options()).await?;
        let client = daemon.client()?;
        let egress =
            json!({"allow_domains": ["allowed.example", "*.below.example"], "deny_cidrs": ["198.51.100.0/24"]});
        let id = create(&client, json!({"template": "python", "egress": egress})).await?.id.to_string();
        let guest = Guest::new(&client, &id).await?;
        guest.is_refused("https 203.0.113.10 allowed.example").await.context("nobody asked for its address yet")?;
        guest.reaches("https allowed.example allowed.example", "203.0.113.10").await?;
        guest.reaches("http allowed.example", "203.0.113.10 allowed.example").await?;
        // The address is that of another name too, which is not allowed.
        guest.is_refused("https 203.0.113.10 shared.example").await?;
        guest.is_refused("http 203.0.113.10 shared.example").await?;
        guest.is_refused("https 203.0.113.10").await.context("a hello without a name")?;
        guest.is_refused("tcp 203.0.113.10 22").await?;
        guest.is_refused("udp 203.0.113.10 443").await?;
        guest.reaches("dns shared.example", "code 5").await?;
        guest.reaches("dns secret.data.attacker.example 192.0.0.1 16", "code 5").await?;
        guest.reaches("dns allowed.example 192.0.0.1 16", "code 5").await?;
        guest.reaches("dns allowed.example 192.0.0.1 28", "nothing").await?;
        guest.is_refused("dns allowed.example 203.0.113.53").await?;
        guest.is_refused("tcp 203.0.113.11 80").await?;
        guest.blocked("policy", "203.0.113.11").await?;
        guest.blocked("dns", "203.0.113.53").await?;
        let sni = guest.blocked("sni", "shared.example").await?;
        ensure!(sni.allowed_by.is_some_and(|by| by.allow_domains == ["shared.example"]));

        // A name that leads inside leads nowhere.
        change(&client, &id, json!({"allow_domains": ["inner.example", "shared.example"]})).await?;
        guest.is_refused("http inner.example").await?;
        guest.reaches("https shared.example shared.example", "203.0.113.10").await?;
        guest.is_refused("https 203.0.113.10 allowed.example").await?;
        // A range that covers it opens it.
        change(&client, &id, json!({"allow_cidrs": ["10.77.0.0/16"], "allow_ports": [80]})).await?;
        guest.reaches("http 10.77.0.2", "10.77.0.2").await?;
        guest.is_refused("tcp 10.77.0.2 9000").await?;
        // Nothing at all, names included.
        change(&client, &id, json!({"mode": "deny_all"})).await?;
        guest.is_refused("tcp 10.77.0.2 80").await?;
        guest.is_refused("udp 203.0.113.2 9000").await?;
        let said = guest.tries("dns allowed.example").await?;
        ensure!(said.starts_with("refused") || said == "code 5", "{said}");
        Ok(())
    })
}

/// Talks to the echo for ever and says when that ends.
const TALK: &str = "import socket,time
s=socket.create_connection(('203.0.113.10',9000),5); s.settimeout(5); n=0
while True:
    try:
        s.sendall(b'x'); s.recv(1); n+=1; open('/tmp/talk','w').write(str(n)); time.sleep(0.05)
    except OSError as e: open('/tmp/end','w').write(repr(e)); break";

/// Only listens.
const LISTEN: &str = "import socket
s=socket.create_connection(('203.0.113.10',9000),5); s.settimeout(600); open('/tmp/open','w').write('yes')
try: s.recv(1); open('/tmp/over','w').write('closed')
except OSError as e: open('/tmp/over','w').write(repr(e))";

#[test]
fn a_change_and_a_sleep_cut_what_was_open() -> Result<()> {
    on_a_host(async |_world| {
        let daemon = Daemon::start_with(options()).await?;
        let client = daemon.client()?;
        let more = json!({"template": "python", "mode": "persistent", "idle_timeout": "1h"});
        let id = create(&client, more).await?.id.to_string();
        let guest = Guest::new(&client, &id).await?;
        let begin = async |script: &str, file: &str| -> Result<()> {
            sh(&client, &id, &format!("rm -f {file}; setsid python3 -c \"{script}\" >/dev/null 2>&1 &")).await?;
            wait_for("it begins", Duration::from_secs(20), async || {
                Ok(!sh(&client, &id, &format!("cat {file} 2>/dev/null || true")).await?.is_empty())
            })
            .await
        };
        begin(TALK, "/tmp/talk").await?;
        change(&client, &id, json!({"allow_cidrs": ["203.0.113.11/32"]})).await?;
        let changed = Instant::now();
        wait_for("the flow is cut", Duration::from_secs(5), async || {
            Ok(!sh(&client, &id, "cat /tmp/end 2>/dev/null || true").await?.is_empty())
        })
        .await?;
        let took = changed.elapsed();
        ensure!(took < Duration::from_secs(2), "{took:?}, a look at it included");

        change(&client, &id, json!({"mode": "allow_all"})).await?;
        begin(LISTEN, "/tmp/open").await?;
        client.suspend(&id, true).await?;
        guest.reaches("tcp 203.0.113.10 9000", "hello").await.context("new connections work at once")?;
        wait_for("what was open is reset", Duration::from_secs(5), async || {
            Ok(sh(&client, &id, "cat /tmp/over 2>/dev/null || true").await?.contains("Error"))
        })
        .await?;
        Ok(())
    })
}

#[test]
fn a_killed_daemon_leaves_the_network_and_finds_it() -> Result<()> {
    on_a_host(async |_world| {
        let clean = left_behind()?;
        let mut daemon = Daemon::start_with(options()).await?;
        let client = daemon.client()?;
        let id = create(&client, json!({"template": "python", "timeout": "1h"})).await?.id.to_string();
        let egress = json!({"allow_domains": ["allowed.example"], "allow_cidrs": ["203.0.113.10/32"]});
        change(&client, &id, egress).await?;
        sh(&client, &id, &format!("setsid python3 -c \"{TALK}\" >/dev/null 2>&1 &")).await?;
        let count = async |client: &Client| -> Result<u64> {
            Ok(sh(client, &id, "cat /tmp/talk 2>/dev/null || echo 0").await?.parse().unwrap_or(0))
        };
        wait_for("it talks", Duration::from_secs(20), async || Ok(count(&client).await? > 0)).await?;
        let before = count(&client).await?;
        daemon.kill()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        daemon.start_again(options()).await?;
        let client = daemon.client()?;
        let after = count(&client).await?;
        ensure!(after > before + 10, "traffic went on without the daemon: {before}, {after}");
        let end = sh(&client, &id, "cat /tmp/end 2>/dev/null || true").await?;
        ensure!(end.is_empty(), "{end}; it goes on with the next one");
        // Rules hold and change as before.
        let guest = Guest::new(&client, &id).await?;
        guest.reaches("https allowed.example allowed.example", "203.0.113.10").await?;
        guest.is_refused("tcp 203.0.113.11 80").await?;
        change(&client, &id, json!({"mode": "deny_all"})).await?;
        guest.is_refused("tcp 203.0.113.10 9000").await?;

        client.destroy_sandbox(&id).await?;
        ensure!(daemon.places().is_empty(), "{:?}", daemon.places());
        ensure!(daemon.terminate().await? == Some(0), "{}", daemon.log());
        let left = left_behind()?;
        ensure!(left == clean, "before:\n{clean}\nafter:\n{left}");
        Ok(())
    })
}

/// Talks to the echo twice a second, in a program that every image of Debian's has.
const CHATTER: &str = r#"use IO::Socket::INET; my $n = 0;
my $s = IO::Socket::INET->new(PeerAddr => "203.0.113.10:9000", Timeout => 5) or die;
while (syswrite($s, "x") && sysread($s, my $b, 1)) { open(my $f, ">", "/tmp/talk"); print $f ++$n; close $f; select(undef, undef, undef, 0.5); }
open(my $f, ">", "/tmp/end"); print $f "cut"; close $f;"#;

#[test]
fn twenty_guests_talk_on_while_their_daemon_is_dead() -> Result<()> {
    on_a_host(async |_world| {
        let clean = left_behind()?;
        let mut daemon = Daemon::start_with(options()).await?;
        let client = daemon.client()?;
        let mut ids = Vec::new();
        for number in 0..20 {
            // Every other one with rules of its own.
            let open = json!({"mode": "allow_all"});
            let narrow = json!({"allow_cidrs": ["203.0.113.10/32"]});
            let egress = if number % 2 == 0 { open } else { narrow };
            let id = create(&client, json!({"template": "base", "timeout": "1h", "egress": egress})).await?.id;
            sh(&client, id.as_str(), &format!("setsid perl -e '{CHATTER}' >/dev/null 2>&1 &")).await?;
            ids.push(id.to_string());
        }
        let counts = async |client: &Client| -> Result<Vec<u64>> {
            let mut counts = Vec::new();
            for id in &ids {
                counts.push(sh(client, id, "cat /tmp/talk 2>/dev/null || echo 0").await?.parse().unwrap_or(0));
            }
            Ok(counts)
        };
        wait_for("all of them talk", Duration::from_secs(60), async || {
            Ok(counts(&client).await?.iter().all(|count| *count > 0))
        })
        .await?;
        let told = counts(&client).await?;
        daemon.kill()?;
        // Longer than a guest's questions for what they have said took.
        tokio::time::sleep(Duration::from_secs(10)).await;
        daemon.start_again(options()).await?;
        let client = daemon.client()?;
        let now = counts(&client).await?;
        let went_on = told.iter().zip(&now).all(|(before, after)| *after >= before + 5);
        ensure!(went_on, "traffic went on without the daemon: {told:?}, {now:?}");
        for (number, id) in ids.iter().enumerate() {
            let end = sh(&client, id, "cat /tmp/end 2>/dev/null || true").await?;
            ensure!(end.is_empty(), "{number}: the connection goes on with the next daemon");
        }
        // Rules of before are in force, and changed as any.
        let probe = "perl -e 'use IO::Socket::INET; print IO::Socket::INET->new(PeerAddr => \"203.0.113.11:80\", Timeout => 5) ? 1 : 0'";
        ensure!(sh(&client, &ids[0], probe).await? == "1" && sh(&client, &ids[1], probe).await? == "0");
        change(&client, &ids[1], json!({"mode": "allow_all"})).await?;
        ensure!(sh(&client, &ids[1], probe).await? == "1");

        for id in &ids {
            client.destroy_sandbox(id).await?;
        }
        ensure!(daemon.places().is_empty(), "{:?}", daemon.places());
        ensure!(daemon.terminate().await? == Some(0), "{}", daemon.log());
        let left = left_behind()?;
        ensure!(left == clean, "before:\n{clean}\nafter:\n{left}");
        Ok(())
    })
}

/// Links, rules and routes of this host.
fn left_behind() -> Result<String> {
    host("ip -o link | sed 's/^[0-9]*: //; s/:.*//'; nft list ruleset; ip -4 route show table all")
}

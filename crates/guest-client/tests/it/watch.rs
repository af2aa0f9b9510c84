//! Watches, as the host sees them.

use std::fs;

use tokio::time::timeout;
use wakeful_guest_client::proto::filesystem::EventType::{self, Create, Remove, Rename, Write};
use wakeful_guest_client::{Error, WatchEvent, WatchStream};

use crate::agent::{Agent, SOON};

async fn changes<const N: usize>(watch: &mut WatchStream) -> [(EventType, String); N] {
    let mut all = Vec::new();
    while all.len() < N {
        match timeout(SOON, watch.next()).await.expect("in time").expect("a change") {
            WatchEvent::Changed { kind, name } => all.push((kind, name)),
            WatchEvent::Keepalive => {}
            WatchEvent::Overflow => panic!("nothing was lost"),
        }
    }
    all.try_into().expect("as many as were asked for")
}

#[tokio::test]
async fn changes_come_as_they_happen() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = agent.directory().join("w");
    fs::create_dir_all(directory.join("deep/er")).expect("directories");
    let path = directory.display().to_string();
    let mut flat = guest.watch(&path, false).await.expect("a watch");
    let mut whole = guest.watch(&path, true).await.expect("a watch");

    fs::write(directory.join("deep/er/a"), "1").expect("a file");
    let expected = [(Create, "deep/er/a".to_owned()), (Write, "deep/er/a".to_owned())];
    assert_eq!(changes(&mut whole).await, expected);
    fs::rename(directory.join("deep/er/a"), directory.join("b")).expect("moved");
    assert_eq!(changes(&mut whole).await, [(Rename, "deep/er/a".to_owned()), (Create, "b".to_owned())]);
    assert_eq!(changes(&mut flat).await, [(Create, "b".to_owned())], "what is deeper is not told here");
    // A watch does not hold up other calls, nor the end of the session.
    assert_eq!(guest.list(&path).await.expect("a list").len(), 2);

    fs::remove_dir_all(&directory).expect("removed");
    let mut removed: [_; 2] = changes(&mut flat).await;
    removed.sort_by(|a, b| a.1.cmp(&b.1));
    assert_eq!(removed, [(Remove, "b".to_owned()), (Remove, "deep".to_owned())]);
    let gone = loop {
        match timeout(SOON, flat.next()).await.expect("in time") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(&gone, Error::Refused { wakeful_code: Some(code), .. } if code == "path_not_found"), "{gone:?}");

    let other = agent.directory().display().to_string();
    let mut cut = guest.watch(&other, false).await.expect("a watch");
    guest.close().await;
    assert!(matches!(timeout(SOON, cut.next()).await.expect("in time"), Err(Error::Lost)));
}

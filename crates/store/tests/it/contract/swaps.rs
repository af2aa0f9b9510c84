//! Compare-and-swap, events, touches.

use std::sync::Arc;

use tokio::task::JoinSet;
use wakeful_model::{Cause, EventType, Memory, Op, OperationId, SandboxId, State, Transition};
use wakeful_store::{Error, Store, Swap};

use super::{Fixture, fresh, swapped};
use crate::rows::{at, event, sandbox};

pub(crate) async fn a_swap_wins_once_and_then_is_stale<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let mut row = sandbox();
    assert!(matches!(store.swap_sandbox(&row, None).await.expect("swap"), Swap::NotFound));
    store.insert_sandbox(&row, None).await.expect("insert");
    let old = row.clone();

    row.transition = Some(Transition { id: OperationId::random(), op: Op::Suspend, since: at(5), automatic: true });
    row.updated_at = at(5);
    swapped(&store, &mut row, Some(EventType::SuspendStarted)).await;
    assert_eq!(row.version, 2);
    row.state = State::Suspended(Memory::Kept);
    row.transition = None;
    row.checkpoint = Some("{}".into());
    swapped(&store, &mut row, None).await;
    assert_eq!(store.sandbox(&row.id).await.expect("read"), Some(row.clone()));

    // Who read the first version learns what is there now, and has changed nothing, events included.
    match store.swap_sandbox(&old, Some(&event(EventType::Failed, Cause::EngineDied))).await.expect("swap") {
        Swap::Stale(now) => assert_eq!(*now, row),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.sandbox(&row.id).await.expect("read"), Some(row.clone()));
    assert_eq!(store.events(&row.id, 0, 10).await.expect("events").len(), 1);
}

pub(crate) async fn sixteen_swaps_have_one_winner<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let store = Arc::new(store);
    let mut row = sandbox();
    store.insert_sandbox(&row, None).await.expect("insert");
    for round in 1..=20 {
        let mut contest = JoinSet::new();
        for contender in 0..16_u64 {
            let (store, mut mine) = (Arc::clone(&store), row.clone());
            mine.runtime_generation = round * 100 + contender;
            contest.spawn(async move {
                let said = event(EventType::Woken, Cause::Access);
                (mine.runtime_generation, store.swap_sandbox(&mine, Some(&said)).await.expect("swap"))
            });
        }
        let (mut winners, mut losers) = (Vec::new(), Vec::new());
        for (generation, swap) in contest.join_all().await {
            match swap {
                Swap::Swapped(version) => winners.push((generation, version)),
                Swap::Stale(now) => losers.push((now.runtime_generation, now.version)),
                Swap::NotFound => panic!("the row is there"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        // Every loser was shown the winner's row.
        assert_eq!(losers, vec![winners[0]; 15]);
        row = store.sandbox(&row.id).await.expect("read").expect("there");
        assert_eq!((row.runtime_generation, row.version), winners[0]);
        assert_eq!(store.events(&row.id, 0, 1000).await.expect("events").len() as u64, round);
    }
}

pub(crate) async fn events_come_with_their_state<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let (mut row, other) = (sandbox(), sandbox());
    let mut created = event(EventType::Created, Cause::Api);
    created.duration_ms = Some(78);
    created.detail = Some("from \"python\"".into());
    store.insert_sandbox(&row, Some(&created)).await.expect("insert");
    store.insert_sandbox(&other, Some(&created)).await.expect("insert");
    for kind in [EventType::SuspendStarted, EventType::Suspended, EventType::WakeStarted, EventType::Woken] {
        swapped(&store, &mut row, Some(kind)).await;
        swapped(&store, &mut row, None).await;
    }
    let all = store.events(&row.id, 0, 100).await.expect("events");
    assert_eq!(all.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(all[0].1, created);
    assert_eq!(all[4].1, event(EventType::Woken, Cause::Api));
    assert_eq!(store.events(&row.id, 2, 2).await.expect("events"), all[2..4]);
    assert_eq!(store.events(&row.id, 5, 100).await.expect("events"), []);
    assert_eq!(store.events(&row.id, u64::MAX, 100).await.expect("events"), []);
    // The other one counts for itself.
    assert_eq!(store.events(&other.id, 0, 100).await.expect("events"), [(1, created)]);
}

/// Both or neither: a state without its event would be a story with a hole.
pub(crate) async fn a_refused_event_leaves_no_state<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let mut impossible = event(EventType::Created, Cause::Api);
    impossible.runtime_generation = u64::MAX;
    let mut row = sandbox();
    let refused = store.insert_sandbox(&row, Some(&impossible)).await;
    assert!(matches!(refused, Err(Error::Unwritable { column: "runtime_generation", .. })), "{refused:?}");
    assert_eq!(store.sandbox(&row.id).await.expect("read"), None);

    store.insert_sandbox(&row, None).await.expect("insert");
    let before = row.clone();
    row.state = State::Destroyed;
    assert!(store.swap_sandbox(&row, Some(&impossible)).await.is_err());
    assert_eq!(store.sandbox(&row.id).await.expect("read"), Some(before));
    // The writer is free again.
    swapped(&store, &mut row, Some(EventType::Destroyed)).await;
}

pub(crate) async fn touches_never_go_back<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let mut row = sandbox();
    store.insert_sandbox(&row, None).await.expect("insert");
    let seen = async || store.sandbox(&row.id).await.expect("read").expect("there");
    for (touch, then) in [(10, 10), (5, 10), (10, 10), (20, 20)] {
        store.touch_sandbox(&row.id, at(touch)).await.expect("touch");
        let now = seen().await;
        assert_eq!((now.last_activity_at, now.version), (at(then), 1));
    }
    store.touch_sandbox(&SandboxId::random(), at(1)).await.expect("nobody there is no error");

    let store = Arc::new(store);
    let mut touches = JoinSet::new();
    for microseconds in (30..130).rev() {
        let (store, id) = (Arc::clone(&store), row.id.clone());
        touches.spawn(async move { store.touch_sandbox(&id, at(microseconds)).await.expect("touch") });
    }
    touches.join_all().await;
    // A swap by someone who read the row before the touches does not undo them.
    swapped(&*store, &mut row, None).await;
    assert_eq!(store.sandbox(&row.id).await.expect("read").expect("there").last_activity_at, at(129));
    row.last_activity_at = at(500);
    swapped(&*store, &mut row, None).await;
    assert_eq!(store.sandbox(&row.id).await.expect("read").expect("there").last_activity_at, at(500));
}

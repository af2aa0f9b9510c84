//! Tenants, their limits and their keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::task::JoinSet;
use wakeful_model::{
    Bootable, DEFAULT_TENANT, Digest, Key, KeyId, Limit, Limits, Memory, Op, OperationId, Sandbox, Scope, State,
    TemplateStatus, Tenant, Transition, Usage,
};
use wakeful_store::{Admission, Removal, Store, Swap};

use super::{Fixture, fresh, swapped};
use crate::rows::{at, sandbox, template};

fn tenant(name: &str, limits: Limits) -> Tenant {
    Tenant { name: name.into(), limits, created_at: at(0) }
}

fn key(tenant: &str, digest: u8) -> Key {
    Key {
        id: KeyId::random(),
        name: "ci".into(),
        tenant: tenant.into(),
        scopes: Scope::ALL.to_vec(),
        digest: Digest([digest; 32]),
        created_at: at(digest.into()),
        last_used_at: None,
    }
}

fn of(tenant: &str, state: State) -> Sandbox {
    let mut row = sandbox();
    row.tenant = tenant.into();
    row.state = state;
    row
}

pub(crate) async fn tenants_come_change_and_go<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let names = async || store.tenants().await.expect("list").into_iter().map(|t| t.name).collect::<Vec<_>>();
    assert_eq!(names().await, [DEFAULT_TENANT], "there from the start");
    let few = Limits { sandboxes: Some(0), memory_mb: None, disk_mb: Some(i64::MAX.cast_unsigned()) };
    let acme = tenant("acme", few);
    assert!(store.insert_tenant(&acme).await.expect("insert"));
    assert!(!store.insert_tenant(&tenant("acme", Limits::default())).await.expect("insert"), "taken");
    assert_eq!(store.tenant("acme").await.expect("read"), Some(acme));
    assert_eq!(names().await, ["acme", DEFAULT_TENANT]);
    let none = Limits::default();
    assert!(store.limit_tenant("acme", &none).await.expect("limit"));
    assert!(!store.limit_tenant("nobody", &none).await.expect("limit"));
    assert_eq!(store.tenant("acme").await.expect("read").expect("there").limits, none);
    let too_much = Limits { sandboxes: Some(u64::MAX), ..none };
    assert!(store.limit_tenant("acme", &too_much).await.is_err(), "no column holds that");

    let mut box_of = of("acme", State::Suspended(Memory::Kept));
    store.insert_sandbox(&box_of, None).await.expect("insert");
    let mut base = template("python");
    base.tenant = "acme".into();
    assert!(store.insert_template(&base).await.expect("insert"));
    let held = key("acme", 1);
    assert!(store.insert_key(&held).await.expect("insert"));
    let remove = async || store.remove_tenant("acme").await.expect("remove");
    assert_eq!(remove().await, Removal::InUse { sandboxes: 1, templates: 1, snapshots: 0, keys: 1 });
    assert!(store.remove_key(&held.id).await.expect("remove"));
    box_of.state = State::Destroyed;
    swapped(&store, &mut box_of, None).await;
    assert_eq!(remove().await, Removal::InUse { sandboxes: 0, templates: 1, snapshots: 0, keys: 0 });
    base.status = TemplateStatus::Deleted;
    assert!(matches!(store.swap_template(&base).await.expect("swap"), Swap::Swapped(_)));
    assert_eq!(remove().await, Removal::Removed);
    assert_eq!(remove().await, Removal::NotFound);
    assert_eq!(store.sandbox(&box_of.id).await.expect("read"), None, "no heir meets it");
    assert_eq!(store.admit_sandbox(&of("acme", State::Creating), None).await.expect("admit"), Admission::NoTenant);
    assert!(store.live_sandboxes().await.expect("live").is_empty());
}

pub(crate) async fn usage_is_counted<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    for state in State::ALL {
        let mut row = of("acme", state);
        (row.memory_mb, row.disk_mb) = (100, 10);
        store.insert_sandbox(&row, None).await.expect("insert");
    }
    store.insert_sandbox(&of("other", State::Running), None).await.expect("insert");
    // Seven of eight states live, of which creating and running have memory.
    let used = Usage { sandboxes: 7, memory_mb: 200, disk_mb: 70 };
    assert_eq!(store.tenant_usage("acme").await.expect("usage"), used);
    assert_eq!(store.tenant_usage("nobody").await.expect("usage"), Usage::default());
    let mut waking = of("acme", State::Failed(Bootable::Yes));
    waking.transition = Some(Transition { id: OperationId::random(), op: Op::Wake, since: at(0), automatic: false });
    store.insert_sandbox(&waking, None).await.expect("insert");
    assert_eq!(store.tenant_usage("acme").await.expect("usage").memory_mb, 200 + u64::from(waking.memory_mb));
}

/// Many at once: exactly as many as there may be come in, whichever limit it is.
pub(crate) async fn limits_hold_under_a_rush<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let store = Arc::new(store);
    let none = Limits::default();
    for (name, limits, which, most, fit) in [
        ("few", Limits { sandboxes: Some(5), ..none }, Limit::Sandboxes, 5, 5),
        ("small", Limits { memory_mb: Some(1000), ..none }, Limit::MemoryMb, 1000, 3),
        ("flat", Limits { disk_mb: Some(4096), ..none }, Limit::DiskMb, 4096, 2),
        ("shut", Limits { sandboxes: Some(0), ..none }, Limit::Sandboxes, 0, 0),
        ("free", none, Limit::Sandboxes, 0, 16),
    ] {
        assert!(store.insert_tenant(&tenant(name, limits)).await.expect("insert"));
        let mut rush = JoinSet::new();
        for _ in 0..16 {
            let store = Arc::clone(&store);
            rush.spawn(async move { store.admit_sandbox(&of(name, State::Creating), None).await.expect("admit") });
        }
        let answers = rush.join_all().await;
        assert_eq!(answers.iter().filter(|answer| **answer == Admission::Admitted(())).count(), fit, "{name}");
        for answer in answers {
            if let Admission::Over { limit, most: said, used } = answer {
                assert_eq!((limit, said), (which, most), "{name}");
                assert!(used <= most, "{name} had {used}");
            }
        }
        assert_eq!(store.tenant_usage(name).await.expect("usage").sandboxes, fit as u64, "{name}");
    }
}

pub(crate) async fn wakes_are_counted<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let limits = Limits { sandboxes: Some(1), memory_mb: Some(600), disk_mb: Some(1) };
    assert!(store.insert_tenant(&tenant("acme", limits)).await.expect("insert"));
    let mut rows = Vec::new();
    for _ in 0..3 {
        let row = of("acme", State::Suspended(Memory::Kept));
        store.insert_sandbox(&row, None).await.expect("insert");
        rows.push(row);
    }
    let intent = |row: &Sandbox| {
        let mut row = row.clone();
        row.transition = Some(Transition { id: OperationId::random(), op: Op::Wake, since: at(0), automatic: false });
        row
    };
    for row in &rows[..2] {
        let answer = store.admit_wake(&intent(row), None).await.expect("admit");
        assert!(matches!(answer, Admission::Admitted(Swap::Swapped(2))), "{answer:?}");
    }
    // The third does not fit, and nothing is written.
    let over = store.admit_wake(&intent(&rows[2]), None).await.expect("admit");
    assert!(matches!(over, Admission::Over { limit: Limit::MemoryMb, used: 512, most: 600 }), "{over:?}");
    assert_eq!(store.sandbox(&rows[2].id).await.expect("read").as_ref(), Some(&rows[2]));
    // An intent over an older one of the same sandbox is no second one; a stale one is told so.
    let mut again = intent(&rows[0]);
    let stale = store.admit_wake(&again, None).await.expect("admit");
    assert!(matches!(stale, Admission::Admitted(Swap::Stale(_))), "{stale:?}");
    again.version = 2;
    let answer = store.admit_wake(&again, None).await.expect("admit");
    assert!(matches!(answer, Admission::Admitted(Swap::Swapped(3))), "{answer:?}");
}

pub(crate) async fn growth_is_counted<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let limits = Limits { disk_mb: Some(5000), sandboxes: Some(0), memory_mb: Some(0) };
    assert!(store.insert_tenant(&tenant("acme", limits)).await.expect("insert"));
    let mut row = of("acme", State::Suspended(Memory::Kept));
    let mut other = of("acme", State::Suspended(Memory::Kept));
    (row.disk_mb, other.disk_mb) = (1000, 1000);
    for row in [&row, &other] {
        store.insert_sandbox(row, None).await.expect("insert");
    }
    // Its own former size does not count beside the new one, and only disk is asked for.
    let larger = |disk_mb| Sandbox { disk_mb, ..row.clone() };
    let over = store.admit_growth(&larger(4001), None).await.expect("admit");
    assert!(matches!(over, Admission::Over { limit: Limit::DiskMb, used: 1000, most: 5000 }), "{over:?}");
    assert_eq!(store.sandbox(&row.id).await.expect("read").as_ref(), Some(&row));
    let answer = store.admit_growth(&larger(4000), None).await.expect("admit");
    assert!(matches!(answer, Admission::Admitted(Swap::Swapped(2))), "{answer:?}");
    let stale = store.admit_growth(&larger(4000), None).await.expect("admit");
    assert!(matches!(stale, Admission::Admitted(Swap::Stale(_))), "{stale:?}");
}

pub(crate) async fn keys_are_kept_and_go<F: Fixture>() {
    let (fixture, store) = fresh::<F>().await;
    let mut first = key(DEFAULT_TENANT, 1);
    let second = Key { scopes: vec![Scope::SandboxRead], ..key(DEFAULT_TENANT, 2) };
    assert!(!store.insert_key(&key("nobody", 3)).await.expect("insert"), "there is no such tenant");
    for row in [&first, &second] {
        assert!(store.insert_key(row).await.expect("insert"));
    }
    assert!(store.insert_key(&key(DEFAULT_TENANT, 1)).await.is_err(), "a digest is one key's");
    for (said, kept) in [(50, 50), (40, 50), (60, 60)] {
        let uses = [(first.id.clone(), at(said)), (KeyId::random(), at(said))];
        store.note_key_uses(&uses).await.expect("note");
        first.last_used_at = Some(at(kept));
        assert_eq!(store.keys().await.expect("list"), [first.clone(), second.clone()]);
    }
    F::close(&store).await;
    drop(store);
    let store = F::open(&fixture.address()).await;
    assert_eq!(store.keys().await.expect("list"), [first.clone(), second.clone()]);
    assert!(store.remove_key(&first.id).await.expect("remove"));
    assert!(!store.remove_key(&first.id).await.expect("remove"), "gone already");
    let left: BTreeSet<_> = store.keys().await.expect("list").into_iter().map(|key| key.id).collect();
    assert_eq!(left, BTreeSet::from([second.id]));
    F::close(&store).await;
}

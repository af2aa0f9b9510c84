//! What every store promises. `store_contract!(name, Fixture)` makes one test of each promise.

mod claims;
mod durability;
mod lists;
mod round_trips;
mod snapshots;
mod swaps;
mod templates;
mod tenants;

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use wakeful_model::{Cause, DEFAULT_TENANT, EventType, Sandbox, SandboxId};
use wakeful_store::{Filter, Store, Swap};

pub(crate) use claims::*;
pub(crate) use durability::*;
pub(crate) use lists::*;
pub(crate) use round_trips::*;
pub(crate) use snapshots::*;
pub(crate) use swaps::*;
pub(crate) use templates::*;
pub(crate) use tenants::*;

use crate::rows::event;

/// Where a store can be opened, closed and opened again. Dropped, nothing of it remains.
pub(crate) trait Fixture: Sized + Send + Sync {
    type Store: Store + 'static;
    fn new() -> impl Future<Output = Self> + Send;
    /// What [`open`](Self::open) needs, also in another process.
    fn address(&self) -> String;
    fn open(address: &str) -> impl Future<Output = Self::Store> + Send;
    fn close(store: &Self::Store) -> impl Future<Output = ()> + Send;
}

macro_rules! store_contract {
    ($name:ident, $fixture:ty) => {
        mod $name {
            use super::*;
            store_contract!(@each $fixture:
                what_is_inserted_is_read, any_sandbox_round_trips, any_template_round_trips,
                a_swap_wins_once_and_then_is_stale, sixteen_swaps_have_one_winner,
                events_come_with_their_state, a_refused_event_leaves_no_state, touches_never_go_back,
                lists_filter, labels_are_compared_whole, lists_page, foreign_cursors_are_refused,
                tombstones_are_kept_and_forgotten, template_names_are_unique_while_alive,
                templates_swap_and_go, resources_are_journalled, ports_are_kept_and_go, snapshots_are_kept_and_go, a_key_is_claimed_once,
                answers_belong_to_their_claim, old_keys_are_free, sixteen_claims_have_one_winner,
                everything_is_there_after_reopening, tenants_come_change_and_go, usage_is_counted,
                limits_hold_under_a_rush, wakes_are_counted, growth_is_counted, keys_are_kept_and_go);

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn committed_rows_outlive_kill_nine() {
                // As the test runner names it: without this crate.
                let (_, module) = module_path!().split_once("::").expect("in a module");
                let test = format!("{module}::committed_rows_outlive_kill_nine");
                crate::contract::committed_rows_outlive_kill_nine::<$fixture>(&test).await;
            }
        }
    };
    (@each $fixture:ty: $($promise:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                tokio::time::timeout(crate::contract::PATIENCE, crate::contract::$promise::<$fixture>())
                    .await
                    .expect("done in time");
            }
        )+
    };
}
pub(crate) use store_contract;

/// Far more than any of these takes, also on a busy disk.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

async fn fresh<F: Fixture>() -> (F, F::Store) {
    let fixture = F::new().await;
    let store = F::open(&fixture.address()).await;
    (fixture, store)
}

async fn swapped(store: &impl Store, row: &mut Sandbox, kind: Option<EventType>) {
    let event = kind.map(|kind| event(kind, Cause::Api));
    match store.swap_sandbox(row, event.as_ref()).await.expect("swap") {
        Swap::Swapped(version) => row.version = version,
        other => panic!("{other:?}"),
    }
}

fn everyone() -> Filter {
    Filter { tenant: DEFAULT_TENANT.into(), limit: 1000, ..Filter::default() }
}

async fn listed(store: &impl Store, filter: &Filter) -> BTreeSet<SandboxId> {
    let page = store.sandboxes(filter).await.expect("list");
    assert_eq!(page.next_cursor, None);
    page.sandboxes.into_iter().map(|row| row.id).collect()
}

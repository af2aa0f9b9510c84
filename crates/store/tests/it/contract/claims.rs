//! Idempotency keys.

use std::sync::Arc;

use wakeful_store::{Answer, Claim, Store};

use super::{Fixture, fresh};
use crate::rows::at;

fn claim(digest: &str, subject: &str) -> Claim {
    Claim { digest: digest.into(), subject: subject.into(), answer: None }
}

fn answer(body: &str) -> Answer {
    Answer { status: 201, location: Some("/v1/sandboxes/x".into()), body: body.into() }
}

pub(crate) async fn a_key_is_claimed_once<F: Fixture>() {
    let (fixture, store) = fresh::<F>().await;
    let first = claim("d", "sbx_1");
    assert_eq!(store.claim("a", "k", &first, at(10), at(0)).await.expect("claim"), None);
    let found = store.claim("a", "k", &claim("e", "sbx_2"), at(11), at(1)).await.expect("claim");
    assert_eq!(found.as_ref(), Some(&first));
    for (tenant, key) in [("b", "k"), ("a", "K"), ("a", "k ")] {
        let other = store.claim(tenant, key, &claim("e", "sbx_3"), at(11), at(1)).await.expect("claim");
        assert_eq!(other, None, "{tenant} {key:?}");
    }
    F::close(&store).await;
    let store = F::open(&fixture.address()).await;
    let found = store.claim("a", "k", &claim("e", "sbx_2"), at(11), at(1)).await.expect("claim");
    assert_eq!(found, Some(first), "it is there after reopening");
}

pub(crate) async fn answers_belong_to_their_claim<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let again = async || store.claim("a", "k", &claim("e", "sbx_2"), at(11), at(1)).await.expect("claim");
    store.claim("a", "k", &claim("d", "sbx_1"), at(10), at(0)).await.expect("claim");
    store.answer_claim("a", "k", "sbx_9", &answer("not yours")).await.expect("answer");
    store.release_claim("a", "k", "sbx_9").await.expect("release");
    assert_eq!(again().await.expect("there").answer, None);
    for text in ["{\"é\":\"\\u0000\"}", ""] {
        store.answer_claim("a", "k", "sbx_1", &answer(text)).await.expect("answer");
        assert_eq!(again().await.expect("there").answer, Some(answer(text)));
    }
    let bare = Answer { status: 202, location: None, body: "{}".into() };
    store.answer_claim("a", "k", "sbx_1", &bare).await.expect("answer");
    assert_eq!(again().await.expect("there").answer, Some(bare));
    store.release_claim("a", "k", "sbx_1").await.expect("release");
    store.release_claim("a", "k", "sbx_1").await.expect("twice is no error");
    assert_eq!(again().await, None, "free again");
    assert_eq!(again().await, Some(claim("e", "sbx_2")));
}

pub(crate) async fn old_keys_are_free<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    store.claim("a", "k", &claim("d", "sbx_1"), at(10), at(0)).await.expect("claim");
    store.answer_claim("a", "k", "sbx_1", &answer("old")).await.expect("answer");
    let second = claim("e", "sbx_2");
    assert!(store.claim("a", "k", &second, at(20), at(10)).await.expect("claim").is_some(), "not older than that");
    assert_eq!(store.claim("a", "k", &second, at(20), at(11)).await.expect("claim"), None);
    let found = store.claim("a", "k", &claim("f", "sbx_3"), at(21), at(11)).await.expect("claim");
    assert_eq!(found, Some(second), "without the old answer");
    store.claim("a", "young", &claim("d", "sbx_4"), at(30), at(0)).await.expect("claim");
    assert_eq!(store.forget_claims(at(30)).await.expect("forget"), 1);
    assert_eq!(store.forget_claims(at(30)).await.expect("forget"), 0);
    assert_eq!(store.forget_claims(at(31)).await.expect("forget"), 1);
}

pub(crate) async fn sixteen_claims_have_one_winner<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let store = Arc::new(store);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mine = claim("d", &format!("sbx_{number}"));
            store.claim("a", "k", &mine, at(10), at(0)).await.expect("claim").is_none()
        });
    }
    let won = tasks.join_all().await.into_iter().filter(|won| *won).count();
    assert_eq!(won, 1);
}

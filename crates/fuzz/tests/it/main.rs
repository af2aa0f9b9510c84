//! The short run: every target on its seeds, and on what mutation makes of them.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use wakeful_fuzz::{TARGETS, Target, target};

/// One change of the input.
#[derive(Clone, Debug)]
enum Change {
    Flip(prop::sample::Index, u8),
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    /// Numbers that readers get wrong, written over what is there.
    Number(prop::sample::Index, u64),
    Cut(prop::sample::Index),
    Append(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = || any::<prop::sample::Index>();
    let number = prop_oneof![Just(0), Just(u64::MAX), Just(1 << 31), Just(1 << 32), Just(1 << 63), 0..5000_u64];
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..60_usize).prop_map(|(at, length)| Change::Remove(at, length)),
        (at(), 1..200_usize).prop_map(|(at, length)| Change::Repeat(at, length)),
        (at(), number).prop_map(|(at, number)| Change::Number(at, number)),
        at().prop_map(Change::Cut),
        at().prop_map(Change::Append),
    ]
}

fn apply(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], change: Change) {
    if bytes.is_empty() {
        bytes.push(0);
    }
    let length = bytes.len();
    match change {
        Change::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
        Change::Set(at, byte) => bytes[at.index(length)] = byte,
        Change::Insert(at, more) => drop(bytes.splice(at.index(length)..at.index(length), more)),
        Change::Remove(at, count) => drop(bytes.drain(at.index(length)..length.min(at.index(length) + count))),
        Change::Repeat(at, count) => {
            let again = bytes[at.index(length)..length.min(at.index(length) + count)].to_vec();
            bytes.extend(again);
        }
        Change::Number(at, number) => {
            let start = at.index(length);
            let end = length.min(start + 8);
            bytes[start..end].copy_from_slice(&number.to_le_bytes()[..end - start]);
        }
        Change::Cut(at) => bytes.truncate(at.index(length)),
        Change::Append(at) => bytes.extend(&seeds[at.index(seeds.len())]),
    }
}

/// What fails is shrunk and printed; `cases` keeps a target at a few seconds.
fn short_run(name: &str, cases: u32) {
    let Target { run, seeds, .. } = target(name);
    let seeds = seeds();
    seeds.iter().for_each(|seed| run(seed));
    run(&[]);
    let input = (any::<prop::sample::Index>(), prop::collection::vec(change(), 1..12)).prop_map({
        let seeds = seeds.clone();
        move |(which, changes)| {
            let mut bytes = seeds[which.index(seeds.len())].clone();
            changes.into_iter().for_each(|change| apply(&mut bytes, &seeds, change));
            bytes
        }
    });
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&input, |bytes| {
        run(&bytes);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{name}: {failure}"));
}

macro_rules! short_runs {
    ($($name:ident: $cases:expr),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                short_run(stringify!($name), $cases);
            }
        )*

        #[test]
        fn none_is_forgotten() {
            let mut run = [$(stringify!($name)),*];
            let mut all = TARGETS.map(|target| target.name);
            run.sort_unstable();
            all.sort_unstable();
            assert_eq!(run.as_slice(), all.as_slice());
        }
    };
}

short_runs! {
    hello: 40_000,
    stream_frames: 40_000,
    agent_answers: 3000,
    request_body: 40_000,
    request_target: 40_000,
    monitor: 10_000,
    pages: 10_000,
    manifest: 40_000,
    first_bytes: 40_000,
    dns: 20_000,
    preview_host: 40_000,
    preview_headers: 40_000,
    preview_frames: 40_000,
    preview_cookie: 20_000,
    preview_request: 40_000,
    problem_page: 40_000,
    layer: 20_000,
    image_documents: 20_000,
    dockerfile: 10_000,
    tunnel: 20_000,
}

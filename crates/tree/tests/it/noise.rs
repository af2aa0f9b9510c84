//! Bytes that nobody wrote on purpose: no panic, nothing outside, and an end.

use std::path::Path;

use proptest::prelude::*;
use wakeful_tree::{Limits, Pack, Shape, Unpack, Whiteouts, pack, scan};

use crate::archive::Archive;
use crate::facts;
use crate::hostile::Cage;

const LIMITS: Limits = Limits { bytes: 64 << 20, entries: 300 };

fn sample() -> Vec<u8> {
    let from = tempfile::tempdir().expect("tempdir");
    facts::one_of_each(from.path());
    let mut archive = Vec::new();
    pack(from.path(), Path::new(""), &mut archive, &Pack::default()).expect("packed");
    // Without what is only long.
    archive.truncate(archive.len().min(40 * 512));
    archive
}

/// Sums of headers are set right again, or hardly anything but the first flip would be looked at.
fn right_the_sums(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
}

fn digest(cage: &Cage, archive: &[u8], flavour: u8) {
    let whiteouts = if flavour & 1 == 0 { Whiteouts::Apply } else { Whiteouts::Keep };
    let shape = if flavour & 6 == 6 { Shape::Single { name: None } } else { Shape::Tree };
    let options =
        Unpack { limits: LIMITS, whiteouts, shape, keep_directory_links: flavour & 8 != 0, ..Unpack::default() };
    let _ = cage.unpack_with(archive, &options);
    let _ = scan(archive, LIMITS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..4096), flavour: u8) {
        digest(&Cage::new(), &bytes, flavour);
    }

    #[test]
    fn random_records(bytes in proptest::collection::vec(any::<u8>(), 0..600), key in "[a-zA-Z.]{1,20}", flavour: u8) {
        let archive = Archive::default().raw(b"p", b'x', b"", 0o644, &bytes).file("x", b"data");
        digest(&Cage::new(), &archive.end(), flavour);
        let archive = Archive::default().pax(&[(&key, &bytes), ("GNU.sparse.map", &bytes)]).file("x", b"data");
        digest(&Cage::new(), &archive.end(), flavour);
    }

    #[test]
    fn random_entries(
        entries in proptest::collection::vec(("(\\.wh\\.)?(a|b|c|\\.\\.|\\.|\\.wh\\.\\.opq)(/(a|b|c|\\.wh\\.a)){0,3}/?", 0u8..8, "(/|\\.\\./)?(a|b|c|\\.\\.)(/(a|b|\\.\\.)){0,3}"), 1..25),
        flavour: u8,
    ) {
        // Each on its own, so that one refusal does not end it all.
        let cage = Cage::new();
        for chunk in entries.chunks(4) {
            let archive = chunk.iter().fold(Archive::default(), |archive, (name, kind, target)| match kind {
                0 | 1 => archive.file(name, b"data"),
                2 => archive.directory(name),
                3 | 4 => archive.symlink(name, target),
                5 | 6 => archive.hard(name, target),
                _ => archive.raw(name.as_bytes(), b'6', b"", 0o644, b""),
            });
            digest(&cage, &archive.end(), flavour);
        }
    }
}

#[test]
fn flipped_bits() {
    let sample = sample();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for round in 0..400u32 {
        let mut archive = sample.clone();
        for _ in 0..=(round % 5) {
            let at = (runner.rng().next_u64() as usize) % archive.len();
            archive[at] ^= 1 << (runner.rng().next_u32() % 8);
        }
        if round % 4 != 0 {
            right_the_sums(&mut archive);
        }
        digest(&Cage::new(), &archive, (round % 16) as u8);
    }
}

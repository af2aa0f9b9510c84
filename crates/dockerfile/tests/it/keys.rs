//! Keys change exactly when they must.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use wakeful_dockerfile::{Context, Digest, ImageConfig, Key, Options, key, parse, plan};

use super::{actions, copy, lay, walked};

fn root() -> Key {
    Key::root("sha256:00", &ImageConfig::default())
}

/// The key at the end of a text.
fn end(text: &str) -> Key {
    actions(text).iter().fold(root(), |key, action| key.next(action, &[]))
}

#[test]
fn commands_differ_by_what_they_see() {
    let base = end("RUN x");
    assert_eq!(base, end("RUN x"));
    assert_eq!(base, end("RUN    x"));
    assert_eq!(base, end("# comment\nRUN \\\nx"));
    for other in [
        "RUN y",
        "RUN x y",
        "RUN [\"x\"]",
        "ENV A=1\nRUN x",
        "ARG A=1\nRUN x",
        "USER u\nRUN x",
        "WORKDIR /w\nRUN x",
        "SHELL [\"/bin/bash\", \"-c\"]\nRUN x",
        "RUN --mount=type=tmpfs,target=/t x",
        "RUN x\nRUN x",
        "RUN <<E\nx\nE",
    ] {
        assert_ne!(base, end(other), "{other}");
    }
    // What no command sees costs no cache.
    for same in ["LABEL a=b\nRUN x", "EXPOSE 80\nRUN x", "RUN x\nCMD y", "RUN x\nENV A=1", "ARG A\nRUN x"] {
        assert_eq!(base, end(same), "{same}");
    }
    assert_eq!(end("ENV A=1\nENV B=2\nRUN x"), end("ENV B=2\nENV A=1\nRUN x"));
    assert_ne!(end("ENV A=1\nRUN x"), end("ENV A=2\nRUN x"));
    assert_ne!(end("RUN [\"a\", \"b\"]"), end("RUN [\"ab\"]"), "borders count");
    assert_ne!(end("ENV A=\"1 B=2\"\nRUN x"), end("ENV A=1 B=2\nRUN x"));
}

#[test]
fn copies_differ_by_what_they_say_and_take() {
    let base = end("COPY a /b");
    for other in [
        "COPY c /b",
        "COPY a /c",
        "COPY a /b/",
        "ADD a /b",
        "COPY --chown=1 a /b",
        "COPY --chmod=644 a /b",
        "COPY --exclude=x a /b",
        "COPY --parents a /b",
        "COPY --from=img a /b",
        "WORKDIR /w\nCOPY a /b",
        "COPY <<a /b\nx\na",
    ] {
        assert_ne!(base, end(other), "{other}");
    }
    assert_eq!(base, end("COPY --link a /b"));
    assert_eq!(base, end("ENV A=1\nUSER u\nCOPY a /b"), "files are root's whoever runs commands");
    assert_ne!(end("COPY <<a /b\nx\na"), end("COPY <<a /b\ny\na"));
    let action = &actions("COPY a /b")[0];
    let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
    assert_ne!(key(&root(), action, Some(one)), key(&root(), action, Some(two)));
    assert_ne!(key(&root(), action, Some(one)), key(&root(), action, None));
    assert_ne!(root().next(action, &[one, two]), root().next(action, &[two, one]));
}

#[test]
fn a_stages_number_does_not_matter_but_its_content_does() {
    let last = |text: &str| walked(&plan(&parse(text).unwrap(), &Options::default()).unwrap()).0.pop().unwrap();
    let first = last("FROM a AS x\nFROM b\nCOPY --from=x /a /a");
    let second = last("FROM z\nFROM a AS x\nFROM b\nCOPY --from=x /a /a");
    let input = end("RUN x").as_input();
    assert_eq!(root().next(&first, &[input]), root().next(&second, &[input]));
    assert_ne!(root().next(&first, &[input]), root().next(&first, &[end("RUN y").as_input()]));
}

#[test]
fn roots_and_images_differ_by_digest_and_config() {
    let plain = ImageConfig::default();
    let with = |change: fn(&mut ImageConfig)| {
        let mut config = ImageConfig::default();
        change(&mut config);
        config
    };
    let changes: [fn(&mut ImageConfig); 13] = [
        |c| c.env.push(("A".into(), "1".into())),
        |c| c.user = "u".into(),
        |c| c.workdir = "/w".into(),
        |c| c.entrypoint = Some(vec![]),
        |c| c.cmd = Some(vec!["x".into()]),
        |c| drop(c.labels.insert("a".into(), "b".into())),
        |c| c.exposed.extend(["80/tcp".into()]),
        |c| c.volumes.extend(["/v".into()]),
        |c| c.shell = Some(vec!["x".into()]),
        |c| c.healthcheck = Some(wakeful_dockerfile::Healthcheck::default()),
        |c| c.stop_signal = Some("9".into()),
        |c| c.onbuild.push("RUN x".into()),
        |c| c.author = Some("me".into()),
    ];
    let mut seen = vec![Key::root("sha256:00", &plain), Key::root("sha256:01", &plain), Key::root("scratch", &plain)];
    for change in changes {
        seen.push(Key::root("sha256:00", &with(change)));
        assert_ne!(root().with_config(&plain), root().with_config(&with(change)));
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count);
}

#[test]
fn keys_are_written_and_read() {
    let key = root();
    assert_eq!(key.to_string().len(), 64);
    assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
    assert!("xyz".parse::<Key>().is_err());
    assert!(format!("{key:?}").starts_with("Key("));
}

#[test]
fn digests_follow_the_content_and_not_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), &[("d/a", "1"), ("d/b", "2"), (".dockerignore", "d/junk\n"), ("d/junk", "x")]);
    symlink("a", dir.path().join("d/l")).unwrap();
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    let step = copy(&actions("COPY d /x")[0]).clone();
    let digest = || context.digest(&context.select(&step).unwrap()).unwrap();
    let path = |name: &str| dir.path().join("d").join(name);
    let first = digest();
    assert_eq!(first, digest());

    let file = std::fs::File::open(path("a")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(5)).unwrap();
    lay(dir.path(), &[("d/junk", "other"), ("elsewhere", "new")]);
    assert_eq!(first, digest(), "times, hidden files and strangers do not count");

    let mut seen = vec![first];
    let mut changed = |what: &str| {
        let now = digest();
        assert!(!seen.contains(&now), "{what}");
        seen.push(now);
    };
    std::fs::write(path("a"), "3").unwrap();
    changed("content");
    std::fs::rename(path("b"), path("c")).unwrap();
    changed("a name");
    std::fs::set_permissions(path("c"), std::fs::Permissions::from_mode(0o700)).unwrap();
    changed("a mode");
    std::fs::remove_file(path("l")).unwrap();
    symlink("c", path("l")).unwrap();
    changed("a link");
    std::fs::create_dir(path("empty")).unwrap();
    changed("a directory");
    std::fs::remove_file(path("a")).unwrap();
    std::fs::create_dir(path("a")).unwrap();
    changed("a kind");
    // The same bytes divided otherwise are other files.
    std::fs::write(path("e1"), "12").unwrap();
    std::fs::write(path("e2"), "3").unwrap();
    changed("new files");
    std::fs::write(path("e1"), "1").unwrap();
    std::fs::write(path("e2"), "23").unwrap();
    changed("a border");
}

proptest! {
    #[test]
    fn different_commands_have_different_keys(a in "[a-z \"']{1,12}", b in "[a-z \"']{1,12}") {
        let (one, two) = (format!("RUN x{a}y"), format!("RUN x{b}y"));
        prop_assert_eq!(one == two, end(&one) == end(&two));
    }
}

//! What sources mean on a real file system.

use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;
use wakeful_dockerfile::{Context, CopyStep, Error, Placement, Selected, SelectedKind};

use super::{actions, copy, lay};

fn step(text: &str) -> CopyStep {
    copy(&actions(text)[0]).clone()
}

fn names(selected: &[Selected]) -> Vec<String> {
    selected.iter().map(|one| one.name.to_string_lossy().into_owned()).collect()
}

/// A context of these files, with this `.dockerignore`.
fn context(files: &[&str], ignore: &str) -> (TempDir, Context) {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        lay(dir.path(), &[(file, file)]);
    }
    if !ignore.is_empty() {
        lay(dir.path(), &[(".dockerignore", ignore)]);
    }
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    (dir, context)
}

fn selected(context: &Context, text: &str) -> Vec<String> {
    names(&context.select(&step(text)).expect(text))
}

fn refused(context: &Context, text: &str) -> Error {
    context.select(&step(text)).expect_err(text)
}

const TREE: &[&str] = &["a.txt", "b.txt", "c.md", "src/main.rs", "src/lib.rs", "src/deep/x.rs", "empty/", "[1].txt"];

#[test]
fn files_directories_and_patterns() {
    let (_dir, context) = context(TREE, "");
    assert_eq!(selected(&context, "COPY a.txt /x"), ["a.txt"]);
    assert_eq!(selected(&context, "COPY ./a.txt /x"), ["a.txt"]);
    assert_eq!(selected(&context, "COPY /src/main.rs /x"), ["main.rs"]);
    assert_eq!(selected(&context, "COPY src /x"), ["deep", "deep/x.rs", "lib.rs", "main.rs"]);
    assert_eq!(selected(&context, "COPY src/ /x"), ["deep", "deep/x.rs", "lib.rs", "main.rs"]);
    assert_eq!(selected(&context, "COPY *.txt /x/"), ["[1].txt", "a.txt", "b.txt"]);
    assert_eq!(selected(&context, "COPY ?.md src/l*.rs /x/"), ["c.md", "lib.rs"]);
    assert_eq!(selected(&context, "COPY s*/deep /x"), ["x.rs"]);
    assert_eq!(selected(&context, "COPY [[]1].txt /x"), ["[1].txt"]);
    assert_eq!(selected(&context, "COPY empty /x"), Vec::<String>::new());
    assert_eq!(selected(&context, "COPY . /x").len(), 10);
    assert_eq!(selected(&context, "COPY src/.. /x").len(), 10);
}

#[test]
fn what_is_not_there() {
    let (_dir, context) = context(TREE, "secret*\nhidden\n");
    for file in ["secret.txt", "hidden/x"] {
        lay(_dir.path(), &[(file, "x")]);
    }
    for (text, part) in [
        ("COPY nope /x", "not in the context"),
        ("COPY *.zip /x", "nothing in the context matches"),
        ("COPY a.txt/x /x", "not in the context"),
        ("COPY secret.txt /x", "hidden by .dockerignore"),
        ("COPY hidden /x", "hidden by .dockerignore"),
        ("COPY hidden/x /x", "hidden by .dockerignore"),
        ("COPY sec* /x/", "hidden by .dockerignore"),
        ("COPY ../x /x", "outside the context"),
        ("COPY src/../../x /x", "outside the context"),
        ("COPY [a /x", "syntax error in pattern"),
        ("COPY *.txt /x", "ends with a /"),
        ("COPY --exclude=[a . /x", "syntax error in pattern"),
    ] {
        let error = refused(&context, text).with_line(7);
        assert!(error.to_string().contains(part) && error.line() == Some(7), "{text}: {error}");
    }
}

#[test]
fn ignored_inside_directories_with_exceptions() {
    let (_dir, context) = context(
        &["a.log", "keep.log", "src/x.log", "src/x.rs", "vendor/a/x", "vendor/b/y", "node_modules/m/i.js"],
        "**/*.log\n!keep.log\nvendor\n!vendor/b\nnode_modules\n.dockerignore\n",
    );
    assert_eq!(selected(&context, "COPY . /x"), ["keep.log", "src", "src/x.rs", "vendor", "vendor/b", "vendor/b/y"]);
    assert_eq!(selected(&context, "COPY vendor /x"), ["b", "b/y"]);
    assert_eq!(selected(&context, "COPY *.log /x/"), ["keep.log"]);
}

#[test]
fn excludes_are_relative_to_the_source() {
    let (_dir, context) = context(TREE, "");
    assert_eq!(selected(&context, "COPY --exclude=*.rs src /x"), ["deep", "deep/x.rs"]);
    assert_eq!(selected(&context, "COPY --exclude=**/*.rs src /x"), ["deep"]);
    assert_eq!(selected(&context, "COPY --exclude=deep src /x"), ["lib.rs", "main.rs"]);
    assert_eq!(selected(&context, "COPY --exclude=* --exclude=!lib.rs src /x"), ["lib.rs"]);
    assert_eq!(selected(&context, "COPY --exclude=b.txt *.txt /x/"), ["[1].txt", "a.txt"]);
}

#[test]
fn parents_are_kept_when_asked() {
    let (_dir, context) = context(TREE, "");
    assert_eq!(selected(&context, "COPY --parents src/main.rs a.txt /x/"), ["src", "src/main.rs", "a.txt"]);
    assert_eq!(selected(&context, "COPY --parents src/./deep/x.rs /x/"), ["deep", "deep/x.rs"]);
    assert_eq!(selected(&context, "COPY --parents src/deep /x/"), ["src", "src/deep", "src/deep/x.rs"]);
    let all = selected(&context, "COPY --parents **/*.rs /x/");
    assert_eq!(all, ["src", "src/lib.rs", "src/main.rs", "src/deep", "src/deep/x.rs"]);
}

#[test]
fn links_are_kept_inside_and_never_followed_out() {
    let (dir, context) = context(&["d/real.txt"], "");
    symlink("d/real.txt", dir.path().join("good")).unwrap();
    symlink("d", dir.path().join("dir")).unwrap();
    symlink("real.txt", dir.path().join("d/inner")).unwrap();
    symlink("/etc/passwd", dir.path().join("absolute")).unwrap();
    symlink("../../../../etc/passwd", dir.path().join("above")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    // A source that is a link means what it points to; a link below a directory stays one.
    let good = context.select(&step("COPY good /x")).unwrap();
    assert_eq!((good[0].path.as_path(), good[0].kind), (Path::new("d/real.txt"), SelectedKind::File));
    assert_eq!(names(&good), ["good"]);
    assert_eq!(selected(&context, "COPY dir/real.txt /x"), ["real.txt"]);
    let all = context.select(&step("COPY . /x")).unwrap();
    assert!(all.iter().any(|one| one.name == Path::new("absolute") && one.kind == SelectedKind::Symlink));
    assert!(all.iter().any(|one| one.name == Path::new("d/inner") && one.kind == SelectedKind::Symlink));
    for (text, part) in [
        ("COPY absolute /x", "leads out"),
        ("COPY above /x", "leads out"),
        ("COPY loop /x", "too many symbolic links"),
        ("COPY dangling /x", "not in the context"),
    ] {
        assert!(refused(&context, text).to_string().contains(part), "{text}");
    }
    // In a stage's own tree its root is where links begin.
    lay(dir.path(), &[("etc/passwd", "ours")]);
    let bare = Context::bare(dir.path()).unwrap();
    for text in ["COPY absolute /x", "COPY above /x"] {
        assert_eq!(bare.select(&step(text)).unwrap()[0].path, Path::new("etc/passwd"), "{text}");
    }
}

#[test]
fn sockets_and_pipes_are_passed_over() {
    let (dir, context) = context(&["d/a"], "");
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("d/socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("d/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o600),
        0,
    )
    .unwrap();
    assert_eq!(selected(&context, "COPY d /x"), ["a"]);
}

#[test]
fn a_dockerfiles_own_list_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    lay(
        dir.path(),
        &[("a", ""), ("b", ""), (".dockerignore", "a\n"), ("sub/My.Dockerfile.dockerignore", "b\nsub\n.*\n")],
    );
    let open = |file: &str| Context::open(dir.path(), Path::new(file)).unwrap();
    assert_eq!(selected(&open("sub/My.Dockerfile"), "COPY . /x"), ["a"]);
    assert!(!selected(&open("Dockerfile"), "COPY . /x").contains(&"a".to_owned()));
    let absolute = Context::open(dir.path(), &dir.path().join("sub/My.Dockerfile")).unwrap();
    assert_eq!(selected(&absolute, "COPY . /x"), ["a"]);
}

#[test]
fn a_bad_list_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), &[(".dockerignore", "ok\n[\n")]);
    let error = Context::open(dir.path(), Path::new("Dockerfile")).unwrap_err();
    assert_eq!(error.line(), Some(2));
    std::fs::remove_file(dir.path().join(".dockerignore")).unwrap();
    symlink("/etc/passwd", dir.path().join(".dockerignore")).unwrap();
    assert!(Context::open(dir.path(), Path::new("Dockerfile")).is_err(), "a link is not read");
    assert!(Context::open(&dir.path().join("nope"), Path::new("Dockerfile")).is_err());
}

#[test]
fn placements() {
    let (_dir, context) = context(TREE, "");
    for (text, expected) in [
        ("COPY a.txt /x", Placement::Single),
        ("COPY a.txt /x/", Placement::Into),
        ("COPY src /x", Placement::Into),
        ("COPY empty /x", Placement::Into),
        ("COPY c* /x", Placement::Single),
        ("COPY a.txt .", Placement::Into),
        ("COPY a.txt b.txt /x/", Placement::Into),
        ("COPY <<F /x\ny\nF", Placement::Single),
        ("COPY <<F /x/\ny\nF", Placement::Into),
        ("COPY --parents a.txt /x", Placement::Into),
    ] {
        let step = step(text);
        let selected = context.select(&step).expect(text);
        assert_eq!(step.placement(&selected).unwrap(), expected, "{text}");
    }
}

#[test]
fn binds_select_by_path() {
    let (_dir, context) = context(TREE, "c.md\n");
    let paths = |source: &str| context.select_paths(&[source.to_owned()], &[]).map(|found| names(&found));
    assert_eq!(paths("src/main.rs").unwrap(), ["main.rs"]);
    assert_eq!(paths(".").unwrap().len(), 10);
    assert!(paths("c.md").is_err());
}

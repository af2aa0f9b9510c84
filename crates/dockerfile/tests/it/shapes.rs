//! Dockerfiles of the kinds that people have.

use wakeful_dockerfile::{Action, Base, MountKind, Options, Origin, parse, plan};

use super::{copy, planned, run, walked};

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name, ".Dockerfile"))
    };
}

#[test]
fn python() {
    let plan = planned(fixture!("python"));
    assert_eq!(plan.target().base, Base::Image("python:3.12-slim".into()));
    assert!(plan.warnings.is_empty());
    let (actions, state) = walked(&plan);
    let step = copy(&actions[2]);
    assert_eq!((step.sources.as_slice(), step.dest.as_str()), (&["requirements.txt".to_owned()][..], "/app/"));
    let install = run(&actions[3]);
    assert_eq!(install.argv, ["/bin/sh", "-c", "pip install -r requirements.txt"]);
    assert_eq!(install.mounts[0].target, "/root/.cache/pip");
    assert_eq!((install.user.as_str(), install.workdir.as_str()), ("", "/app"));
    let config = state.config();
    assert_eq!(config.cmd.as_ref().unwrap()[0], "gunicorn");
    assert_eq!(config.user, "app");
    assert_eq!(config.exposed.iter().collect::<Vec<_>>(), ["8000/tcp"]);
    let check = config.healthcheck.as_ref().unwrap();
    assert_eq!(check.test, ["CMD-SHELL", "curl -f 127.0.0.1:8000/health || exit 1"]);
    assert_eq!(check.retries, Some(5));
    assert!(config.env.contains(&("PYTHONUNBUFFERED".into(), "1".into())));
}

#[test]
fn node_with_stages() {
    let plan = planned(fixture!("node"));
    let order: Vec<_> = plan.stages.iter().map(|stage| stage.name.clone().unwrap()).collect();
    // The tests' stage is not needed.
    assert_eq!(order, ["base", "deps", "builder", "runner"]);
    assert_eq!(plan.target().needs, [0, 2]);
    let (actions, state) = walked(&plan);
    let step = copy(&actions[3]);
    assert_eq!(step.from, Origin::Stage(2));
    assert_eq!(step.chown.as_deref(), Some("nextjs:nodejs"));
    assert_eq!(step.dest, "/app/");
    assert_eq!(copy(&actions[4]).dest, "/app/.next/static");
    assert!(state.config().env.contains(&("HOSTNAME".into(), "0.0.0.0".into())));
    let options = Options { target: Some("TEST".into()), ..Options::default() };
    let tests = plan_of(fixture!("node"), &options);
    assert_eq!(tests.target().name.as_deref(), Some("test"));
    assert_eq!(tests.stages.len(), 4);
}

fn plan_of(text: &str, options: &Options) -> wakeful_dockerfile::Plan {
    plan(&parse(text).unwrap(), options).unwrap()
}

#[test]
fn go_to_scratch() {
    let plan = planned(fixture!("go"));
    assert_eq!(plan.stages[0].base, Base::Image("golang:1.23".into()));
    assert_eq!(plan.target().base, Base::Scratch);
    let mut first = plan.clone();
    first.stages.truncate(1);
    let (actions, _) = walked(&first);
    let download = run(&actions[2]);
    assert_eq!(download.argv[2], "go mod download -x");
    assert_eq!(download.mounts.len(), 3);
    assert_eq!(download.mounts[1].target, "/src/go.sum");
    assert_eq!(download.mounts[1].kind, MountKind::Bind { from: Origin::Context, source: "go.sum".into() });
    let build = run(actions.last().unwrap());
    assert!(build.env.contains(&("TARGETARCH".into(), "amd64".into())));
    assert!(build.env.contains(&("TARGETOS".into(), "linux".into())));
    let (actions, state) = walked(&plan);
    assert_eq!(copy(&actions[1]).dest, "/server");
    assert_eq!(state.config().entrypoint.as_deref(), Some(&["/server".to_owned()][..]));
}

#[test]
fn go_to_distroless() {
    let plan = planned(fixture!("distroless"));
    assert_eq!(plan.target().base, Base::Image("registry.invalid/distroless/static-debian12:nonroot".into()));
    assert_eq!(copy(&walked(&plan).0[0]).dest, "/");
}

#[test]
fn nginx() {
    let (actions, state) = walked(&planned(fixture!("nginx")));
    let step = copy(&actions[3]);
    assert_eq!((step.chmod, step.chown.as_deref()), (Some(0o644), Some("nginx:nginx")));
    let config = state.config();
    assert_eq!(config.labels["maintainer"], "Some One <someone@mail.invalid>");
    assert_eq!(config.stop_signal.as_deref(), Some("SIGQUIT"));
    assert_eq!(config.exposed.len(), 2);
    assert!(config.volumes.contains("/var/cache/nginx"));
}

#[test]
fn apt_with_cleanup() {
    let plan = planned(fixture!("apt"));
    assert_eq!(plan.warnings.len(), 1, "an empty line in the middle: {:?}", plan.warnings);
    let (actions, state) = walked(&plan);
    let step = run(&actions[2]);
    assert_eq!(step.argv[..4], ["/bin/bash", "-o", "pipefail", "-c"]);
    assert!(step.argv[4].contains("curl") && !step.argv[4].contains('#'), "{}", step.argv[4]);
    assert!(step.env.contains(&("DEBIAN_FRONTEND".into(), "noninteractive".into())));
    assert!(!state.config().env.iter().any(|(name, _)| name == "DEBIAN_FRONTEND"));
}

#[test]
fn alpine() {
    let (actions, state) = walked(&planned(fixture!("alpine")));
    let step = copy(&actions[1]);
    assert!(step.unpack_archives);
    assert_eq!(step.chown.as_deref(), Some("1000:1000"));
    // What a shell expands is not expanded here.
    assert_eq!(state.config().cmd.as_ref().unwrap()[2], "/usr/local/bin/start.sh --port ${PORT:-80}");
}

#[test]
fn rust() {
    let plan = planned(fixture!("rust"));
    let order: Vec<_> = plan.stages.iter().map(|stage| stage.index).collect();
    assert_eq!(order, [0, 1, 2, 3]);
    assert_eq!(plan.stage(2).unwrap().needs, [0, 1]);
    let (actions, state) = walked(&plan);
    assert!(matches!(&actions[0], Action::Workdir(step) if step.path == "/app"));
    assert_eq!(copy(&actions[1]).dest, "/usr/local/bin");
    assert_eq!(state.config().workdir, "/app");
}

#[test]
fn java() {
    let plan = planned(fixture!("java"));
    let mut first = plan.clone();
    first.stages.truncate(1);
    assert_eq!(copy(&walked(&first).0[1]).chmod, Some(0o755));
    let (actions, state) = walked(&plan);
    assert!(run(&actions[1]).env.contains(&("UID".into(), "10001".into())));
    assert_eq!(copy(&actions[3]).sources, ["build/target/extracted/dependencies/"]);
    assert_eq!(state.config().env.last().unwrap().1, "-Xmx512m -Dfile.encoding=UTF-8");
    assert_eq!(state.config().entrypoint.as_ref().unwrap().len(), 3);
}

#[test]
fn heredocs() {
    let (actions, _) = walked(&planned(fixture!("heredoc")));
    assert_eq!(run(&actions[1]).argv[2], "apt-get update\napt-get install -y python3\n");
    let script = run(&actions[2]);
    assert_eq!(script.argv, ["/bin/sh", "-c", script.mounts[0].target.as_str()]);
    let content = b"#!/usr/bin/env python3\nprint(\"hi $GREETING\")\n".to_vec();
    assert_eq!(script.mounts[0].kind, MountKind::File { content, mode: 0o755 });
    assert_eq!(run(&actions[3]).argv[2], "cat <<A > /a && cat <<\"B\" > /b\none\nA\ntwo $x\nB");
    let motd = copy(&actions[4]);
    assert_eq!(String::from_utf8_lossy(&motd.inline[0].content), "hello \"world\", it's $5\n");
    assert_eq!((motd.dest.as_str(), motd.sources.len()), ("/etc/motd", 0));
    let several = copy(&actions[5]);
    let files: Vec<_> =
        several.inline.iter().map(|f| (f.name.as_str(), String::from_utf8_lossy(&f.content).into_owned())).collect();
    assert_eq!(files, [("one", "1 hello\n".into()), ("two", "2 $GREETING\n".into())]);
    assert_eq!(several.sources, ["config.ini"]);
    assert_eq!(copy(&actions[6]).inline[0].name, "script.sh");
}

#[test]
fn matrix_of_arguments() {
    let text = fixture!("matrix");
    let plan = planned(text);
    assert_eq!(plan.stages.len(), 2);
    assert_eq!(plan.stages[0].base, Base::Image("debian:12".into()));
    assert_eq!(plan.target().base, Base::Stage(0));
    let (actions, state) = walked(&plan);
    // DISTRO is not declared in the stage, so only FROM lines see it.
    assert!(state.config().env.contains(&("RELEASE".into(), "unset-12-plain".into())));
    assert!(run(&actions[3]).env.contains(&("FLAVOUR".into(), "plain".into())));

    let build_args = [("DISTRO", "alpine"), ("VERSION", "3.20"), ("FLAVOUR", "hot"), ("COLOUR", "red")];
    let build_args = build_args.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let other = plan_of(text, &Options { build_args, target: None });
    assert_eq!(other.stages[0].base, Base::Image("alpine:3.20".into()));
    assert_eq!(other.target().base, Base::Stage(1));
    assert_eq!(other.warnings.len(), 1);
    assert!(other.warnings[0].contains("COLOUR"));
    let (_, state) = walked(&other);
    assert!(state.config().env.contains(&("RELEASE".into(), "unset-3.20-hot".into())));
}

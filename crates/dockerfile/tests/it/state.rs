//! What instructions mean, one after the other.

use wakeful_dockerfile::{Action, ImageConfig, MountKind, Options, Origin, State, parse, plan};

use super::{actions, config, copy, planned, run, walked};

fn refused(text: &str) -> wakeful_dockerfile::Error {
    let plan = planned(&format!("FROM scratch\n{text}"));
    let mut state = State::begin(plan.target(), ImageConfig::default());
    for instruction in &plan.target().instructions {
        if let Err(why) = state.step(instruction) {
            return why;
        }
    }
    panic!("accepted: {text}")
}

fn env(config: &ImageConfig, name: &str) -> Option<String> {
    config.env.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
}

#[test]
fn one_instruction_sees_what_was_before_it() {
    let config = config("ENV abc=hello\nENV abc=bye def=$abc\nENV ghi=$abc");
    assert_eq!(env(&config, "def").as_deref(), Some("hello"));
    assert_eq!(env(&config, "ghi").as_deref(), Some("bye"));
}

#[test]
fn quotes_go_and_the_order_stays() {
    let config = config("ENV a=\"x y\" b=x\\ y c='$a'\nENV d a \"b\"\nENV a=z");
    let values: Vec<_> = config.env.iter().skip(1).map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(values, [("a", "z"), ("b", "x y"), ("c", "$a"), ("d", "a b")]);
}

#[test]
fn path_is_always_there() {
    let step = actions("RUN x");
    assert_eq!(run(&step[0]).env[0].0, "PATH");
    let config = config("ENV PATH=/opt/bin:$PATH");
    assert_eq!(env(&config, "PATH").unwrap(), "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let base = ImageConfig { env: vec![("PATH".into(), "/only".into())], ..ImageConfig::default() };
    assert_eq!(State::from_config(base).config().env, [("PATH".to_owned(), "/only".to_owned())]);
}

#[test]
fn the_base_is_seen_by_expansion() {
    let plan = planned("FROM a\nWORKDIR $HOME/x\nUSER $WHO");
    let base = ImageConfig {
        env: vec![("HOME".into(), "/home/a".into()), ("WHO".into(), "a:b".into())],
        onbuild: vec!["RUN x".into()],
        ..ImageConfig::default()
    };
    let mut state = State::begin(plan.target(), base);
    for instruction in &plan.target().instructions {
        state.step(instruction).unwrap();
    }
    assert_eq!((state.config().workdir.as_str(), state.config().user.as_str()), ("/home/a/x", "a:b"));
    assert!(state.config().onbuild.is_empty());
}

#[test]
fn arguments_have_their_scope() {
    let text = "ARG A=head\nARG B=head\nFROM x AS one\nARG A\nARG C=c\nENV S1=$A-$B-$C\nARG B=own\nENV S2=$B\n\
                FROM one AS two\nENV S3=$A-$C\nFROM y\nENV S4=$A-$C";
    let value = |target: &str, name: &str| {
        let options = Options { target: Some(target.into()), ..Options::default() };
        let (_, state) = walked(&plan(&parse(text).unwrap(), &options).unwrap());
        env(state.config(), name).unwrap()
    };
    assert_eq!(value("one", "S1"), "head--c");
    assert_eq!(value("one", "S2"), "own");
    // A stage upon another sees its arguments; a stranger does not.
    assert_eq!(value("two", "S3"), "head-c");
    assert_eq!(value("2", "S4"), "-");
}

#[test]
fn env_goes_before_arg() {
    let step = actions("ARG A=arg\nENV A=env\nARG A=again\nRUN x");
    let seen: Vec<_> = run(&step[3]).env.iter().filter(|(name, _)| name == "A").collect();
    assert_eq!(seen, [&("A".to_owned(), "env".to_owned())]);
}

#[test]
fn given_arguments_go_before_defaults() {
    let options = Options { build_args: [("A".to_owned(), "given".to_owned())].into(), target: None };
    let plan = plan(&parse("ARG A=x\nFROM base:$A\nARG A=y\nENV E=$A").unwrap(), &options).unwrap();
    let (_, state) = walked(&plan);
    assert_eq!(plan.target().base, wakeful_dockerfile::Base::Image("base:given".into()));
    assert_eq!(env(state.config(), "E").as_deref(), Some("given"));
}

#[test]
fn proxies_are_apart() {
    let build_args = [("http_proxy", "p"), ("no_proxy", "q")].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
    let plan = plan(&parse("FROM a\nARG no_proxy\nRUN x").unwrap(), &Options { build_args, target: None }).unwrap();
    let (actions, _) = walked(&plan);
    let step = run(&actions[1]);
    assert_eq!(step.proxy, [("http_proxy".to_owned(), "p".to_owned())]);
    assert!(step.env.contains(&("no_proxy".into(), "q".into())));
}

#[test]
fn working_directories_add_up() {
    let step = actions("WORKDIR a\nWORKDIR b/../c\nWORKDIR /x//y/.\nRUN z\nCOPY a b\nCOPY a b/\nCOPY a ..\nCOPY a /");
    let path = |action: &Action| match action {
        Action::Workdir(step) => step.path.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((path(&step[0]), path(&step[1]), path(&step[2])), ("/a".into(), "/a/c".into(), "/x/y".into()));
    assert_eq!(run(&step[3]).workdir, "/x/y");
    let dests: Vec<_> = step[4..].iter().map(|one| copy(one).dest.as_str()).collect();
    assert_eq!(dests, ["/x/y/b", "/x/y/b/", "/x/", "/"]);
    assert!(matches!(&actions("USER u:g\nWORKDIR /d")[1], Action::Workdir(step) if step.user == "u:g"));
}

#[test]
fn a_new_entry_point_forgets_the_bases_command() {
    let base =
        ImageConfig { cmd: Some(vec!["old".into()]), entrypoint: Some(vec!["e".into()]), ..ImageConfig::default() };
    let after = |text: &str| {
        let plan = planned(&format!("FROM a\n{text}"));
        let mut state = State::begin(plan.target(), base.clone());
        for instruction in &plan.target().instructions {
            state.step(instruction).unwrap();
        }
        let config = state.into_config();
        (config.entrypoint, config.cmd)
    };
    let list = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    assert_eq!(after("ENTRYPOINT [\"n\"]"), (list(&["n"]), None));
    assert_eq!(after("CMD [\"c\"]\nENTRYPOINT [\"n\"]"), (list(&["n"]), list(&["c"])));
    assert_eq!(after("ENTRYPOINT n\nCMD c"), (list(&["/bin/sh", "-c", "n"]), list(&["/bin/sh", "-c", "c"])));
    assert_eq!(after("ENTRYPOINT []"), (None, None));
    assert_eq!(after("CMD []"), (list(&["e"]), None));
}

#[test]
fn the_shell_holds_from_where_it_stands() {
    let step = actions("RUN a\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN b\nRUN [\"c\", \"$d\"]");
    assert_eq!(run(&step[0]).argv, ["/bin/sh", "-c", "a"]);
    assert_eq!(run(&step[2]).argv, ["/bin/bash", "-ec", "b"]);
    assert_eq!(run(&step[3]).argv, ["c", "$d"]);
}

#[test]
fn ports_are_listed_one_by_one() {
    let config = config("ENV P=\"80 443/udp\"\nEXPOSE $P 8000-8002 53/TCP");
    let ports: Vec<_> = config.exposed.iter().map(String::as_str).collect();
    assert_eq!(ports, ["443/udp", "53/tcp", "80/tcp", "8000/tcp", "8001/tcp", "8002/tcp"]);
    for text in ["EXPOSE x", "EXPOSE 70000", "EXPOSE 9-8", "EXPOSE 80/http", "EXPOSE 1.2.3.4:80:80"] {
        assert!(refused(text).detail().contains("not a port"), "{text}");
    }
}

#[test]
fn health_and_other_settings() {
    let config =
        config("HEALTHCHECK NONE\nMAINTAINER me\nVOLUME /a /b\nVOLUME [\"/c d\"]\nSTOPSIGNAL 9\nONBUILD RUN x");
    assert_eq!(config.healthcheck.unwrap().test, ["NONE"]);
    assert_eq!(config.volumes.iter().collect::<Vec<_>>(), ["/a", "/b", "/c d"]);
    assert_eq!((config.author.as_deref(), config.stop_signal.as_deref()), (Some("me"), Some("9")));
    assert_eq!(config.onbuild, ["RUN x"]);
}

#[test]
fn mounts_are_resolved() {
    let step = actions(
        "WORKDIR /w\nENV C=cache\nRUN --mount=type=cache,target=$C,id=i-$C --mount=type=bind,source=/../s/,target=t \
         --mount=type=tmpfs,target=/tmp/x y",
    );
    let mounts = &run(&step[2]).mounts;
    assert_eq!(mounts[0].target, "/w/cache");
    assert_eq!(mounts[0].kind, MountKind::Cache { id: "i-cache".into(), mode: 0o755, uid: 0, gid: 0 });
    assert_eq!(mounts[1].kind, MountKind::Bind { from: Origin::Context, source: "s".into() });
    assert_eq!(mounts[1].target, "/w/t");
    assert!(refused("RUN --mount=type=tmpfs,target=/ x").detail().contains("whole root"));
}

#[test]
fn copies_are_expanded_and_checked() {
    let step = actions("ENV F=file M=640\nCOPY --chown=$F:1 --chmod=$M --exclude=$F.md $F.txt \"a $F\" /d/");
    let step = copy(&step[1]);
    assert_eq!(step.sources, ["file.txt", "a file"]);
    assert_eq!((step.chown.as_deref(), step.chmod), (Some("file:1"), Some(0o640)));
    assert_eq!(step.excludes, ["file.md"]);
    for (text, part) in [
        ("COPY a b c", "ends with a /"),
        ("COPY $x b", "source is empty"),
        ("COPY a $x", "destination is empty"),
        ("COPY --chmod=u+x a b", "only numbers"),
        ("COPY --chmod=99 a b", "only numbers"),
        ("ENV U=https://a.invalid/b\nADD $U /", "only local files"),
        ("USER $x", "name is empty"),
        ("WORKDIR $x", "path is empty"),
        ("ENV a=\"b", "double quote"),
        ("ENV a=${b:?say-so}", "say-so"),
        ("ENV a=${b", "missing '}'"),
        ("ENV a=${b:-c", "matching }"),
        ("LABEL $x=1", "not a name"),
    ] {
        let error = refused(text);
        assert!(error.detail().contains(part) && error.line().is_some(), "{text}: {error}");
    }
}

#[test]
fn doubling_ends() {
    let mut text = "ENV A=0123456789\n".to_owned();
    text.push_str(&"ENV A=$A$A\n".repeat(40));
    assert!(refused(&text).detail().contains("longer than"));
    let mut text = "ENV A=0123456789\n".to_owned();
    for i in 0..12 {
        text.push_str("ENV A=$A$A$A$A\n");
        text.push_str(&format!("LABEL l{i}=$A\n"));
    }
    assert!(refused(&text).detail().contains("longer than"));
}

#[test]
fn variables_and_ports_are_counted() {
    let many: String = (0..1_001).map(|i| format!("v{i}=x ")).collect();
    for word in ["ENV", "ARG"] {
        assert!(refused(&format!("{word} {many}")).detail().contains("variables"), "{word}");
    }
    assert!(refused(&format!("EXPOSE {}", "1-65535 ".repeat(5))).detail().contains("more than"));
}

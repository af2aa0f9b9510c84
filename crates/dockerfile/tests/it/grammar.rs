//! The oddities of the grammar, one by one, and what is refused.

use wakeful_dockerfile::{Command, Dockerfile, Error, Op, parse};

fn op(text: &str) -> Op {
    let file: Dockerfile = parse(&format!("FROM a\n{text}")).expect(text);
    file.stages[0].instructions[0].op.clone()
}

fn refused(text: &str) -> Error {
    match parse(text) {
        Ok(file) => panic!("accepted: {file:?}"),
        Err(why) => why,
    }
}

#[test]
fn keywords_have_no_case_and_stages_are_lower() {
    let file = parse("from a As BuIlD\nrUn x").unwrap();
    assert_eq!(file.stages[0].name.as_deref(), Some("build"));
    assert!(matches!(file.stages[0].instructions[0].op, Op::Run(_)));
}

#[test]
fn env_has_two_forms() {
    assert_eq!(op("ENV A b c"), Op::Env(vec![("A".into(), "b c".into())]));
    assert_eq!(op("ENV A=b c=\"d e\""), Op::Env(vec![("A".into(), "b".into()), ("c".into(), "\"d e\"".into())]));
    assert_eq!(op("ENV A b=c"), Op::Env(vec![("A".into(), "b=c".into())]));
    assert_eq!(op("ENV A="), Op::Env(vec![("A".into(), String::new())]));
    assert_eq!(refused("FROM a\nENV A").line(), Some(2));
    assert!(refused("FROM a\nENV A=b c").detail().contains("has no ="));
    assert!(refused("FROM a\nENV =b").detail().contains("name is empty"));
}

#[test]
fn arrays_are_exec_and_what_is_no_array_is_shell() {
    let command = |text: &str| match op(text) {
        Op::Cmd(command) => command,
        other => panic!("{other:?}"),
    };
    assert_eq!(command("CMD [\"a\", \"b\"]"), Command::Argv(vec!["a".into(), "b".into()]));
    assert_eq!(command("CMD ['a', 'b']"), Command::Shell("['a', 'b']".into()));
    assert_eq!(command("CMD [ -x /a ] && b"), Command::Shell("[ -x /a ] && b".into()));
    assert_eq!(command("CMD [\"a\",]"), Command::Shell("[\"a\",]".into()));
    assert_eq!(command("CMD [\"a\", \\\n  \"b\"]"), Command::Argv(vec!["a".into(), "b".into()]));
    assert_eq!(command("CMD []"), Command::Argv(vec![]));
    assert!(refused("FROM a\nCMD [1]").detail().contains("strings and nothing else"));
}

#[test]
fn windows_escape() {
    let file = parse("# escape=`\nFROM a\nRUN dir c:\\ `\n  /w\nCOPY a` b c").unwrap();
    let Op::Run(run) = &file.stages[0].instructions[0].op else { panic!() };
    assert_eq!(run.command, Command::Shell("dir c:\\   /w".into()));
    let Op::Copy(copy) = &file.stages[0].instructions[1].op else { panic!() };
    assert_eq!(copy.sources, ["a` b"]);
}

#[test]
fn copy_by_array_and_by_words() {
    for (text, sources, dest) in [
        ("COPY a b c/", vec!["a", "b"], "c/"),
        ("COPY [\"a b\", \"c\"]", vec!["a b"], "c"),
        ("COPY \"a b\" c", vec!["\"a b\""], "c"),
        ("ADD a c", vec!["a"], "c"),
    ] {
        let Op::Copy(copy) = op(text) else { panic!("{text}") };
        assert_eq!((copy.sources, copy.dest.as_str()), (sources.into_iter().map(str::to_owned).collect(), dest));
    }
    assert!(refused("FROM a\nCOPY a").detail().contains("at least one source"));
    assert!(refused("FROM a\nCOPY [\"a\"]").detail().contains("at least one source"));
}

#[test]
fn flags_are_known_or_refused() {
    let Op::Copy(copy) = op("COPY --link --exclude=*.md --exclude=x --parents a b") else { panic!() };
    assert!(copy.parents && copy.excludes == ["*.md", "x"]);
    for (text, part) in [
        ("COPY --colour=red a b", "unknown flag --colour"),
        ("RUN --fast x", "unknown flag --fast"),
        ("ENV --x a=b", "unknown flag"),
        ("COPY --from= a b", "needs a value"),
        ("COPY --from=$x a b", "not expanded"),
        ("COPY --link=maybe a b", "true or false"),
        ("ADD --from=a b c", "unknown flag"),
    ] {
        let error = refused(&format!("FROM a\n{text}"));
        assert!(error.detail().contains(part) && error.line() == Some(2), "{text}: {error}");
        assert!(matches!(error, Error::Syntax { .. }));
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    for (text, part) in [
        ("ADD https://files.invalid/a.tgz /", "only local files"),
        ("ADD git@git.invalid:a/b.git /", "only local files"),
        ("ADD --checksum=sha256:00 a /", "only local files"),
        ("RUN --mount=type=secret,id=a x", "no secrets"),
        ("RUN --mount=type=ssh x", "no secrets"),
        ("RUN --network=none x", "rules hold"),
        ("RUN --security=insecure x", "rules hold"),
        ("COPY --parents --from=a b c", "--parents"),
    ] {
        let error = refused(&format!("FROM a\n\n{text}"));
        assert!(matches!(error, Error::Unsupported { line: 3, .. }), "{text}: {error:?}");
        assert!(error.detail().contains(part), "{text}: {error}");
    }
    for text in ["RUN --network=default x", "RUN --security=sandbox x"] {
        parse(&format!("FROM a\n{text}")).expect(text);
    }
}

#[test]
fn mistakes_have_lines() {
    for (text, line, part) in [
        ("", None, "no FROM"),
        ("# only\n", None, "no FROM"),
        ("ARG A\n", None, "no FROM"),
        ("RUN x\nFROM a", Some(1), "before FROM"),
        ("FROM", Some(1), "FROM takes"),
        ("FROM a b", Some(1), "FROM takes"),
        ("FROM a AS", Some(1), "FROM takes"),
        ("FROM a AS 1b", Some(1), "invalid stage name"),
        ("FROM a AS scratch", Some(1), "reserved"),
        ("FROM a AS x\nFROM b AS x", Some(2), "already"),
        ("FROM a\n\n\nRNU x", Some(4), "did you mean RUN?"),
        ("FROM a\nFOO x", Some(2), "unknown instruction FOO"),
        ("FROM a\nRUN", Some(2), "needs an argument"),
        ("FROM a\nRUN []", Some(2), "needs a command"),
        ("FROM a\nSHELL /bin/sh", Some(2), "JSON array"),
        ("FROM a\nSHELL []", Some(2), "JSON array"),
        ("FROM a\nHEALTHCHECK SOMETIMES x", Some(2), "NONE or CMD"),
        ("FROM a\nHEALTHCHECK NONE x", Some(2), "no arguments"),
        ("FROM a\nHEALTHCHECK --interval=soon CMD x", Some(2), "not a time"),
        ("FROM a\nHEALTHCHECK --retries=x CMD y", Some(2), "not a number"),
        ("FROM a\nONBUILD ONBUILD RUN x", Some(2), "cannot be"),
        ("FROM a\nONBUILD FROM x", Some(2), "cannot be"),
        ("FROM a\nONBUILD RNU x", Some(2), "did you mean"),
        ("FROM a\nRUN x\nCOPY <<E <<E", Some(3), "heredoc"),
        ("FROM a\nCOPY a <<E\nx\nE\n", Some(2), "destination"),
    ] {
        let error = refused(text);
        assert_eq!(error.line(), line, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

#[test]
fn bounds_hold() {
    assert!(matches!(refused(&"#".repeat((1 << 20) + 1)), Error::Limit { .. }));
    let many = "FROM a\n".to_owned() + &"RUN x\n".repeat(10_000);
    assert!(matches!(refused(&many), Error::Limit { line: 10_001, .. }));
    assert!(parse(&("FROM a\n".to_owned() + &"RUN x\n".repeat(9_999))).is_ok());
    assert!(matches!(refused(&"FROM a\n".repeat(1_001)), Error::Limit { line: 1_001, .. }));
    assert!(parse(&"FROM a\n".repeat(1_000)).is_ok());
}

#[test]
fn triggers_are_kept_as_text() {
    assert_eq!(op("ONBUILD RUN make all"), Op::Onbuild("RUN make all".into()));
    assert_eq!(op("ONBUILD COPY <<E /x\ny\nE"), Op::Onbuild("COPY <<E /x\ny\nE".into()));
}

#[test]
fn logs_get_the_instruction_in_one_line() {
    let file = parse("FROM a\nRUN a && \\\n    b\n").unwrap();
    assert_eq!(file.stages[0].instructions[0].text, "RUN a &&     b");
}

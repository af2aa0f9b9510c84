//! Nothing that can be written makes the parser, the expander or the matcher panic or run away.

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use wakeful_dockerfile::{Base, Context, ImageConfig, Options, State, TemplateFile, parse, plan};

use super::{actions, copy, lay};

/// Does all that can be done with a text alone.
fn all_the_way(text: &str) {
    let Ok(file) = parse(text) else { return };
    let Ok(plan) = plan(&file, &Options::default()) else { return };
    let mut states: Vec<(usize, State)> = Vec::new();
    for stage in &plan.stages {
        let mut state = match &stage.base {
            Base::Stage(parent) => match states.iter().find(|(index, _)| index == parent) {
                Some((_, parent)) => State::begin_from(stage, parent),
                None => panic!("a parent that does not come first"),
            },
            Base::Scratch | Base::Image(_) => State::begin(stage, ImageConfig::default()),
        };
        for instruction in &stage.instructions {
            match state.step(instruction) {
                Ok(action) => drop(wakeful_dockerfile::Key::root("x", state.config()).next(&action, &[])),
                Err(why) => assert!(why.line().is_some(), "{why:?}"),
            }
        }
        states.push((stage.index, state));
    }
}

/// Lines made of what Dockerfiles are made of, so that most of them mean something.
fn lines() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("FROM".to_owned()),
        Just("FROM a AS b\n".to_owned()),
        Just("RUN ".to_owned()),
        Just("COPY ".to_owned()),
        Just("ADD ".to_owned()),
        Just("ENV ".to_owned()),
        Just("ARG ".to_owned()),
        Just("ONBUILD ".to_owned()),
        Just("HEALTHCHECK ".to_owned()),
        Just("EXPOSE 1-65535 ".to_owned()),
        Just("<<EOF ".to_owned()),
        Just("\nEOF\n".to_owned()),
        Just("--mount=type=cache,target=".to_owned()),
        Just("--from=b ".to_owned()),
        Just("[\"x\", \"y\"]".to_owned()),
        Just("${A:-".to_owned()),
        Just("${A//".to_owned()),
        Just("${A%%*".to_owned()),
        Just("}".to_owned()),
        Just("A=$A$A ".to_owned()),
        Just("\\\n".to_owned()),
        Just("\n".to_owned()),
        Just("# escape=`\n".to_owned()),
        Just("'".to_owned()),
        Just("\"".to_owned()),
        "\\PC{0,6}",
    ];
    proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in "(?s).{0,300}") {
        all_the_way(&text);
        drop(TemplateFile::parse(&text));
    }

    #[test]
    fn likely_text(text in lines()) {
        all_the_way(&format!("FROM x\n{text}"));
        all_the_way(&text);
    }

    #[test]
    fn any_value(value in "\\PC{0,80}", name in "[A-Za-z_]{1,4}") {
        all_the_way(&format!("FROM x\nENV {name}={value}\nENV B=${name}\nLABEL a={value}\nEXPOSE {value}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_source_stays_inside(source in "[a-c./*?\\[\\]^\\\\-]{1,12}", list in "[a-c./*?!\\[\\]\n]{0,20}") {
        let dir = tempfile::tempdir().unwrap();
        lay(dir.path(), &[("out", "x"), ("in/a/b", "x"), ("in/c", "x"), ("in/.dockerignore", &list)]);
        let inside = dir.path().join("in");
        let Ok(context) = Context::open(&inside, Path::new("Dockerfile")) else { return Ok(()) };
        let Ok(found) = context.select_paths(&[source], &[]) else { return Ok(()) };
        for one in &found {
            prop_assert!(one.path.is_relative());
            for path in [&one.path, &one.name] {
                prop_assert!(path.components().all(|part| matches!(part, std::path::Component::Normal(_))), "{path:?}");
            }
            prop_assert!(inside.join(&one.path).exists());
        }
        context.digest(&found).unwrap();
    }
}

/// More than any of these takes on a busy machine, and far less than what runs away.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn nothing_runs_away() {
    let begun = Instant::now();
    let stars = "*a".repeat(5000);
    all_the_way(&format!("FROM x\nENV A={}\nENV B=${{A//{stars}b/c}}", "a".repeat(400_000)));
    all_the_way(&format!("FROM x\nENV A={}\nENV B=${{A%%{stars}}}", "a".repeat(400_000)));
    all_the_way(&format!("FROM x\nENV A={}", "${A:-".repeat(100_000)));
    all_the_way(&format!("FROM x\nRUN {}", "<<A ".repeat(200_000)));
    all_the_way(&format!("FROM x\nENV {}", "a=b ".repeat(200_000)));
    all_the_way(&format!("FROM x\nCMD {}", "[".repeat(500_000)));
    all_the_way(&format!("FROM x\n{}RUN y", "ONBUILD ".repeat(100_000)));
    all_the_way(&format!("FROM x\nRUN {}", "\\\n".repeat(400_000)));
    all_the_way(&"FROM x\nFROM x AS y\n".repeat(400));
    let triggers = "ONBUILD RUN x\n".repeat(5_000);
    let upon: String = (0..900).map(|i| format!("FROM s0 AS t{i}\nCOPY --from=t{} /a /a\n", i + 1)).collect();
    all_the_way(&format!("FROM x AS s0\n{triggers}{upon}FROM s0 AS t900\nFROM t0"));
    let many: String = (0..100_000).map(|i| format!("v{i}=x ")).collect();
    all_the_way(&format!("FROM x\nENV {many}\nARG {many}"));
    all_the_way(&format!("FROM x\nEXPOSE {}", "1-65535 ".repeat(100_000)));
    let images = "COPY --from=imagf /a /a\n".repeat(8_000);
    let stages: String = (0..900).map(|i| format!("FROM x AS image{i}\n")).collect();
    all_the_way(&format!("{stages}{images}"));
    let chain: String = (1..1000).map(|i| format!("FROM s{} AS s{i}\nCOPY --from=s0 /a /a\n", i - 1)).collect();
    all_the_way(&format!("FROM x AS s0\n{chain}"));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn patterns_of_a_list_do_not_run_away() {
    let dir = tempfile::tempdir().unwrap();
    let name = "a".repeat(200);
    let list = format!("{}b\n", "*a".repeat(500)).repeat(200);
    lay(dir.path(), &[(&name, "x"), (".dockerignore", &list)]);
    let begun = Instant::now();
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    assert_eq!(context.select(copy(&actions("COPY . /x")[0])).unwrap().len(), 2);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

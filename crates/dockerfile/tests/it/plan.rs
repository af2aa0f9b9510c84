//! Which stages are built, and in what order.

use wakeful_dockerfile::{Base, Error, Options, parse, plan};

use super::{copy, planned, walked};

fn order(text: &str, target: Option<&str>) -> Vec<usize> {
    let options = Options { target: target.map(str::to_owned), ..Options::default() };
    plan(&parse(text).unwrap(), &options).expect(text).stages.iter().map(|stage| stage.index).collect()
}

fn refused(text: &str, target: Option<&str>) -> Error {
    let options = Options { target: target.map(str::to_owned), ..Options::default() };
    plan(&parse(text).unwrap(), &options).expect_err(text)
}

const DIAMOND: &str =
    "FROM a AS one\nFROM one AS two\nFROM one AS three\nFROM x\nCOPY --from=three /a /a\nCOPY --from=1 /b /b";

#[test]
fn only_what_is_needed_in_an_order_that_works() {
    assert_eq!(order(DIAMOND, None), [0, 2, 1, 3]);
    assert_eq!(order(DIAMOND, Some("two")), [0, 1]);
    assert_eq!(order(DIAMOND, Some("0")), [0]);
    assert_eq!(order("FROM a\nRUN --mount=type=bind,from=late,target=/x y\nFROM b AS late", Some("0")), [1, 0]);
}

#[test]
fn images_are_known_beforehand() {
    let plan = planned("FROM a\nCOPY --from=img.invalid/x:1 /a /a\nRUN --mount=from=y,target=/m z");
    assert_eq!(plan.target().images, ["img.invalid/x:1", "y"]);
}

#[test]
fn names_that_are_not_there() {
    let error = refused(DIAMOND, Some("four"));
    assert!(error.detail().contains("0 (one), 1 (two), 2 (three), 3"), "{error}");
    let error = refused("FROM a\nRUN x\nCOPY --from=7 /a /a", None);
    assert_eq!(error.line(), Some(3));
    assert!(error.detail().contains("no stage 7"));
    assert!(refused("FROM a\nCOPY --from=scratch /a /a", None).detail().contains("nothing to copy"));
    let near = planned("FROM a AS builder\nFROM b\nCOPY --from=bulider /a /a");
    assert!(near.warnings[0].contains("builder"), "{:?}", near.warnings);
}

#[test]
fn circles_are_refused() {
    let error = refused("FROM a\nCOPY --from=0 /a /a", None);
    assert_eq!(error.line(), Some(2));
    assert!(error.detail().contains("needs itself"));
    assert!(refused("FROM a AS x\nCOPY --from=y /a /a\nFROM x AS y", None).detail().contains("needs itself"));
}

#[test]
fn from_looks_back_only() {
    assert_eq!(planned("FROM later\nRUN x\nFROM y AS later").stages[0].base, Base::Image("y".into()));
    let options = Options { target: Some("0".into()), ..Options::default() };
    let file = parse("FROM later\nFROM y AS later").unwrap();
    assert_eq!(plan(&file, &options).unwrap().target().base, Base::Image("later".into()));
}

#[test]
fn bases_need_a_name_and_our_platform() {
    assert!(refused("ARG X\nFROM $X", None).detail().contains("name is empty"));
    assert_eq!(refused("ARG X=${\nFROM a", None).line(), Some(1));
    for platform in ["linux/arm64", "windows/amd64", "$X"] {
        let error = refused(&format!("FROM --platform={platform} a"), None);
        assert!(matches!(error, Error::Unsupported { line: 1, .. }), "{error:?}");
    }
    for platform in ["linux/amd64", "$TARGETPLATFORM", "${BUILDPLATFORM}"] {
        assert_eq!(order(&format!("FROM --platform={platform} a"), None), [0]);
    }
    // What is not built may be for whatever it likes.
    assert_eq!(order("FROM --platform=linux/arm64 a\nFROM b", None), [1]);
}

#[test]
fn triggers_of_an_image_come_first() {
    let file = parse("FROM a\nRUN own").unwrap();
    let triggers = ["COPY . /app".to_owned(), "RUN make".to_owned()];
    let file = file.with_triggers(0, &triggers).unwrap();
    let plan = plan(&file, &Options::default()).unwrap();
    let texts: Vec<_> = plan.target().instructions.iter().map(|one| (one.line, one.text.as_str())).collect();
    assert_eq!(texts, [(1, "COPY . /app"), (1, "RUN make"), (2, "RUN own")]);
    assert!(file.with_triggers(9, &triggers).is_err());
    assert!(file.with_triggers(0, &["FROM x".to_owned()]).is_err());
}

#[test]
fn triggers_of_a_stage_fire_once() {
    let plan = planned("FROM a AS one\nONBUILD COPY <<F /f\nx\nF\nFROM one AS two\nFROM two");
    assert_eq!(plan.stages[1].instructions.len(), 1);
    assert!(plan.target().instructions.is_empty());
    let mut two = plan.clone();
    two.stages.truncate(2);
    let (actions, state) = walked(&two);
    assert_eq!(copy(&actions[0]).inline[0].content, b"x\n");
    assert!(state.config().onbuild.is_empty());
}

#[test]
fn known_arguments_need_no_arg() {
    let names = ["http_proxy", "TARGETARCH", "BUILDKIT_INLINE_CACHE", "SOURCE_DATE_EPOCH", "typo"];
    let build_args = names.map(|name| (name.to_owned(), "x".to_owned())).into();
    let plan = plan(&parse("FROM a").unwrap(), &Options { build_args, target: None }).unwrap();
    assert_eq!(plan.warnings.len(), 1);
    assert!(plan.warnings[0].contains("typo"));
}

//! Specs that cannot be built.

use wakeful_images::{DebianSpec, Error, build};

use crate::{Site, entries};

async fn refused(spec: &DebianSpec) -> (Error, Site) {
    let site = Site::new();
    let (work, bases) = (site.work(), site.bases());
    let error = build(spec, &site.places(&work, &bases), &()).await.unwrap_err();
    assert_eq!((site.left_in_work(), entries(&bases)), (0, 0));
    (error, site)
}

#[tokio::test]
async fn an_unknown_package_is_named() {
    let (error, _) = refused(&DebianSpec::new("bookworm", &["curl", "wakeful-has-no-such-package"])).await;
    assert_eq!(error.step(), Some("check"));
    assert!(error.to_string().contains("wakeful-has-no-such-package"), "{error}");
}

#[tokio::test]
async fn an_unknown_release_is_named_with_those_that_there_are() {
    let (error, _) = refused(&DebianSpec::new("nosuchrelease", &[])).await;
    let Error::InvalidSuite { suite, available } = error else { panic!("{error}") };
    assert_eq!(suite, "nosuchrelease");
    assert!(available.contains(&"bookworm".to_owned()), "{available:?}");
}

#[tokio::test]
async fn an_invalid_name_reaches_no_program() {
    let (error, _) = refused(&DebianSpec::new("bookworm", &["curl;reboot"])).await;
    assert!(matches!(error, Error::InvalidPackage { name } if name == "curl;reboot"));
}

//! The document, its copy and the router say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;

/// Where the copy is.
fn copy() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/wakeful.json")
}

fn parsed() -> Value {
    serde_json::from_str(&text()).unwrap()
}

/// Methods by path.
fn described() -> BTreeMap<String, BTreeSet<String>> {
    let document = parsed();
    let paths = document["paths"].as_object().unwrap();
    let methods = |item: &Value| item.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
    paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

#[test]
fn the_copy_is_up_to_date() {
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::create_dir_all(copy().parent().unwrap()).unwrap();
        std::fs::write(copy(), text()).unwrap();
    }
    let checked_in = std::fs::read_to_string(copy()).unwrap_or_default();
    assert!(checked_in == text(), "openapi/wakeful.json differs: run this test with UPDATE_OPENAPI=1");
}

#[test]
fn every_route_is_described() {
    // An empty path in a sandbox can be written in three ways.
    let aliases = ["/v1/sandboxes/{id}/files", "/v1/sandboxes/{id}/files/"];
    let routed: BTreeSet<String> =
        crate::paths().into_iter().filter(|path| !aliases.contains(path)).map(|path| path.replace("{*", "{")).collect();
    let described: BTreeSet<String> = described().into_keys().collect();
    assert!(routed.len() > 10, "{routed:?}");
    assert_eq!(routed, described);
}

#[test]
fn nothing_is_left_open() {
    let document = parsed();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in text().lines().filter_map(|line| line.trim().strip_prefix("\"$ref\": \"")) {
        let name = reference.trim_end_matches(['"', ',']).strip_prefix("#/components/schemas/").unwrap();
        assert!(schemas.contains_key(name), "{name} is not there");
    }
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let here = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{here}: its id is not its own");
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let named: BTreeSet<&str> = parameters
                .iter()
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            let wanted: BTreeSet<&str> =
                path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}')).collect();
            assert_eq!(named, wanted, "{here}");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.keys().any(|status| status.starts_with('2') || status == "101"), "{here}: no success");
            assert!(responses.contains_key("500"), "{here}");
        }
    }
}

#[test]
fn every_code_is_listed() {
    let document = parsed();
    let listed: BTreeSet<&str> = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
        .as_array()
        .unwrap()
        .iter()
        .map(|code| code.as_str().unwrap())
        .collect();
    assert_eq!(listed, Code::iter().map(Code::as_str).collect());
}

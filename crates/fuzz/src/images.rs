//! What images and build files bring: archives, documents of registries, Dockerfiles.

use wakeful_dockerfile::{ImageConfig, Options, State, TemplateFile};
use wakeful_tree::Limits;

/// A layer: read to its end, whatever it says of itself.
pub(crate) fn layer(bytes: &[u8]) {
    let limits = Limits { bytes: 1 << 20, entries: 1000 };
    if let Ok(summary) = wakeful_tree::scan(bytes, limits) {
        assert!(summary.bytes <= limits.bytes && summary.entries <= limits.entries, "{summary:?}");
    }
}

/// What a registry answers with.
pub(crate) fn image_documents(bytes: &[u8]) {
    let _ = wakeful_oci::parse_manifest(None, bytes);
    let _ = wakeful_oci::parse_config(bytes);
    let text = String::from_utf8_lossy(bytes);
    let _ = wakeful_oci::parse_challenges(&text);
    if let Ok(reference) = wakeful_oci::Reference::parse(&text, Some("registry.invalid")) {
        assert!(!reference.repository().contains(".."), "{reference}");
    }
}

/// A build file, walked as far as it can be without running anything.
pub(crate) fn dockerfile(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = TemplateFile::parse(&text);
    let Ok(file) = wakeful_dockerfile::parse(&text) else { return };
    let Ok(plan) = wakeful_dockerfile::plan(&file, &Options::default()) else { return };
    for stage in &plan.stages {
        let mut state = State::begin(stage, ImageConfig::default());
        for instruction in &stage.instructions {
            if state.step(instruction).is_err() {
                break;
            }
        }
    }
}

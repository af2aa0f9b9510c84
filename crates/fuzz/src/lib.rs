//! Everything that reads bytes of a guest, an engine, a caller or a disk, as functions that take any bytes.
//!
//! ```text
//!   TARGETS ──▶ tests/it         seeds, mutated by proptest: the short run in `make test`
//!           └─▶ ../../fuzz       the same under libFuzzer, which follows coverage: `make fuzz`
//! ```
//!
//! A target fails by a panic: its own, when something that must hold does not, or one in the reader. It must end soon
//! whatever it is given; a hang is found by the runner's limit.

mod channel;
mod images;
mod seeds;
mod tunnel;

/// Something that reads foreign bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line, and of its corpus.
    pub name: &'static str,
    /// Reads.
    pub run: fn(&[u8]),
    /// Valid input to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 20] = [
    Target { name: "hello", run: channel::hello, seeds: seeds::hello },
    Target { name: "stream_frames", run: channel::stream_frames, seeds: seeds::stream_frames },
    Target { name: "agent_answers", run: channel::agent_answers, seeds: seeds::agent_answers },
    Target { name: "request_body", run: wakeful_api::fuzz::request_body, seeds: seeds::request_body },
    Target { name: "request_target", run: wakeful_api::fuzz::request_target, seeds: seeds::request_target },
    Target { name: "monitor", run: wakeful_driver_qemu::fuzz::monitor, seeds: seeds::monitor },
    Target { name: "pages", run: wakeful_driver_qemu::fuzz::pages, seeds: seeds::pages },
    Target { name: "manifest", run: wakeful_driver_qemu::fuzz::manifest, seeds: seeds::manifest },
    Target { name: "first_bytes", run: wakeful_names::fuzz::first_bytes, seeds: seeds::first_bytes },
    Target { name: "dns", run: wakeful_names::fuzz::dns, seeds: seeds::dns },
    Target { name: "preview_host", run: wakeful_gateway::fuzz::host, seeds: seeds::preview_host },
    Target { name: "preview_headers", run: wakeful_gateway::fuzz::pass, seeds: seeds::preview_headers },
    Target { name: "preview_frames", run: wakeful_gateway::fuzz::frames, seeds: seeds::preview_frames },
    Target { name: "preview_cookie", run: wakeful_gateway::fuzz::cookie, seeds: seeds::preview_cookie },
    Target { name: "preview_request", run: wakeful_api::fuzz::preview_request, seeds: seeds::preview_request },
    Target { name: "problem_page", run: wakeful_api::fuzz::problem_page, seeds: seeds::problem_page },
    Target { name: "layer", run: images::layer, seeds: seeds::layer },
    Target { name: "image_documents", run: images::image_documents, seeds: seeds::image_documents },
    Target { name: "dockerfile", run: images::dockerfile, seeds: seeds::dockerfile },
    Target { name: "tunnel", run: tunnel::tunnel, seeds: seeds::tunnel },
];

/// The target of this name.
///
/// # Panics
/// If there is none: the names are fixed when the program is written.
#[must_use]
pub fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).expect("the name of a target")
}

//! Builds the agent as one static file, twice, whatever the outer build is doing.
//!
//! The second one is for containers of gVisor, whose epoll is not to be trusted after a restore (sets with connections to the
//! outside go deaf, and tell of descriptors that are long closed): it waits by `poll`, which keeps nothing between two calls.
//! mio has that for systems without epoll, chosen when it is compiled; hence another target folder, so that neither build
//! throws the other's away.
//!
//! The agent runs as pid 1 in any image, so it may need nothing from it: it is linked with `+crt-static`, which on
//! the gnu target works only with an explicit `--target` (proc-macros must stay dynamic). Hence a cargo of its own,
//! with a target folder of its own: the outer cargo holds the lock of the other one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let workspace = here.join("../..");
    for input in
        ["crates/agent", "crates/guest-proto", "crates/sys", "crates/tree", "crates/tunnel", "Cargo.lock", "Cargo.toml"]
    {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    for (folder, cfg, name) in [
        ("agent", "", "wakeful-agent"),
        ("agent-container", "--cfg mio_unsupported_force_poll_poll", "wakeful-agent-container"),
    ] {
        let built = build(&workspace, &beside_outer_target(&out).join(folder), cfg);
        fs::copy(built, out.join(name)).expect("the agent was built");
    }
}

/// Where it is.
fn build(workspace: &Path, target_dir: &Path, cfg: &str) -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    for (name, _) in env::vars_os() {
        // What the outer cargo says about its own build must not leak into this one (clippy's wrapper least of all).
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_") && name != "CARGO_HOME" || name.starts_with("RUSTC") || name == "RUSTFLAGS" {
            cargo.env_remove(&*name);
        }
    }
    let status = cargo
        .current_dir(workspace)
        .args(["build", "--release", "--locked", "--package", "wakeful-agent", "--target", TARGET])
        .arg("--target-dir")
        .arg(target_dir)
        .env("RUSTFLAGS", format!("-C target-feature=+crt-static -C strip=symbols {cfg}"))
        // Emulated guests pay for every instruction that they run for the first time: the fewer, the better.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the agent did not build");
    target_dir.join(TARGET).join("release/wakeful-agent")
}

/// `OUT_DIR` is `<target>/<profile>/build/<package>-<hash>/out`; a folder beside the profiles outlives this build.
fn beside_outer_target(out: &Path) -> &Path {
    out.ancestors().nth(4).expect("OUT_DIR lies deep in the target folder")
}

//! The bare engine as commands for a shell: whoever doubts the figures can take them by hand.
//!
//! The script has one function per case (see `baseline.sh`, which it ends with). Files are opened by the shell and
//! handed over as descriptors, as in a run; sockets have paths, because a shell cannot bind one.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::bare::qemu::{Blueprint, Piece, Role};
use crate::cases::Bench;
use crate::{Error, Options, Runtime};

/// Under which numbers the shell opens files. More than one digit takes bash.
const FDS: [(Role, u32); 6] = [
    (Role::Engine, 20),
    (Role::Memory, 21),
    (Role::Base, 22),
    (Role::Overlay, 23),
    (Role::Kernel, 24),
    (Role::Initramfs, 25),
];
/// Options without a value.
const ALONE: [&str; 4] = ["'-nodefaults'", "'-no-user-config'", "'-no-reboot'", "'-S'"];

const HEAD: &str = "\
#!/bin/bash
# The bare engine that `wakeful bench` compares with, as commands. Run as root:
#   bash baseline.sh                               a clone, a suspend and a wake, each timed
#   . ./baseline.sh; begin; clone; qmp cont; …     step by step
# Needs python3 for what a shell cannot do. Everything is in $WORK, which goes at the end.
# Not in it: hello and restore, for which `wakeful bench` uses the agent's channel.
set -u
";
const GOLDEN_BOOT: &str = "
# The boot that a golden snapshot is made of, once per template and size. The guest writes to the memory file itself:
#   begin; MEMORY=$WORK/mem; truncate -s 256M $MEMORY; chown $ENGINE_UID $MEMORY; golden_boot
# When the agent answers: qmp stop, and save the device state as `suspend` does.
";
const CLONE: &str = "
# A create: the golden memory file mapped privately, the device state loaded, vCPUs stopped. `qmp cont` runs it.
";
const WAKE: &str = "
# A wake: the same engine, over the pages and the state that `suspend` has left.
#   wake; pages inject $WORK/mem.diff; qmp migrate-incoming '{\"uri\": \"fd:26\"}'; qmp cont
";

/// The commands, with the paths of the prepared directory. The guest's initramfs, which has no file otherwise, is kept
/// there as `bench/initramfs`.
pub(crate) async fn script(options: &Options, tell: &dyn Fn(&str, f32)) -> Result<String, Error> {
    let bench = Bench::open(options, Some(Runtime::Qemu), tell).await?;
    let clone = bench.qemu(json!({})).await?;
    let booted = bench.booted().await?;
    let (kernel, initramfs) = booted.boot.clone().ok_or_else(|| Error::engine("be understood", "it was not booted"))?;
    let data = options.data_dir.canonicalize().map_err(Error::io("find the data directory"))?;
    let kept = data.join("bench/initramfs");
    fs::copy(&initramfs, &kept).map_err(Error::io("keep the initramfs"))?;
    // The private directory's files are hard links to the prepared one's.
    let private = bench.data();
    let original = |path: &Path| -> PathBuf {
        path.strip_prefix(&private).map_or_else(|_| path.to_owned(), |rest| data.join(rest))
    };

    let mut text = String::from(HEAD);
    let mut line = |name: &str, value: &Path| {
        let _ = writeln!(text, "{name}={}", quoted(&value.display().to_string()));
    };
    line("ENGINE", &original(&clone.blueprint.engine_dir));
    line("BASE", &original(&clone.blueprint.base));
    line("GOLDEN", &original(&clone.golden.dir));
    line("KERNEL", &original(&kernel));
    line("INITRAMFS", &kept);
    let _ = writeln!(text, "ENGINE_UID={} ENGINE_GID={}", clone.blueprint.uid, clone.blueprint.gid);

    let shared = replaced(&booted.options, "share=off", "share=on");
    let loading = replaced(&clone.blueprint.options, "defer", "fd:26");
    let boot_files = ["24<\"$KERNEL\"", "25<\"$INITRAMFS\""];
    text.push_str(&function("golden_boot", GOLDEN_BOOT, &shared, &boot_files));
    text.push_str(&function("clone", CLONE, &loading, &["26<\"$GOLDEN/dev.state\""]));
    text.push_str(&function("wake", WAKE, &clone.blueprint.options, &["26<\"$WORK/dev.state\""]));
    text.push_str(include_str!("baseline.sh"));
    Ok(text)
}

/// One engine's command.
fn function(name: &str, comment: &str, options: &[Vec<Piece>], more: &[&str]) -> String {
    let place = |role: Role| {
        let number = FDS.iter().find(|(of, _)| *of == role).map_or(0, |(_, number)| *number);
        (format!("/proc/self/fd/{number}"), number.to_string())
    };
    let mut words = Blueprint::render(options, place).into_iter().map(|word| {
        // A shell cannot hand over a listening socket: these two get a path.
        let named = ["agent", "qmp"].into_iter().find(|id| word.starts_with(&format!("socket,id={id},")));
        named.map_or_else(|| quoted(&word), |id| format!("\"socket,id={id},path=$WORK/{id},server=on,wait=off\""))
    });
    let mut text = format!("{comment}{name}() {{\n  as_engine /proc/self/fd/20/lib/ld-linux-x86-64.so.2 \\\n");
    text.push_str("    --inhibit-cache --library-path /proc/self/fd/20/lib \\\n");
    text.push_str("    /proc/self/fd/20/bin/qemu-system-x86_64 -L /proc/self/fd/20/share \\\n");
    while let Some(word) = words.next() {
        // An option and its value stand on one line.
        let value = if ALONE.contains(&word.as_str()) { None } else { words.next() };
        let _ = writeln!(text, "    {word} {} \\", value.unwrap_or_default());
    }
    let files = ["20<\"$ENGINE\"", "21<\"$MEMORY\"", "22<\"$BASE\"", "23<>\"$WORK/overlay.ext4\""];
    let files: Vec<&str> = files.into_iter().chain(more.iter().copied()).collect();
    let _ = writeln!(text, "    {} &\n  PID=$!\n}}", files.join(" "));
    text
}

fn replaced(options: &[Vec<Piece>], from: &str, to: &str) -> Vec<Vec<Piece>> {
    let mut options = options.to_vec();
    for piece in options.iter_mut().flatten() {
        if let Piece::Text(text) = piece {
            *text = text.replace(from, to);
        }
    }
    options
}

/// For a shell: nothing in it means anything.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_and_sockets_get_paths() {
        let text = |text: &str| vec![Piece::Text(text.to_owned())];
        let options = [
            text("-chardev"),
            vec![
                Piece::Text("socket,id=qmp,fd=".into()),
                Piece::Number(Role::Monitor),
                Piece::Text(",server=on".into()),
            ],
            text("-S"),
            text("-append"),
            text("it's quiet"),
        ];
        let text = function("f", "", &options, &["26<\"$X\""]);
        assert!(text.contains("'-chardev' \"socket,id=qmp,path=$WORK/qmp,server=on,wait=off\" \\\n"), "{text}");
        assert!(text.contains("    '-S'  \\\n    '-append' 'it'\\''s quiet' \\\n"), "{text}");
        assert!(text.contains("26<\"$X\" &"), "{text}");
    }
}

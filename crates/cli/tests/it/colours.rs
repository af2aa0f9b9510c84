//! Colours: on a terminal, unless someone does not want them.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::run::wakeful;

/// All that it writes to a terminal of its own.
fn on_a_terminal(args: &[&str], environment: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
    let open = || Stdio::from(File::options().read(true).write(true).open(&name).unwrap());
    let mut command = wakeful(home.path(), args);
    command.env_remove("NO_COLOR").env("TERM", "xterm-256color");
    command.envs(environment.iter().copied()).stdin(open()).stdout(open()).stderr(open());
    let mut child = command.spawn().unwrap();
    // our own copies of the other end, or it would never end
    drop(command);
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    // a terminal whose last program has ended gives an error instead of an end
    while let Ok(length) = File::from(controller.try_clone().unwrap()).read(&mut buffer) {
        if length == 0 {
            break;
        }
        text.extend_from_slice(&buffer[..length]);
    }
    child.wait().unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn are_for_those_who_see_them() {
    let lines: [&[&str]; 3] =
        [&["--help"], &["--api-url", "http://127.0.0.1:1", "sandbox", "list"], &["sandbox", "nonsense"]];
    for args in lines {
        let coloured = on_a_terminal(args, &[]);
        assert!(coloured.contains("\x1b["), "{args:?}: {coloured:?}");
        for unwanted in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let plain = on_a_terminal(args, &[unwanted]);
            assert!(!plain.contains('\x1b'), "{args:?} with {unwanted:?}: {plain:?}");
        }
    }
}

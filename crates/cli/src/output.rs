//! The only place that writes: data to stdout, talk to stderr.
//!
//! Colours are dropped by `anstream` where nobody could see them or `NO_COLOR` is set; nothing is said by colour alone.

use std::io::{self, IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARN: Style = AnsiColor::Yellow.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const DIM: Style = Style::new().dimmed();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// One line of data.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// A secret that was asked for, on a line of its own: the one place where one is shown.
pub(crate) fn secret(secret: &secrecy::SecretString) -> io::Result<()> {
    line(secrecy::ExposeSecret::expose_secret(secret))
}

/// Bytes of someone else's, unchanged.
pub(crate) fn bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// A document of data.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// One document of a stream, on a line of its own.
pub(crate) fn json_line(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// A line of talk. Nobody is told when stderr is gone: there is no one left to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Something that is wrong but stops nothing.
pub(crate) fn warning(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{WARN}warning:{WARN:#} {text}");
}

/// A line of ours on a raw terminal that shows someone else's: on a line of its own, told apart by more than colour.
pub(crate) fn notice(text: &str) -> String {
    let line = format!("\r\n{DIM}[wakeful: {text}]{DIM:#}\r\n");
    match anstream::AutoStream::choice(&io::stderr()) {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(&line).to_string(),
        _ => line,
    }
}

/// How a failure is told.
pub(crate) fn error(message: &str, advice: Option<&str>) {
    let _ = writeln!(anstream::stderr().lock(), "{ERROR}error:{ERROR:#} {message}");
    if let Some(advice) = advice {
        hint(advice);
    }
}

/// What to do next.
pub(crate) fn hint(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "\n{HINT}hint:{HINT:#} {text}");
}

/// A word of a check's result.
pub(crate) fn verdict(word: &str) -> String {
    let style = match word {
        "ok" => GOOD,
        "warn" => WARN,
        _ => ERROR,
    };
    // padded before the colour, so that columns stay columns
    format!("{style}{word:<4}{style:#}")
}

/// Whether a person sees stderr.
pub(crate) fn watched() -> bool {
    io::stderr().is_terminal()
}

/// Asks yes or no, if there is someone to ask; otherwise the answer is yes.
pub(crate) fn confirm(question: &str) -> io::Result<bool> {
    if !io::stdin().is_terminal() || !watched() {
        return Ok(true);
    }
    let mut out = anstream::stderr().lock();
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    drop(out);
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

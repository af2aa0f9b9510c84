//! Running a program: deadline, bounded output, fixed language.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::Error;

/// Most that is kept of a program's standard output.
const OUTPUT: usize = 32 << 20;
/// Most that is kept of one line.
const LINE: usize = 1024;
/// How many last lines an error tells.
const LINES: usize = 20;

/// A program about to be run. It is killed when its future is dropped or its deadline passes.
#[derive(Debug)]
pub struct Program {
    name: String,
    command: Command,
    deadline: Duration,
}

/// How a program ended, if it ended in time.
#[derive(Debug)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output, at most 32 MiB of it.
    pub stdout: String,
    /// The last lines of its standard error.
    pub stderr: String,
}

impl Program {
    /// A program by name, found in `PATH`, with a minute's deadline and no standard input.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut command = Command::new(name);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
        // a session may carry a PATH without the system directories, where mke2fs and chroot live
        let path = std::env::var("PATH").unwrap_or_default();
        if !path.split(':').any(|dir| dir == "/usr/sbin") {
            command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"));
        }
        Self { name: name.to_owned(), command, deadline: Duration::from_secs(60) }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Sets the directory to run in.
    #[must_use]
    pub fn current_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Calls it by another name in errors; a program behind wrappers is known by its own.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Gives name, command and deadline away, for a caller that needs another way of running it.
    pub(crate) fn into_parts(self) -> (String, Command, Duration) {
        (self.name, self.command, self.deadline)
    }

    /// Runs it and takes its standard output, whatever its exit status.
    ///
    /// # Errors
    /// [`Error::Spawn`], [`Error::Late`].
    ///
    /// # Cancel safety
    /// Dropping the future kills the program.
    pub async fn output(mut self) -> Result<Output, Error> {
        let mut child = self.spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let mut tail = Tail::default();
        let mut stdout = Vec::new();
        let run = async {
            let (read, _) = tokio::join!(bounded(out, &mut stdout), lines(err, |line| tail.push(line)));
            read?;
            child.wait().await
        };
        match tokio::time::timeout(self.deadline, run).await {
            Ok(Ok(status)) => {
                Ok(Output { status, stdout: String::from_utf8_lossy(&stdout).into_owned(), stderr: tail.text() })
            }
            Ok(Err(source)) => Err(Error::Spawn { program: self.name, source }),
            Err(_) => Err(Error::Late { program: self.name, after: self.deadline, output: tail.text() }),
        }
    }

    /// Runs it, and takes its standard output if it succeeds.
    ///
    /// # Errors
    /// [`Error::Spawn`], [`Error::Late`], [`Error::Failed`].
    ///
    /// # Cancel safety
    /// Dropping the future kills the program.
    pub async fn text(self) -> Result<String, Error> {
        let program = self.name.clone();
        let output = self.output().await?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Error::Failed { program, status: output.status.to_string(), output: output.stderr })
    }

    /// Runs it and hands each line of both its outputs to `on_line` as it comes.
    ///
    /// # Errors
    /// [`Error::Spawn`], [`Error::Late`], [`Error::Failed`] with the last lines of both outputs.
    ///
    /// # Cancel safety
    /// Dropping the future kills the program.
    pub async fn follow(mut self, on_line: &(dyn Fn(&str) + Send + Sync)) -> Result<(), Error> {
        let mut child = self.spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let tail = std::sync::Mutex::new(Tail::default());
        let each = |line: &str| {
            tail.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line);
            on_line(line);
        };
        let run = async {
            tokio::join!(lines(out, each), lines(err, each));
            child.wait().await
        };
        let ended = tokio::time::timeout(self.deadline, run).await;
        let output = tail.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).text();
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(Error::Failed { program: self.name, status: status.to_string(), output }),
            Ok(Err(source)) => Err(Error::Spawn { program: self.name, source }),
            Err(_) => Err(Error::Late { program: self.name, after: self.deadline, output }),
        }
    }

    fn spawn(&mut self) -> Result<tokio::process::Child, Error> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.spawn().map_err(|source| Error::Spawn { program: self.name.clone(), source })
    }
}

/// Reads to the end, keeps the first [`OUTPUT`] bytes. It reads on after that: a full pipe would stop the program.
async fn bounded(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> std::io::Result<()> {
    let Some(mut from) = from else { return Ok(()) };
    let mut chunk = vec![0; 64 << 10];
    loop {
        let n = from.read(&mut chunk).await?;
        if n == 0 {
            return Ok(());
        }
        let keep = n.min(OUTPUT - into.len());
        into.extend_from_slice(&chunk[..keep]);
    }
}

/// Reads to the end and hands on lines, each cut at [`LINE`] bytes. A read error ends it as the end does: the exit
/// status tells the story.
async fn lines(from: Option<impl AsyncRead + Unpin>, mut on_line: impl FnMut(&str)) {
    let Some(mut from) = from else { return };
    let mut splitter = Splitter::default();
    let mut chunk = vec![0; 16 << 10];
    while let Ok(n) = from.read(&mut chunk).await {
        if n == 0 {
            break;
        }
        splitter.feed(&chunk[..n], &mut on_line);
    }
    splitter.finish(&mut on_line);
}

/// Cuts bytes into lines of bounded length. A carriage return ends a line too, as progress bars use it.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    line: Vec<u8>,
}

impl Splitter {
    pub(crate) fn feed(&mut self, bytes: &[u8], on_line: &mut impl FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' || byte == b'\r' {
                self.finish(on_line);
            } else if self.line.len() < LINE {
                self.line.push(byte);
            }
        }
    }

    pub(crate) fn finish(&mut self, on_line: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.line);
        if !text.trim().is_empty() {
            on_line(text.trim_end());
        }
        self.line.clear();
    }
}

/// The last lines of an output.
#[derive(Debug, Default)]
pub struct Tail(VecDeque<String>);

impl Tail {
    /// Adds a line and forgets the oldest beyond twenty.
    pub fn push(&mut self, line: &str) {
        if self.0.len() == LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    /// The lines as one text.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

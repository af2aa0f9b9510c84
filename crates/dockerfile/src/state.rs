//! A stage while it is walked: the configuration so far and the ARGs in scope.
//!
//! Whoever builds walks a stage even where every step comes from the cache: this is pure, and what later steps mean
//! depends on it.

use std::sync::Arc;

use crate::action::{Action, CopyStep, InlineFile, Mount, MountKind, Origin, RunStep, WorkdirStep};
use crate::args::Scope;
use crate::config::{Healthcheck, ImageConfig};
use crate::error::Error;
use crate::expand::{self, Variables};
use crate::instruction::{Command, CopyOp, HealthcheckOp, Instruction, MountSpec, Op, RunOp};
use crate::lines;
use crate::parse::{is_remote, remote};
use crate::plan::PlannedStage;
use crate::{MAX_EXPANDED, MAX_VARIABLES};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_SHELL: [&str; 2] = ["/bin/sh", "-c"];
/// Where a heredoc that names its interpreter lies while it runs.
const SCRIPT: &str = "/.wakeful-heredoc";
/// How many ports a stage may list, again and again.
const MAX_PORTS: usize = 200_000;

/// A stage while it is walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    config: ImageConfig,
    args: Vec<(String, String)>,
    scope: Arc<Scope>,
    cmd_is_own: bool,
    ports: usize,
}

impl Variables for State {
    fn get(&self, name: &str) -> Option<&str> {
        self.config
            .get_env(name)
            .or_else(|| self.args.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str()))
    }
}

impl State {
    /// The beginning of a stage upon an image, or upon nothing with an empty configuration. The image's ONBUILD
    /// instructions end here; [`crate::Dockerfile::with_triggers`] puts them into the stage.
    #[must_use]
    pub fn begin(stage: &PlannedStage, base: ImageConfig) -> Self {
        Self::new(base, Vec::new(), Arc::clone(&stage.scope))
    }

    /// The beginning of a stage upon another, whose ARGs it sees.
    #[must_use]
    pub fn begin_from(stage: &PlannedStage, parent: &Self) -> Self {
        Self::new(parent.config.clone(), parent.args.clone(), Arc::clone(&stage.scope))
    }

    /// A stage without a Dockerfile around it: no build arguments, no other stages.
    #[must_use]
    pub fn from_config(base: ImageConfig) -> Self {
        Self::new(base, Vec::new(), Arc::default())
    }

    fn new(mut config: ImageConfig, args: Vec<(String, String)>, scope: Arc<Scope>) -> Self {
        config.onbuild.clear();
        if config.get_env("PATH").is_none() {
            config.set_env("PATH", DEFAULT_PATH.to_owned());
        }
        Self { config, args, scope, cmd_is_own: false, ports: 0 }
    }

    /// The configuration so far.
    #[must_use]
    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// The configuration at the end.
    #[must_use]
    pub fn into_config(self) -> ImageConfig {
        self.config
    }

    /// Takes one instruction: changes the state, and says what else is to be done.
    ///
    /// # Errors
    /// With the instruction's line: what cannot be expanded, and values that mean nothing.
    pub fn step(&mut self, instruction: &Instruction) -> Result<Action, Error> {
        let at = At { line: instruction.line, escape: instruction.escape };
        match &instruction.op {
            Op::Run(run) => return self.run(run, at).map(Action::Run),
            Op::Copy(copy) => return self.copy(copy, at).map(Action::Copy),
            Op::Workdir(path) => {
                let path = self.word(path, at)?;
                if path.is_empty() {
                    return Err(Error::syntax(at.line, "WORKDIR: the path is empty"));
                }
                self.config.workdir = absolute(&self.workdir(), &path);
                let user = self.config.user.clone();
                return Ok(Action::Workdir(WorkdirStep { path: self.config.workdir.clone(), user }));
            }
            Op::Arg(pairs) => self.arg(pairs, at)?,
            Op::Env(pairs) => {
                // All of one instruction see what was before it.
                let pairs = self.pairs(pairs, at)?;
                for (name, value) in pairs {
                    self.config.set_env(&name, value);
                    self.check_count(at)?;
                }
                self.check_size(at)?;
            }
            Op::Label(pairs) => {
                let pairs = self.pairs(pairs, at)?;
                self.config.labels.extend(pairs);
                self.check_size(at)?;
            }
            Op::User(user) => {
                let user = self.word(user, at)?;
                if user.is_empty() {
                    return Err(Error::syntax(at.line, "USER: the name is empty"));
                }
                self.config.user = user;
            }
            Op::Entrypoint(command) => {
                self.config.entrypoint = self.argv_of(command);
                // The base's CMD was meant for the base's entry point.
                if !self.cmd_is_own {
                    self.config.cmd = None;
                }
            }
            Op::Cmd(command) => {
                self.config.cmd = self.argv_of(command);
                self.cmd_is_own = true;
            }
            Op::Expose(ports) => self.expose(ports, at)?,
            Op::Shell(shell) => self.config.shell = Some(shell.clone()),
            Op::Volume(paths) => {
                for path in paths {
                    let path = self.word(path, at)?;
                    if path.is_empty() {
                        return Err(Error::syntax(at.line, "VOLUME: the path is empty"));
                    }
                    self.config.volumes.insert(path);
                }
            }
            Op::StopSignal(signal) => self.config.stop_signal = Some(self.word(signal, at)?),
            Op::Healthcheck(check) => self.config.healthcheck = Some(healthcheck(check.as_ref())),
            Op::Maintainer(name) => self.config.author = Some(name.clone()),
            Op::Onbuild(text) => self.config.onbuild.push(text.clone()),
        }
        Ok(Action::Config)
    }

    fn word(&self, text: &str, at: At) -> Result<String, Error> {
        expand::word(text, at.escape, self).map_err(|why| Error::syntax(at.line, why)).and_then(|word| no_nul(word, at))
    }

    fn pairs(&self, pairs: &[(String, String)], at: At) -> Result<Vec<(String, String)>, Error> {
        let mut expanded = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            let name = self.word(name, at)?;
            if name.is_empty() || name.contains('=') {
                return Err(Error::syntax(at.line, format!("{name:?} is not a name")));
            }
            expanded.push((name, self.word(value, at)?));
        }
        Ok(expanded)
    }

    fn workdir(&self) -> String {
        if self.config.workdir.is_empty() { "/".to_owned() } else { self.config.workdir.clone() }
    }

    fn arg(&mut self, pairs: &[(String, Option<String>)], at: At) -> Result<(), Error> {
        let mut found = Vec::new();
        for (name, default) in pairs {
            let name = self.word(name, at)?;
            let default = default.as_ref().map(|text| self.word(text, at)).transpose()?;
            if let Some(value) = self.scope.value(&name, default) {
                found.push((name, value));
            }
        }
        for (name, value) in found {
            self.args.retain(|(own, _)| *own != name);
            self.args.push((name, value));
            self.check_count(at)?;
        }
        self.check_size(at)
    }

    /// Every one is looked at for every other.
    fn check_count(&self, at: At) -> Result<(), Error> {
        if self.config.env.len() + self.args.len() > MAX_VARIABLES {
            return Err(Error::limit(at.line, format!("more than {MAX_VARIABLES} variables")));
        }
        Ok(())
    }

    /// Variables and labels grow with every instruction; together they stay within what a process could be given.
    fn check_size(&self, at: At) -> Result<(), Error> {
        let pairs = self.config.env.iter().chain(&self.args).map(|(name, value)| (name, value));
        let total: usize = pairs.chain(&self.config.labels).map(|(name, value)| name.len() + value.len() + 2).sum();
        if total > MAX_EXPANDED {
            return Err(Error::limit(at.line, format!("variables and labels are longer than {MAX_EXPANDED} bytes")));
        }
        Ok(())
    }

    fn shell(&self) -> Vec<String> {
        self.config.shell.clone().unwrap_or_else(|| DEFAULT_SHELL.map(str::to_owned).to_vec())
    }

    fn with_shell(&self, line: String) -> Vec<String> {
        let mut argv = self.shell();
        argv.push(line);
        argv
    }

    fn argv_of(&self, command: &Command) -> Option<Vec<String>> {
        match command {
            Command::Shell(line) => Some(self.with_shell(line.clone())),
            Command::Argv(argv) if argv.is_empty() => None,
            Command::Argv(argv) => Some(argv.clone()),
        }
    }

    fn run(&self, run: &RunOp, at: At) -> Result<RunStep, Error> {
        let mut mounts = Vec::new();
        for mount in &run.mounts {
            mounts.push(self.mount(mount, at)?);
        }
        let argv = match &run.command {
            Command::Argv(argv) => argv.clone(),
            Command::Shell(line) => match run.heredocs.as_slice() {
                [] => self.with_shell(line.clone()),
                [only] if is_heredoc_alone(line) => {
                    let script = only.text();
                    if script.starts_with("#!") {
                        let kind = MountKind::File { content: script.into_bytes(), mode: 0o755 };
                        mounts.push(Mount { target: SCRIPT.to_owned(), kind });
                        self.with_shell(SCRIPT.to_owned())
                    } else {
                        self.with_shell(script)
                    }
                }
                several => {
                    // The shell reads heredocs itself; it only needs their text back.
                    let mut whole = line.clone();
                    for heredoc in several {
                        whole.push('\n');
                        whole.push_str(&heredoc.content);
                        whole.push_str(&heredoc.name);
                    }
                    self.with_shell(whole)
                }
            },
        };
        let mut env = self.config.env.clone();
        env.extend(self.args.iter().filter(|(name, _)| self.config.get_env(name).is_none()).cloned());
        let proxy = self.scope.proxies().into_iter().filter(|(name, _)| self.get(name).is_none()).collect();
        Ok(RunStep { argv, env, proxy, user: self.config.user.clone(), workdir: self.workdir(), mounts })
    }

    fn mount(&self, mount: &MountSpec, at: At) -> Result<Mount, Error> {
        let target = |text: &str| {
            let path = absolute(&self.workdir(), &self.word(text, at)?);
            if path == "/" { Err(Error::syntax(at.line, "a mount cannot hide the whole root")) } else { Ok(path) }
        };
        Ok(match mount {
            MountSpec::Bind { target: to, source, from } => {
                let from = match from {
                    Some(from) => self.scope.origin(from, at.line)?,
                    None => Origin::Context,
                };
                let source = absolute("/", &self.word(source, at)?);
                let source = if source == "/" { ".".to_owned() } else { source[1..].to_owned() };
                Mount { target: target(to)?, kind: MountKind::Bind { from, source } }
            }
            MountSpec::Cache { target: to, id, mode, uid, gid } => {
                let target = target(to)?;
                let id = id.as_ref().map(|id| self.word(id, at)).transpose()?.unwrap_or_else(|| target.clone());
                Mount { target, kind: MountKind::Cache { id, mode: *mode, uid: *uid, gid: *gid } }
            }
            MountSpec::Tmpfs { target: to, size } => {
                Mount { target: target(to)?, kind: MountKind::Tmpfs { size: *size } }
            }
        })
    }

    fn copy(&self, copy: &CopyOp, at: At) -> Result<CopyStep, Error> {
        let from = match &copy.from {
            Some(from) => self.scope.origin(from, at.line)?,
            None => Origin::Context,
        };
        let mut sources = Vec::new();
        for source in &copy.sources {
            let source = self.word(source, at)?;
            if source.is_empty() {
                return Err(Error::syntax(at.line, "a source is empty"));
            }
            if copy.add && is_remote(&source) {
                return Err(remote(&source, at.line));
            }
            sources.push(source);
        }
        let mut inline = Vec::new();
        for heredoc in &copy.heredocs {
            let name = heredoc.name.clone();
            if name.contains(['/', '\0']) || [".", ".."].contains(&name.as_str()) {
                return Err(Error::syntax(at.line, format!("a heredoc's name cannot be that of a file: {name:?}")));
            }
            let mut content = heredoc.text();
            if heredoc.expand {
                content = expand::text(&content, self).map_err(|why| Error::syntax(at.line, why))?;
            }
            inline.push(InlineFile { name, content: content.into_bytes() });
        }
        let written = self.word(&copy.dest, at)?;
        if written.is_empty() {
            return Err(Error::syntax(at.line, "the destination is empty"));
        }
        let mut dest = absolute(&self.workdir(), &written);
        let directory = ["/", "/.", "/.."].iter().any(|end| written.ends_with(end)) || [".", ".."].contains(&&*written);
        if directory && !dest.ends_with('/') {
            dest.push('/');
        }
        let chown = copy.chown.as_ref().map(|text| self.word(text, at)).transpose()?;
        let chmod = copy.chmod.as_ref().map(|text| self.word(text, at)).transpose()?;
        let chmod = chmod.filter(|text| !text.is_empty()).map(|text| mode(&text, at)).transpose()?;
        let excludes = copy.excludes.iter().map(|text| self.word(text, at)).collect::<Result<_, _>>()?;
        let step = CopyStep {
            from,
            sources,
            inline,
            dest,
            chown: chown.filter(|text| !text.is_empty()),
            chmod,
            excludes,
            parents: copy.parents,
            unpack_archives: copy.unpack,
        };
        step.placement(&[]).map_err(|why| why.with_line(at.line))?;
        Ok(step)
    }

    fn expose(&mut self, ports: &[String], at: At) -> Result<(), Error> {
        for text in ports {
            let words = expand::words(text, at.escape, self).map_err(|why| Error::syntax(at.line, why))?;
            for port in words {
                let wrong = || Error::syntax(at.line, format!("EXPOSE {port}: not a port"));
                let (numbers, protocol) = port.split_once('/').unwrap_or((&port, "tcp"));
                let protocol = protocol.to_ascii_lowercase();
                if !["tcp", "udp", "sctp"].contains(&protocol.as_str()) {
                    return Err(wrong());
                }
                let (low, high) = numbers.split_once('-').unwrap_or((numbers, numbers));
                let low: u16 = low.parse().map_err(|_| wrong())?;
                let high: u16 = high.parse().map_err(|_| wrong())?;
                if low > high {
                    return Err(wrong());
                }
                self.ports += usize::from(high - low) + 1;
                if self.ports > MAX_PORTS {
                    return Err(Error::limit(at.line, format!("EXPOSE: more than {MAX_PORTS} ports")));
                }
                self.config.exposed.extend((low..=high).map(|number| format!("{number}/{protocol}")));
            }
        }
        Ok(())
    }
}

/// Where an instruction stands, and its file's escape character.
#[derive(Clone, Copy)]
struct At {
    line: u32,
    escape: char,
}

fn no_nul(word: String, at: At) -> Result<String, Error> {
    if word.contains('\0') { Err(Error::syntax(at.line, "a value contains a NUL")) } else { Ok(word) }
}

fn is_heredoc_alone(line: &str) -> bool {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match words.as_slice() {
        [only] => lines::marker(only).is_some(),
        [sign, _] => sign.starts_with("<<") && lines::heredocs_of(&words).len() == 1 && lines::marker(sign).is_none(),
        _ => false,
    }
}

fn healthcheck(check: Option<&HealthcheckOp>) -> Healthcheck {
    let Some(check) = check else { return Healthcheck { test: vec!["NONE".to_owned()], ..Healthcheck::default() } };
    let test = match &check.command {
        Command::Shell(line) => vec!["CMD-SHELL".to_owned(), line.clone()],
        Command::Argv(argv) => [vec!["CMD".to_owned()], argv.clone()].concat(),
    };
    Healthcheck {
        test,
        interval: check.interval,
        timeout: check.timeout,
        start_period: check.start_period,
        start_interval: check.start_interval,
        retries: check.retries,
    }
}

fn mode(text: &str, at: At) -> Result<u32, Error> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(Error::unsupported(at.line, format!("--chmod={text}: only numbers such as 755 are understood"))),
    }
}

/// A path against a directory, without `.`, `..` and double slashes; no `..` leads above the root.
fn absolute(base: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let base = if path.starts_with('/') { "" } else { base };
    for part in base.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

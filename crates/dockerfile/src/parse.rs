//! From whole instructions to what they say.

use std::time::Duration;

use crate::error::Error;
use crate::instruction::{Command, CopyOp, Dockerfile, HealthcheckOp, Heredoc, Instruction, Op, RunOp, Stage};
use crate::lines::{self, Logical};
use crate::words::{Flag, exec_form, json_strings, plain_words, split_flags, split_words};
use crate::{MAX_STAGES, mount, suggest};

const KEYWORDS: [&str; 18] = [
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "RUN",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

/// How much of an instruction a log shows.
const TEXT_IN_LOGS: usize = 500;

/// Reads a Dockerfile.
///
/// # Errors
/// With the line: what is no Dockerfile, what cannot be done here, what passes a bound.
pub fn parse(text: &str) -> Result<Dockerfile, Error> {
    let lines = lines::divide(text)?;
    let escape = lines.escape;
    let mut file = Dockerfile { head: Vec::new(), stages: Vec::new(), escape, warnings: lines.warnings };
    for logical in lines.instructions {
        if keyword(&logical.text).0.eq_ignore_ascii_case("from") {
            if file.stages.len() == MAX_STAGES {
                return Err(Error::limit(logical.line, format!("more than {MAX_STAGES} stages")));
            }
            let stage = from(&logical, escape)?;
            if let Some(name) = &stage.name
                && file.stages.iter().any(|other| other.name.as_ref() == Some(name))
            {
                return Err(Error::syntax(stage.line, format!("there is already a stage {name:?}")));
            }
            file.stages.push(stage);
            continue;
        }
        let instruction = instruction(&logical, escape)?;
        match (file.stages.last_mut(), &instruction.op) {
            (Some(stage), _) => stage.instructions.push(instruction),
            (None, Op::Arg(_)) => file.head.push(instruction),
            (None, _) => {
                let word = keyword(&logical.text).0.to_ascii_uppercase();
                return Err(Error::syntax(logical.line, format!("{word} before FROM: only ARG may stand there")));
            }
        }
    }
    if file.stages.is_empty() {
        return Err(Error::syntax(0, "there is no FROM in the Dockerfile"));
    }
    Ok(file)
}

impl Dockerfile {
    /// The same file with an image's ONBUILD instructions put behind a stage's FROM, as building upon that image means.
    ///
    /// # Errors
    /// A trigger that is no instruction, or a stage that is not there.
    pub fn with_triggers(&self, stage: usize, triggers: &[String]) -> Result<Self, Error> {
        let mut file = self.clone();
        let Some(stage) = file.stages.get_mut(stage) else {
            return Err(Error::syntax(0, format!("there is no stage {stage}")));
        };
        let parsed = triggers_of(triggers, stage.line)?;
        stage.instructions.splice(0..0, parsed);
        Ok(file)
    }
}

/// Instructions kept by ONBUILD, placed at a line.
pub(crate) fn triggers_of(triggers: &[String], line: u32) -> Result<Vec<Instruction>, Error> {
    let mut parsed = Vec::new();
    for trigger in triggers {
        let inner = lines::divide(trigger)?;
        for mut logical in inner.instructions {
            logical.line = line;
            parsed.push(triggered(&logical, '\\')?);
        }
        if parsed.len() > crate::MAX_INSTRUCTIONS {
            return Err(Error::limit(line, "too many ONBUILD instructions"));
        }
    }
    Ok(parsed)
}

/// An instruction that may stand behind ONBUILD.
fn triggered(logical: &Logical, escape: char) -> Result<Instruction, Error> {
    let word = keyword(&logical.text).0.to_ascii_uppercase();
    if ["FROM", "ONBUILD", "MAINTAINER"].contains(&word.as_str()) {
        return Err(Error::syntax(logical.line, format!("{word} cannot be an ONBUILD trigger")));
    }
    instruction(logical, escape)
}

fn keyword(text: &str) -> (&str, &str) {
    text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim()))
}

fn from(logical: &Logical, escape: char) -> Result<Stage, Error> {
    let line = logical.line;
    let (flags, rest) = split_flags(keyword(&logical.text).1, escape);
    let mut platform = None;
    for flag in &flags {
        match flag.name.as_str() {
            "platform" => platform = Some(flag.required(line)?),
            _ => return Err(unknown_flag(flag, "FROM", line)),
        }
    }
    let words = plain_words(rest);
    let (image, name) = match words.as_slice() {
        [image] => (image, None),
        [image, with, name] if with.eq_ignore_ascii_case("as") => (image, Some(stage_name(name, line)?)),
        _ => return Err(Error::syntax(line, "FROM takes an image, or an image AS a name")),
    };
    Ok(Stage { name, image: image.clone(), platform, line, instructions: Vec::new() })
}

fn stage_name(name: &str, line: u32) -> Result<String, Error> {
    let name = name.to_ascii_lowercase();
    let valid = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c));
    if !valid {
        return Err(Error::syntax(
            line,
            format!("invalid stage name {name:?}: it must begin with a letter and hold letters, digits, '-', '_', '.'"),
        ));
    }
    if ["scratch", "context"].contains(&name.as_str()) {
        return Err(Error::syntax(line, format!("the stage name {name:?} is reserved")));
    }
    Ok(name)
}

fn unknown_flag(flag: &Flag, word: &str, line: u32) -> Error {
    Error::syntax(line, format!("unknown flag --{} of {word}", flag.name))
}

/// One instruction, except FROM.
pub(crate) fn instruction(logical: &Logical, escape: char) -> Result<Instruction, Error> {
    let line = logical.line;
    let (word, arguments) = keyword(&logical.text);
    let word = word.to_ascii_uppercase();
    if !KEYWORDS.contains(&word.as_str()) {
        let shown: String = word.chars().take(40).collect();
        let hint = suggest::nearest(&word, KEYWORDS).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        return Err(Error::syntax(line, format!("unknown instruction {shown}{hint}")));
    }
    if arguments.is_empty() {
        return Err(Error::syntax(line, format!("{word} needs an argument")));
    }
    let call = Call { line, escape, word, heredocs: &logical.heredocs };
    let op = call.op(arguments)?;
    let text = logical.text.chars().take(TEXT_IN_LOGS).collect();
    Ok(Instruction { line, text, escape, op })
}

struct Call<'a> {
    line: u32,
    escape: char,
    word: String,
    heredocs: &'a [Heredoc],
}

impl Call<'_> {
    fn wrong<T>(&self, detail: impl Into<String>) -> Result<T, Error> {
        Err(Error::syntax(self.line, format!("{}: {}", self.word, detail.into())))
    }

    fn op(&self, arguments: &str) -> Result<Op, Error> {
        if self.word == "ONBUILD" {
            return self.onbuild(arguments);
        }
        if self.word == "MAINTAINER" {
            return Ok(Op::Maintainer(arguments.to_owned()));
        }
        let (flags, rest) = split_flags(arguments, self.escape);
        match self.word.as_str() {
            "RUN" => return self.run(&flags, rest),
            "COPY" | "ADD" => return self.copy(&flags, rest),
            "HEALTHCHECK" => return self.healthcheck(&flags, rest),
            _ => {}
        }
        if let Some(flag) = flags.first() {
            return Err(unknown_flag(flag, &self.word, self.line));
        }
        if rest.is_empty() {
            return self.wrong("needs an argument");
        }
        Ok(match self.word.as_str() {
            "ARG" => Op::Arg(self.arg(rest)?),
            "ENV" => Op::Env(self.pairs(rest)?),
            "LABEL" => Op::Label(self.pairs(rest)?),
            "WORKDIR" => Op::Workdir(rest.to_owned()),
            "USER" => Op::User(rest.to_owned()),
            "STOPSIGNAL" => Op::StopSignal(rest.to_owned()),
            "ENTRYPOINT" => Op::Entrypoint(self.command(rest)?),
            "CMD" => Op::Cmd(self.command(rest)?),
            "EXPOSE" => Op::Expose(plain_words(rest)),
            "VOLUME" => Op::Volume(self.list(rest)?),
            "SHELL" => match json_strings(rest) {
                Some(shell) if !shell.is_empty() => Op::Shell(shell),
                _ => return self.wrong("must be a JSON array of strings, such as [\"/bin/bash\", \"-c\"]"),
            },
            // FROM inside a stage is taken before; only a trigger can bring it here.
            _ => return self.wrong("cannot stand here"),
        })
    }

    fn command(&self, rest: &str) -> Result<Command, Error> {
        Ok(match exec_form(rest, self.line)? {
            Some(argv) => Command::Argv(argv),
            None => Command::Shell(rest.to_owned()),
        })
    }

    fn list(&self, rest: &str) -> Result<Vec<String>, Error> {
        Ok(exec_form(rest, self.line)?.unwrap_or_else(|| plain_words(rest)))
    }

    fn arg(&self, rest: &str) -> Result<Vec<(String, Option<String>)>, Error> {
        let mut pairs = Vec::new();
        for word in split_words(rest, self.escape) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            if name.is_empty() {
                return self.wrong("a name is empty");
            }
            pairs.push((name, value));
        }
        Ok(pairs)
    }

    /// `name=value …`, or the old `name value` whose value is all the rest.
    fn pairs(&self, rest: &str) -> Result<Vec<(String, String)>, Error> {
        let words = split_words(rest, self.escape);
        if !words.first().is_some_and(|word| word.contains('=')) {
            let Some((name, value)) = rest.split_once(char::is_whitespace) else {
                return self.wrong(format!("{rest:?} has no value: write name=value"));
            };
            return Ok(vec![(name.to_owned(), value.trim_start().to_owned())]);
        }
        let mut pairs = Vec::new();
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return self.wrong(format!("{word:?} has no =: write name=value"));
            };
            if name.is_empty() {
                return self.wrong("a name is empty");
            }
            pairs.push((name.to_owned(), value.to_owned()));
        }
        Ok(pairs)
    }

    fn run(&self, flags: &[Flag], rest: &str) -> Result<Op, Error> {
        let mut mounts = Vec::new();
        for flag in flags {
            match flag.name.as_str() {
                "mount" => mounts.push(mount::parse(&flag.required(self.line)?, self.line)?),
                "network" if flag.value.as_deref() == Some("default") => {}
                "security" if matches!(flag.value.as_deref(), Some("default" | "sandbox")) => {}
                "network" | "security" | "device" => {
                    let value = flag.value.as_deref().unwrap_or_default();
                    return Err(Error::unsupported(
                        self.line,
                        format!(
                            "RUN --{}={value}: steps run in a sandbox, whose rules hold for all of them",
                            flag.name
                        ),
                    ));
                }
                _ => return Err(unknown_flag(flag, "RUN", self.line)),
            }
        }
        if rest.is_empty() {
            return self.wrong("needs a command");
        }
        let command = self.command(rest)?;
        if command == Command::Argv(Vec::new()) {
            return self.wrong("needs a command");
        }
        Ok(Op::Run(RunOp { command, heredocs: self.heredocs.to_vec(), mounts }))
    }

    fn copy(&self, flags: &[Flag], rest: &str) -> Result<Op, Error> {
        let add = self.word == "ADD";
        let mut copy = CopyOp {
            add,
            from: None,
            sources: Vec::new(),
            heredocs: Vec::new(),
            dest: String::new(),
            chown: None,
            chmod: None,
            excludes: Vec::new(),
            parents: false,
            unpack: add,
        };
        for flag in flags {
            match flag.name.as_str() {
                "from" if !add => copy.from = Some(self.origin_flag(flag)?),
                "chown" => copy.chown = Some(flag.required(self.line)?),
                "chmod" => copy.chmod = Some(flag.required(self.line)?),
                "exclude" => copy.excludes.push(flag.required(self.line)?),
                "parents" if !add => copy.parents = flag.truth(self.line)?,
                // How layers are put together does not show in the result.
                "link" => drop(flag.truth(self.line)?),
                "unpack" if add => copy.unpack = flag.truth(self.line)?,
                "checksum" | "keep-git-dir" if add => {
                    return Err(Error::unsupported(
                        self.line,
                        format!("ADD --{}: only local files can be added; use RUN curl", flag.name),
                    ));
                }
                _ => return Err(unknown_flag(flag, &self.word, self.line)),
            }
        }
        if copy.parents && copy.from.is_some() {
            return Err(Error::unsupported(self.line, "COPY --parents with --from: copy the directories by name"));
        }
        let mut words = match exec_form(rest, self.line)? {
            Some(words) => words,
            None => split_words(rest, self.escape),
        };
        let Some(dest) = words.pop().filter(|_| !words.is_empty()) else {
            return self.wrong("needs at least one source and a destination");
        };
        let mut heredocs = self.heredocs.iter();
        if !self.heredocs.is_empty() && lines::marker(&dest).is_some() {
            return self.wrong("a heredoc cannot be the destination");
        }
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let spaced = matches!(word.as_str(), "<<" | "<<-");
            if !self.heredocs.is_empty() && (spaced || lines::marker(&word).is_some()) {
                if spaced {
                    words.next();
                }
                match heredocs.next() {
                    Some(heredoc) => copy.heredocs.push(heredoc.clone()),
                    None => return self.wrong(format!("no text for {word}")),
                }
            } else {
                copy.sources.push(word);
            }
        }
        if copy.from.is_some() && !copy.heredocs.is_empty() {
            return self.wrong("a heredoc is not --from anywhere");
        }
        if let Some(source) = copy.sources.iter().find(|source| add && is_remote(source)) {
            return Err(remote(source, self.line));
        }
        copy.dest = dest;
        Ok(Op::Copy(copy))
    }

    fn origin_flag(&self, flag: &Flag) -> Result<String, Error> {
        let from = flag.required(self.line)?;
        if from.contains('$') {
            return self.wrong(format!(
                "variables are not expanded in --from={from}: give the image a stage of its own (FROM {from} AS name)"
            ));
        }
        Ok(from)
    }

    fn healthcheck(&self, flags: &[Flag], rest: &str) -> Result<Op, Error> {
        let (word, command) = keyword(rest);
        if word.eq_ignore_ascii_case("none") {
            if !command.is_empty() || !flags.is_empty() {
                return self.wrong("NONE takes no arguments");
            }
            return Ok(Op::Healthcheck(None));
        }
        if !word.eq_ignore_ascii_case("cmd") {
            return self.wrong(format!("must be NONE or CMD, not {word:?}"));
        }
        if command.is_empty() {
            return self.wrong("CMD needs a command");
        }
        let mut check = HealthcheckOp {
            command: self.command(command)?,
            interval: None,
            timeout: None,
            start_period: None,
            start_interval: None,
            retries: None,
        };
        for flag in flags {
            let value = flag.required(self.line)?;
            let time = || match duration(&value) {
                Some(time) => Ok(Some(time)),
                None => self.wrong(format!("--{}={value} is not a time such as 30s", flag.name)),
            };
            match flag.name.as_str() {
                "interval" => check.interval = time()?,
                "timeout" => check.timeout = time()?,
                "start-period" => check.start_period = time()?,
                "start-interval" => check.start_interval = time()?,
                "retries" => match value.parse() {
                    Ok(retries) => check.retries = Some(retries),
                    Err(_) => return self.wrong(format!("--retries={value} is not a number")),
                },
                _ => return Err(unknown_flag(flag, &self.word, self.line)),
            }
        }
        Ok(Op::Healthcheck(Some(check)))
    }

    fn onbuild(&self, arguments: &str) -> Result<Op, Error> {
        let inner = Logical { line: self.line, text: arguments.to_owned(), heredocs: self.heredocs.to_vec() };
        triggered(&inner, self.escape)?;
        if self.escape != '\\' {
            return Err(Error::unsupported(self.line, "ONBUILD in a file with another escape character"));
        }
        let mut text = arguments.to_owned();
        for heredoc in self.heredocs {
            text.push('\n');
            text.push_str(&heredoc.content);
            text.push_str(&heredoc.name);
        }
        Ok(Op::Onbuild(text))
    }
}

/// Whether ADD would fetch it from elsewhere.
pub(crate) fn is_remote(source: &str) -> bool {
    let lower = source.trim_start_matches(['"', '\'']).to_ascii_lowercase();
    lower.starts_with("git@")
        || ["http://", "https://", "ftp://", "git://", "ssh://"].iter().any(|scheme| lower.starts_with(scheme))
}

pub(crate) fn remote(source: &str, line: u32) -> Error {
    Error::unsupported(line, format!("ADD {source}: only local files can be added; use RUN curl or RUN git clone"))
}

/// A time as Go writes it: `1h30m`, `1.5s`, `300ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0f64;
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += number
            * match &rest[..letters] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[letters..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::duration;

    #[test]
    fn times_as_go_writes_them() {
        assert_eq!(duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("300ms"), Some(Duration::from_millis(300)));
        assert_eq!(duration("0"), Some(Duration::ZERO));
        for text in ["", "5", "s", "1x", "-1s", "1s2", "99999999999999999999h"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}

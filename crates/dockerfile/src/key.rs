//! Cache keys: two steps have the same key exactly when they must have the same result.
//!
//! A key is a hash over the key before it and everything that the step depends on, each piece with its length before
//! it, so that no two different steps are written the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::action::{Action, MountKind, Origin};
use crate::config::ImageConfig;

/// Changed when what goes into a key changes, so that old layers are not found.
const VERSION: &str = "wakeful dockerfile 1";

macro_rules! hash_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name([u8; blake3::OUT_LEN]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                blake3::Hash::from_hex(text)
                    .map(|hash| Self(*hash.as_bytes()))
                    .map_err(|_| format!("{text:?} is not 64 hexadecimal digits"))
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    };
}

hash_type! {
    /// What a step's result is found by.
    Key
}

hash_type! {
    /// What a step takes in, by its content.
    Digest
}

impl Digest {
    /// Of some bytes, such as an image's own digest.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    pub(crate) fn finish(hasher: &Hasher) -> Self {
        Self(*hasher.0.finalize().as_bytes())
    }
}

impl Key {
    /// The key of a base image: its digest (or `scratch`) and its configuration.
    #[must_use]
    pub fn root(base: &str, config: &ImageConfig) -> Self {
        let mut hasher = Hasher::new("root");
        hasher.text(base);
        hasher.config(config);
        hasher.key()
    }

    /// The key after a step. What only changes the configuration changes no files: the key stays, and whatever a later
    /// command sees of it is in that command's own key.
    #[must_use]
    pub fn next(&self, action: &Action, inputs: &[Digest]) -> Self {
        let mut hasher = Hasher::new("step");
        hasher.bytes(&self.0);
        match action {
            Action::Config => return *self,
            Action::Workdir(step) => {
                hasher.text("workdir");
                hasher.text(&step.path);
                hasher.text(&step.user);
            }
            Action::Run(step) => {
                hasher.text("run");
                hasher.texts(&step.argv);
                let mut env: Vec<_> = step.env.iter().collect();
                env.sort();
                hasher.pairs(env.into_iter().map(|(name, value)| (name, value)));
                hasher.text(&step.user);
                hasher.text(&step.workdir);
                hasher.number(step.mounts.len() as u64);
                for mount in &step.mounts {
                    hasher.text(&mount.target);
                    hasher.mount(&mount.kind);
                }
            }
            Action::Copy(step) => {
                hasher.text("copy");
                hasher.origin(&step.from);
                hasher.texts(&step.sources);
                hasher.number(step.inline.len() as u64);
                for file in &step.inline {
                    hasher.text(&file.name);
                    hasher.bytes(&file.content);
                }
                hasher.text(&step.dest);
                hasher.option(step.chown.as_deref());
                hasher.number(step.chmod.map_or(u64::MAX, u64::from));
                hasher.texts(&step.excludes);
                hasher.number(u64::from(step.parents) | u64::from(step.unpack_archives) << 1);
            }
        }
        hasher.number(inputs.len() as u64);
        for input in inputs {
            hasher.bytes(&input.0);
        }
        hasher.key()
    }

    /// The key of what is finished: files and configuration.
    #[must_use]
    pub fn with_config(&self, config: &ImageConfig) -> Self {
        let mut hasher = Hasher::new("image");
        hasher.bytes(&self.0);
        hasher.config(config);
        hasher.key()
    }

    /// This result as what another stage's step takes in.
    #[must_use]
    pub fn as_input(&self) -> Digest {
        Digest(self.0)
    }
}

/// The key after a step with one input at most. See [`Key::next`].
#[must_use]
pub fn key(parent: &Key, action: &Action, inputs: Option<Digest>) -> Key {
    parent.next(action, inputs.as_slice())
}

/// A hash over pieces whose borders count.
pub(crate) struct Hasher(blake3::Hasher);

impl Hasher {
    pub(crate) fn new(what: &str) -> Self {
        let mut hasher = Self(blake3::Hasher::new());
        hasher.text(VERSION);
        hasher.text(what);
        hasher
    }

    fn key(&self) -> Key {
        Key(*self.0.finalize().as_bytes())
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    /// Bytes whose number was told before.
    pub(crate) fn piece(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn option(&mut self, text: Option<&str>) {
        self.number(u64::from(text.is_some()));
        self.text(text.unwrap_or_default());
    }

    fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a String, IntoIter: ExactSizeIterator>) {
        let texts = texts.into_iter();
        self.number(texts.len() as u64);
        for text in texts {
            self.text(text);
        }
    }

    fn pairs<'a>(&mut self, pairs: impl ExactSizeIterator<Item = (&'a String, &'a String)>) {
        self.number(pairs.len() as u64);
        for (name, value) in pairs {
            self.text(name);
            self.text(value);
        }
    }

    fn origin(&mut self, origin: &Origin) {
        // A stage's number says nothing about its content: its key comes as an input.
        match origin {
            Origin::Context => self.text("context"),
            Origin::Stage(_) => self.text("stage"),
            Origin::Image(_) => self.text("image"),
        }
    }

    fn mount(&mut self, kind: &MountKind) {
        match kind {
            MountKind::Cache { id, mode, uid, gid } => {
                self.text("cache");
                self.text(id);
                self.number(u64::from(*mode));
                self.number(u64::from(*uid));
                self.number(u64::from(*gid));
            }
            MountKind::Tmpfs { size } => {
                self.text("tmpfs");
                self.number(size.unwrap_or(u64::MAX));
            }
            MountKind::Bind { from, source } => {
                self.text("bind");
                self.origin(from);
                self.text(source);
            }
            MountKind::File { content, mode } => {
                self.text("file");
                self.bytes(content);
                self.number(u64::from(*mode));
            }
        }
    }

    fn config(&mut self, config: &ImageConfig) {
        // Every field by name: a new one must be thought of here.
        let ImageConfig {
            env,
            user,
            workdir,
            entrypoint,
            cmd,
            labels,
            exposed,
            volumes,
            shell,
            healthcheck,
            stop_signal,
            onbuild,
            author,
        } = config;
        self.pairs(env.iter().map(|(name, value)| (name, value)));
        self.text(user);
        self.text(workdir);
        for list in [entrypoint, cmd, shell] {
            self.number(u64::from(list.is_some()));
            self.texts(list.as_deref().unwrap_or_default());
        }
        self.pairs(labels.iter());
        self.texts(exposed);
        self.texts(volumes);
        self.number(u64::from(healthcheck.is_some()));
        if let Some(check) = healthcheck {
            self.texts(&check.test);
            for time in [check.interval, check.timeout, check.start_period, check.start_interval] {
                self.option(time.map(|time| time.as_nanos().to_string()).as_deref());
            }
            self.option(check.retries.map(|number| number.to_string()).as_deref());
        }
        self.option(stop_signal.as_deref());
        self.texts(onbuild);
        self.option(author.as_deref());
    }
}

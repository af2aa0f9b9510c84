//! How getting an image fails. Each says in one sentence what a user can act upon; nothing here quotes a URL (the ones of
//! object storage carry signatures) nor a credential.

use std::io;
use std::path::PathBuf;

use wakeful_model::Kind;

use crate::Digest;

/// Why an image could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was given is no image reference.
    #[error("{text:?} is no image reference: {detail}")]
    Reference {
        /// What was given.
        text: String,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// A bare name, and nobody said where such names live.
    #[error("{name:?} names no registry, and no default registry is configured")]
    NoRegistry {
        /// What was given.
        name: String,
    },
    /// The settings cannot be used.
    #[error("the settings for registries cannot be used: {detail}")]
    Settings {
        /// Which, and why.
        detail: String,
    },
    /// Nobody answers, or not to the end.
    #[error("the registry {registry} cannot be reached: {detail}")]
    Unreachable {
        /// Its host.
        registry: String,
        /// What happened.
        detail: String,
    },
    /// Credentials are needed, or those given were refused.
    #[error("the registry {registry} gives no access to {repository}: {detail}")]
    Unauthorized {
        /// Its host.
        registry: String,
        /// What was asked for.
        repository: String,
        /// Whether credentials were sent.
        detail: &'static str,
    },
    /// The registry knows who asks and says no.
    #[error("the registry {registry} denies access to {repository}: {detail}")]
    Denied {
        /// Its host.
        registry: String,
        /// What was asked for.
        repository: String,
        /// Its words.
        detail: String,
    },
    /// There is no such repository.
    #[error("the registry {registry} has no repository {repository}")]
    NoRepository {
        /// Its host.
        registry: String,
        /// What was asked for.
        repository: String,
    },
    /// The repository has no such tag or digest.
    #[error("the registry {registry} has no {version} of {repository}")]
    NoVersion {
        /// Its host.
        registry: String,
        /// Where it was looked for.
        repository: String,
        /// The tag or digest.
        version: String,
    },
    /// A part that the image names is not there.
    #[error("{what} of {image} is missing")]
    Missing {
        /// Which image.
        image: String,
        /// Which part.
        what: String,
    },
    /// The registry is overloaded or broken.
    #[error("the registry {registry} answered {status} when asked for {what}: {detail}")]
    Refused {
        /// Its host.
        registry: String,
        /// What was asked for.
        what: String,
        /// The status of its answer.
        status: u16,
        /// Its words.
        detail: String,
    },
    /// A redirect that must not be followed.
    #[error("the registry {registry} sends elsewhere for {what}, which is not followed: {detail}")]
    Redirect {
        /// Its host.
        registry: String,
        /// What was asked for.
        what: String,
        /// Why not.
        detail: String,
    },
    /// The image is for other machines.
    #[error("{image} is not made for {wanted}, only for {}", found.join(", "))]
    WrongPlatform {
        /// Which image.
        image: String,
        /// What this host needs.
        wanted: String,
        /// What there is.
        found: Vec<String>,
    },
    /// Content is not what its name says.
    #[error("{what} of {image} is damaged: its digest is {got}, not {expected}")]
    WrongDigest {
        /// Which image.
        image: String,
        /// Which part.
        what: String,
        /// What it should be.
        expected: Digest,
        /// What it is.
        got: Digest,
    },
    /// Content is longer or shorter than was said.
    #[error("{what} of {image} is damaged: it has {got} bytes, not {expected}")]
    WrongSize {
        /// Which image.
        image: String,
        /// Which part.
        what: String,
        /// What was said.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// A limit is exceeded.
    #[error("{what} of {image} is too large: more than {limit} {unit} are not allowed")]
    TooLarge {
        /// Which image.
        image: String,
        /// Which part.
        what: String,
        /// The limit.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// Not an image, or not of a kind that is known here.
    #[error("{image} has the media type {media_type:?}, which is not supported")]
    MediaType {
        /// Which image.
        image: String,
        /// What it says it is.
        media_type: String,
    },
    /// The oldest format.
    #[error("{image} is in the outdated schema 1 format: push it again with a current tool")]
    Schema1 {
        /// Which image.
        image: String,
    },
    /// Layers that are to be fetched from somewhere else.
    #[error("{image} has layers that are kept outside its registry, which are not fetched")]
    Foreign {
        /// Which image.
        image: String,
    },
    /// A manifest or configuration that cannot be read.
    #[error("{image} cannot be read: {detail}")]
    Malformed {
        /// Which image.
        image: String,
        /// What is wrong.
        detail: String,
    },
    /// An archive that is none, or is damaged.
    #[error("{} is no usable image archive: {detail}", path.display())]
    Archive {
        /// Which archive.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// Several images, and none was chosen or the chosen one is not there.
    #[error("{} {problem}; there are {}", path.display(), tags.join(", "))]
    Choose {
        /// Which archive.
        path: PathBuf,
        /// What is wrong with the choice.
        problem: String,
        /// What there is.
        tags: Vec<String>,
    },
    /// A layer cannot be decompressed.
    #[error("layer {number} of {count} ({digest}) of {image} is damaged: {detail}")]
    Damaged {
        /// Which image.
        image: String,
        /// Which layer, from one.
        number: usize,
        /// Of how many.
        count: usize,
        /// Its short digest.
        digest: String,
        /// What is wrong.
        detail: String,
    },
    /// A layer cannot be unpacked.
    #[error("layer {number} of {count} ({digest}) of {image} cannot be unpacked: {detail}")]
    Layer {
        /// Which image.
        image: String,
        /// Which layer, from one.
        number: usize,
        /// Of how many.
        count: usize,
        /// Its short digest.
        digest: String,
        /// Whose fault it is.
        fault: wakeful_tree::Fault,
        /// What is wrong.
        detail: String,
    },
    /// Somebody else fetches the same and makes no progress.
    #[error("another process fetches {digest} and makes no progress")]
    Busy {
        /// What both want.
        digest: Digest,
    },
    /// Whoever asked does not want it any more.
    #[error("the work on {image} was cancelled")]
    Cancelled {
        /// Which image.
        image: String,
    },
    /// A file could not be read or written.
    #[error("could not {doing} {}: {source}", path.display())]
    Io {
        /// What was under way.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Reference { .. }
            | Self::NoRegistry { .. }
            | Self::Settings { .. }
            | Self::Redirect { .. }
            | Self::WrongPlatform { .. }
            | Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::MediaType { .. }
            | Self::Schema1 { .. }
            | Self::Foreign { .. }
            | Self::Malformed { .. }
            | Self::Archive { .. }
            | Self::Choose { .. }
            | Self::Damaged { .. } => Kind::Invalid,
            Self::Unauthorized { .. } => Kind::Unauthenticated,
            Self::Denied { .. } => Kind::Denied,
            Self::NoRepository { .. } | Self::NoVersion { .. } | Self::Missing { .. } => Kind::NotFound,
            Self::TooLarge { .. } => Kind::Exhausted,
            Self::Unreachable { .. } | Self::Refused { .. } | Self::Busy { .. } | Self::Cancelled { .. } => {
                Kind::Unavailable
            }
            Self::Layer { fault, .. } => match fault {
                wakeful_tree::Fault::Archive => Kind::Invalid,
                wakeful_tree::Fault::Limit | wakeful_tree::Fault::Space => Kind::Exhausted,
                wakeful_tree::Fault::Missing => Kind::NotFound,
                wakeful_tree::Fault::Stream | wakeful_tree::Fault::System => Kind::Internal,
            },
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => Kind::Exhausted,
            Self::Io { .. } => Kind::Internal,
        }
    }

    /// For `map_err`: an I/O error with what was under way.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.into(), source }
    }

    /// Whether the same request may have another outcome a moment later.
    pub(crate) fn transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}

/// What is wrong with a document, before it is known whose it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A media type that is no image's.
    #[error("unsupported media type {0:?}")]
    MediaType(String),
    /// The oldest format of Docker.
    #[error("schema 1")]
    Schema1,
    /// A layer that is fetched from elsewhere.
    #[error("foreign layer")]
    Foreign,
    /// Anything that does not fit.
    #[error("{0}")]
    Malformed(String),
}

impl Fault {
    pub(crate) fn of(self, image: &str) -> Error {
        let image = image.to_owned();
        match self {
            Self::MediaType(media_type) => Error::MediaType { image, media_type },
            Self::Schema1 => Error::Schema1 { image },
            Self::Foreign => Error::Foreign { image },
            Self::Malformed(detail) => Error::Malformed { image, detail },
        }
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Foreign text for a message: short, and without anything that would move a terminal's cursor.
pub(crate) fn tame(text: &str) -> String {
    let mut tamed: String = text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if tamed.len() < text.len() {
        tamed.push('…');
    }
    tamed
}

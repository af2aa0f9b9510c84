//! `process.Process`, E2B's process service, in proto3's JSON form, with our optional fields marked *ours*.
//!
//! Reading is lenient as proto3 JSON asks: numbers may be strings, names may be snake_case, zero values may be absent,
//! base64 comes in any alphabet. Writing is canonical.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest piece of output in one event.
pub const MAX_CHUNK: usize = 32 << 10;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// Bytes that travel as base64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let engine = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
        engine.decode(text.as_bytes()).map(Self).map_err(de::Error::custom)
    }
}

/// A number that may also come as a string, as proto3 JSON allows (and for 64 bits prescribes).
///
/// # Errors
/// If it is neither, or does not fit.
pub fn number<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }
    let number = match Either::deserialize(deserializer)? {
        Either::Number(number) => number,
        Either::Text(text) => text.parse().map_err(de::Error::custom)?,
    };
    T::try_from(number).map_err(|_| de::Error::custom(format_args!("{number} is out of range")))
}

/// The same for a field that may be absent or null.
///
/// # Errors
/// As [`number`].
pub fn optional_number<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct Wrap<T>(T);
    impl<'de, T: TryFrom<i64>> Deserialize<'de> for Wrap<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            number(deserializer).map(Self)
        }
    }
    Ok(Option::<Wrap<T>>::deserialize(deserializer)?.map(|wrap| wrap.0))
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessConfig {
    /// The program: a path, or a name to look up in `PATH`.
    #[serde(default)]
    pub cmd: String,
    /// Its arguments, without the program itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment over the sandbox's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// Working directory; absent or empty: the default one, else the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pty {
    /// Its size.
    #[serde(default)]
    pub size: PtySize,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Width.
    #[serde(default, deserialize_with = "number")]
    pub cols: u32,
    /// Height.
    #[serde(default, deserialize_with = "number")]
    pub rows: u32,
}

/// Request of `Start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartRequest {
    /// What to run.
    pub process: ProcessConfig,
    /// In a terminal of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name to select the process by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether there is an input to write to; absent means yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
    /// *Ours.* Bytes of each stream to send to this caller; the rest is read and dropped.
    #[serde(
        default,
        alias = "output_limit",
        deserialize_with = "optional_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub output_limit: Option<u64>,
    /// *Ours.* User to run as: a name, a number, or either with `:group`. Wins over the `Authorization` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// *Ours.* The sandbox stays awake until it ends.
    #[serde(default, alias = "keep_awake", skip_serializing_if = "is_zero")]
    pub keep_awake: bool,
    /// *Ours.* Run the user's login shell instead, if the image has it; `process.cmd` is what else to run.
    #[serde(default, alias = "login_shell", skip_serializing_if = "is_zero")]
    pub login_shell: bool,
}

/// A message of `Start`'s and `Connect`'s answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartResponse {
    /// What happened.
    pub event: ProcessEvent,
    /// *Ours.* Place in the process's journal; keepalives have none.
    #[serde(default, deserialize_with = "optional_number", skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
}

/// What can happen to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEvent {
    /// It runs.
    Start(StartEvent),
    /// It wrote something.
    Data(DataEvent),
    /// It ended; nothing follows.
    End(EndEvent),
    /// Nothing happened for a while.
    Keepalive(Empty),
    /// *Ours.* A part of the output is lost; only in replays.
    Gap(GapEvent),
}

/// *Ours.* What fell out of the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GapEvent {
    /// How much, counted from where the reader wanted to begin.
    #[serde(default, alias = "dropped_bytes", deserialize_with = "number")]
    pub dropped_bytes: u64,
}

/// `{}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// The first event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartEvent {
    /// Process id inside the sandbox.
    #[serde(default, deserialize_with = "number")]
    pub pid: u32,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataEvent {
    /// Standard output.
    Stdout(Base64),
    /// Standard error.
    Stderr(Base64),
    /// Terminal output.
    Pty(Base64),
}

/// The last event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndEvent {
    /// Exit code, -1 if a signal ended it.
    #[serde(default, alias = "exit_code", deserialize_with = "number")]
    pub exit_code: i32,
    /// Whether it exited by itself.
    #[serde(default)]
    pub exited: bool,
    /// `exit status 1`, `signal: killed`.
    #[serde(default)]
    pub status: String,
    /// The status once more if it is not a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// *Ours.* The signal that ended it.
    #[serde(default, deserialize_with = "optional_number", skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// *Ours.* It outlived `Connect-Timeout-Ms` and was killed for that.
    #[serde(default, alias = "timed_out", skip_serializing_if = "is_zero")]
    pub timed_out: bool,
    /// *Ours.* From start to end by the guest's monotonic clock.
    #[serde(
        default,
        alias = "duration_ms",
        deserialize_with = "optional_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub duration_ms: Option<u64>,
    /// *Ours.* Standard output went beyond `outputLimit`.
    #[serde(default, alias = "stdout_truncated", skip_serializing_if = "is_zero")]
    pub stdout_truncated: bool,
    /// *Ours.* Standard error did.
    #[serde(default, alias = "stderr_truncated", skip_serializing_if = "is_zero")]
    pub stderr_truncated: bool,
}

impl EndEvent {
    /// The same as an E2B client may see it.
    #[must_use]
    pub fn plain(&self) -> Self {
        Self {
            exit_code: self.exit_code,
            exited: self.exited,
            status: self.status.clone(),
            error: self.error.clone(),
            ..Self::default()
        }
    }
}

/// Which process is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selector {
    /// By id.
    #[serde(deserialize_with = "number")]
    Pid(u32),
    /// By the tag given at its start.
    Tag(String),
}

/// Request of `Connect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectRequest {
    /// Which one.
    pub process: Selector,
    /// *Ours.* Replay the journal from this sequence number on; absent: only what comes from now on.
    #[serde(
        default,
        alias = "from_seq",
        deserialize_with = "optional_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub from_seq: Option<u64>,
    /// *Ours.* Whether to wait for what comes after the journal; absent means yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
}

/// Request of `CloseStdin` and `Describe`, and the first message of `StreamInput`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectRequest {
    /// Which one.
    pub process: Selector,
}

/// Request of `Update`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRequest {
    /// Which one.
    pub process: Selector,
    /// The terminal's new size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// Bytes for a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessInput {
    /// To its standard input.
    Stdin(Base64),
    /// To its terminal.
    Pty(Base64),
}

/// Request of `SendInput`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInputRequest {
    /// Which one.
    pub process: Selector,
    /// What to write.
    pub input: ProcessInput,
}

/// A message of `StreamInput`'s request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamInputRequest {
    /// The first one selects the process.
    Start(SelectRequest),
    /// Then its input.
    Data(InputData),
    /// Nothing to say.
    Keepalive(Empty),
}

/// Input within `StreamInput`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputData {
    /// What to write.
    pub input: ProcessInput,
}

/// Request of `SendSignal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSignalRequest {
    /// Which one.
    pub process: Selector,
    /// E2B knows `SIGNAL_SIGKILL` and `SIGNAL_SIGTERM`; every other name or number is *ours*.
    pub signal: Signal,
}

/// A signal by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(u8);

const SIGNALS: [(&str, u8); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

impl Signal {
    /// SIGKILL.
    pub const KILL: Self = Self(9);
    /// SIGTERM.
    pub const TERM: Self = Self(15);

    /// The signal of this number, if Linux has it.
    pub fn from_number(number: i64) -> Option<Self> {
        u8::try_from(number).ok().filter(|n| (1..=64).contains(n)).map(Self)
    }

    /// The signal of this name: `TERM`, `SIGTERM` or `SIGNAL_SIGTERM`.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("SIGNAL_").unwrap_or(name);
        let name = name.strip_prefix("SIG").unwrap_or(name);
        SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| Self(*number))
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            9 => serializer.serialize_str("SIGNAL_SIGKILL"),
            15 => serializer.serialize_str("SIGNAL_SIGTERM"),
            number => serializer.serialize_u8(number),
        }
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i64),
            Name(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Self::from_number(number),
            Either::Name(name) => Self::from_name(&name),
        }
        .ok_or_else(|| de::Error::custom("unknown signal"))
    }
}

/// A process. E2B's clients see running ones only, and none of our fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// What it runs.
    #[serde(default)]
    pub config: ProcessConfig,
    /// Its id.
    #[serde(default, deserialize_with = "number")]
    pub pid: u32,
    /// Its tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// *Ours.* What else there is to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<ProcessDetails>,
}

/// *Ours.* What a native caller is told about a process. Its environment is not: it may hold secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessDetails {
    /// Who it was started as.
    #[serde(default)]
    pub user: String,
    /// Where.
    #[serde(default)]
    pub workdir: String,
    /// When, in milliseconds since 1970 by the guest's clock.
    #[serde(default, deserialize_with = "number")]
    pub started_at_ms: i64,
    /// Whether it has a terminal.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pty: bool,
    /// Whether it keeps the sandbox awake.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub keep_awake: bool,
    /// The last place in its journal.
    #[serde(default, deserialize_with = "number")]
    pub last_seq: u64,
    /// How it ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndEvent>,
}

/// Answer of `List`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    /// The running ones; for a native caller also those that ended within the hour.
    #[serde(default)]
    pub processes: Vec<ProcessInfo>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_read_as_the_sdk_writes_it() {
        let text = r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","ls"],"envs":{"A":"b"},"cwd":"/tmp"},"stdin":false,"pty":{"size":{"cols":"80","rows":24}}}"#;
        let start: StartRequest = serde_json::from_str(text).unwrap();
        assert_eq!(start.process.args, ["-l", "-c", "ls"]);
        assert_eq!(start.pty.unwrap().size, PtySize { cols: 80, rows: 24 });
        assert_eq!((start.stdin, start.output_limit), (Some(false), None));
    }

    #[test]
    fn events_have_the_wire_form_of_the_oneof() {
        let data = StartResponse { event: ProcessEvent::Data(DataEvent::Stdout(Base64(b"hi".to_vec()))), seq: None };
        assert_eq!(serde_json::to_string(&data).unwrap(), r#"{"event":{"data":{"stdout":"aGk="}}}"#);
        let end = EndEvent { exit_code: -1, signal: Some(9), timed_out: true, ..EndEvent::default() };
        let plain = serde_json::to_string(&ProcessEvent::End(end.plain())).unwrap();
        assert_eq!(plain, r#"{"end":{"exitCode":-1,"exited":false,"status":""}}"#);
        let back: ProcessEvent = serde_json::from_str(r#"{"end":{"exit_code":"3","exited":true}}"#).unwrap();
        assert!(matches!(back, ProcessEvent::End(EndEvent { exit_code: 3, exited: true, .. })));
    }

    #[test]
    fn selectors_signals_and_base64_are_lenient() {
        assert_eq!(serde_json::from_str::<Selector>(r#"{"pid":"7"}"#).unwrap(), Selector::Pid(7));
        assert_eq!(serde_json::from_str::<Signal>("\"SIGNAL_SIGKILL\"").unwrap(), Signal::KILL);
        assert_eq!(serde_json::from_str::<Signal>("2").unwrap().number(), 2);
        assert!(serde_json::from_str::<Signal>("0").is_err());
        for text in ["\"_-8\"", "\"/+8=\"", "\"/+8\""] {
            assert_eq!(serde_json::from_str::<Base64>(text).unwrap().0, [0xff, 0xef]);
        }
    }
}

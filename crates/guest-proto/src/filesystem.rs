//! `filesystem.Filesystem`, E2B's file service, in proto3's JSON form, with our optional fields marked *ours*.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::process::{Empty, number};

/// The most entries that one listing returns.
pub const MAX_ENTRIES: usize = 10_000;
/// The longest listing, as JSON.
pub const MAX_LISTING: usize = 16 << 20;
/// The longest path (Linux's own limit).
pub const MAX_PATH: usize = 4096;

/// What something is, in E2B's view: a symlink counts as what it points to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names are E2B's")]
pub enum FileType {
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

impl<'de> Deserialize<'de> for FileType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i64),
            Name(String),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Number(1) => Self::File,
            Either::Number(2) => Self::Directory,
            Either::Number(3) => Self::Symlink,
            Either::Name(name) => match name.as_str() {
                "FILE_TYPE_FILE" => Self::File,
                "FILE_TYPE_DIRECTORY" => Self::Directory,
                "FILE_TYPE_SYMLINK" => Self::Symlink,
                _ => Self::Unspecified,
            },
            Either::Number(_) => Self::Unspecified,
        })
    }
}

/// Something in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// What it is, or what it points to.
    #[serde(default, rename = "type")]
    pub kind: FileType,
    /// Its path, built on the path that was asked for.
    #[serde(default)]
    pub path: String,
    /// Bytes.
    #[serde(default, deserialize_with = "number", serialize_with = "as_text")]
    pub size: i64,
    /// Permission bits.
    #[serde(default, deserialize_with = "number")]
    pub mode: u32,
    /// `-rw-r--r--`.
    #[serde(default)]
    pub permissions: String,
    /// Name of the owner, or the number.
    #[serde(default)]
    pub owner: String,
    /// Name of the group, or the number.
    #[serde(default)]
    pub group: String,
    /// RFC 3339, UTC.
    #[serde(default, alias = "modified_time", skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<String>,
    /// Where a symlink leads in the end.
    #[serde(default, alias = "symlink_target", skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// *Ours.* The thing itself, symlinks not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeEntry>,
}

/// What the native surface tells of a file: the thing itself, symlinks not followed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NativeEntry {
    /// What it is.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Name of the owner, or the number.
    pub owner: String,
    /// Name of the group, or the number.
    pub group: String,
    /// Milliseconds since 1970.
    pub modified_ms: i64,
    /// What a symlink says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What something is by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket.
    #[default]
    #[serde(other)]
    Other,
}

fn as_text<S: Serializer>(value: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Request of `Stat`, `MakeDir` and `Remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRequest {
    /// Absolute, or relative to the user's home.
    #[serde(default)]
    pub path: String,
}

/// Answer of `Stat`, `MakeDir` and `Move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryResponse {
    /// What is there now.
    #[serde(default)]
    pub entry: EntryInfo,
}

/// Request of `Move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// From.
    #[serde(default)]
    pub source: String,
    /// To; its parents are made.
    #[serde(default)]
    pub destination: String,
}

/// Request of `ListDir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirRequest {
    /// The directory.
    #[serde(default)]
    pub path: String,
    /// How many levels; 0 means 1.
    #[serde(default, deserialize_with = "number")]
    pub depth: u32,
}

/// Answer of `ListDir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirResponse {
    /// By name, a directory before what is in it.
    #[serde(default)]
    pub entries: Vec<EntryInfo>,
}

/// Request of `WatchDir` and `CreateWatcher`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchRequest {
    /// The directory.
    #[serde(default)]
    pub path: String,
    /// Also what is below its directories, those that are made later included.
    #[serde(default)]
    pub recursive: bool,
    /// Events carry what is there now.
    #[serde(default, alias = "include_entry")]
    pub include_entry: bool,
    /// Accept file systems on which changes made elsewhere go unnoticed.
    #[serde(default, alias = "allow_network_mounts")]
    pub allow_network_mounts: bool,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are E2B's")]
pub enum EventType {
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
    #[default]
    #[serde(rename = "EVENT_TYPE_UNSPECIFIED", other)]
    Unspecified,
}

/// One change in a watched directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemEvent {
    /// Relative to the watched directory, which itself is `.`.
    #[serde(default)]
    pub name: String,
    /// What happened.
    #[serde(default, rename = "type")]
    pub kind: EventType,
    /// What is there now, if that was asked for and something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// A message of `WatchDir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchMessage {
    /// From here on nothing is missed; always the first.
    Start(Empty),
    /// A change.
    Filesystem(Box<FilesystemEvent>),
    /// Nothing, for a while.
    Keepalive(Empty),
    /// *Ours.* Some changes were lost: there were too many.
    Overflow(Empty),
}

/// Answer of `CreateWatcher`, request of `GetWatcherEvents` and `RemoveWatcher`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watcher {
    /// Its name.
    #[serde(default, alias = "watcher_id")]
    pub watcher_id: String,
}

/// Answer of `GetWatcherEvents`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatcherEvents {
    /// What happened since the last call.
    #[serde(default)]
    pub events: Vec<FilesystemEvent>,
}

/// One file that `POST /files` has written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Where.
    pub path: String,
    /// The last part of it.
    pub name: String,
    /// Always `file`.
    #[serde(rename = "type")]
    pub kind: String,
    /// *Ours.* As `Stat` would tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// Error body of `/files`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesError {
    /// The status once more.
    #[serde(default)]
    pub code: u16,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// The exact reason.
    #[serde(default, rename = "wakefulCode", skip_serializing_if = "Option::is_none")]
    pub wakeful_code: Option<crate::connect_rpc::WakefulCode>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_written_as_proto_json_and_read_leniently() {
        let entry =
            EntryInfo { name: "a".into(), kind: FileType::File, path: "/a".into(), size: 5, ..EntryInfo::default() };
        let text = serde_json::to_string(&entry).unwrap();
        assert!(text.contains(r#""type":"FILE_TYPE_FILE""#) && text.contains(r#""size":"5""#), "{text}");
        let back: EntryInfo = serde_json::from_str(r#"{"name":"a","type":2,"size":7,"symlink_target":"/b"}"#).unwrap();
        assert_eq!((back.kind, back.size, back.symlink_target.as_deref()), (FileType::Directory, 7, Some("/b")));
        let odd: NativeEntry =
            serde_json::from_str(r#"{"kind":"whiteout","size":0,"mode":0,"owner":"0","group":"0","modifiedMs":0}"#)
                .unwrap();
        assert_eq!(odd.kind, EntryKind::Other);
    }

    #[test]
    fn watch_messages_are_oneofs() {
        let event = FilesystemEvent { name: "a".into(), kind: EventType::Create, entry: None };
        let text = serde_json::to_string(&WatchMessage::Filesystem(Box::new(event))).unwrap();
        assert_eq!(text, r#"{"filesystem":{"name":"a","type":"EVENT_TYPE_CREATE"}}"#);
        assert_eq!(serde_json::to_string(&WatchMessage::Start(Empty {})).unwrap(), r#"{"start":{}}"#);
        let odd: FilesystemEvent = serde_json::from_str(r#"{"name":"a","type":"EVENT_TYPE_OPEN"}"#).unwrap();
        assert_eq!(odd.kind, EventType::Unspecified);
        let request: WatchRequest = serde_json::from_str(r#"{"path":"/a","include_entry":true}"#).unwrap();
        assert!(request.include_entry && !request.recursive);
    }
}

//! Tables and short numbers for people.

use std::borrow::Cow;

use clap::builder::styling::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};
use jiff::Timestamp;
use wakeful_client::types::{
    Command, FileEntry, FileType, Instant, IoLimits, Key, Pool, Process, Sandbox, Snapshot, Status, Template, Tenant,
    Usage,
};
use wakeful_daemon::fsck::Finding;
use wakeful_model::{Mode, TemplateSource};

/// So much of a command is shown.
const COMMAND: usize = 100;

const HEADER: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const CALM: Style = AnsiColor::Cyan.on_default();
const BUSY: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default();

/// The sandboxes, with a header always: what reads it by lines can rely on it.
pub(crate) fn sandboxes(list: &[Sandbox], now: Timestamp) -> String {
    let mut table = plain(&["ID", "STATUS", "MODE", "TEMPLATE", "SIZE", "RUNTIME", "AGE", "SLEEPS/EXPIRES"]);
    for sandbox in list {
        table.add_row([
            sandbox.id.to_string(),
            sandbox.status.to_string(),
            sandbox.mode.to_string(),
            sandbox.template.clone(),
            size(sandbox),
            format!("{}/{}", sandbox.runtime, sandbox.accel),
            age(sandbox.created_at, now),
            ends(sandbox, now),
        ]);
    }
    render(&table, Some("STATUS"))
}

/// The templates.
pub(crate) fn templates(list: &[Template], now: Timestamp) -> String {
    let mut table = plain(&["NAME", "TAGS", "STATUS", "SIZE", "SOURCE", "DISK", "BUILT"]);
    for template in list {
        table.add_row([
            template.name.clone(),
            if template.tags.is_empty() { "-".to_owned() } else { template.tags.join(",") },
            template.status.to_string(),
            template.default_size.clone(),
            source(&template.source),
            if template.disk_bytes == 0 { "-".into() } else { bytes(template.disk_bytes) },
            template.built_at.map_or_else(|| "-".to_owned(), |at| format!("{} ago", age(at, now))),
        ]);
    }
    render(&table, Some("STATUS"))
}

/// What lies in a data directory: kind by kind, all of it, and what is free beside it.
pub(crate) fn usage(usage: &Usage) -> String {
    let mut table = plain(&["KIND", "COUNT", "SIZE", "APPARENT", "RECLAIMABLE"]);
    let row = |kind: &str, count: u64, sizes: [u64; 3]| {
        [vec![kind.to_owned(), count.to_string()], sizes.map(bytes).to_vec()].concat()
    };
    let mut all = (0, [0; 3]);
    for space in &usage.kinds {
        let sizes = [space.bytes, space.apparent_bytes, space.reclaimable_bytes];
        table.add_row(row(&space.kind, space.count, sizes));
        all.0 += space.count;
        for (sum, size) in all.1.iter_mut().zip(sizes) {
            *sum += size;
        }
    }
    table.add_row(row("total", all.0, all.1));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n\n{} free of {}", render(&table, None), bytes(usage.free_bytes), bytes(usage.total_bytes))
}

/// The snapshots.
pub(crate) fn snapshots(list: &[Snapshot], now: Timestamp) -> String {
    let mut table = plain(&["ID", "NAME", "SANDBOX", "TEMPLATE", "MEMORY", "OWN", "SHARED", "AGE"]);
    for snapshot in list {
        table.add_row([
            snapshot.id.to_string(),
            // One without a name of its own has its id twice otherwise.
            if snapshot.name == snapshot.id.as_str() { "-".to_owned() } else { snapshot.name.clone() },
            snapshot.sandbox_id.to_string(),
            snapshot.template.clone(),
            if snapshot.memory { "yes".into() } else { "-".to_owned() },
            bytes(snapshot.own_bytes),
            bytes(snapshot.shared_bytes),
            age(snapshot.created_at, now),
        ]);
    }
    render(&table, None)
}

/// What is wrong with a data directory, and what helps.
pub(crate) fn findings(list: &[Finding]) -> String {
    let mut table = plain(&["STATUS", "KIND", "SUBJECT", "DETAIL"]);
    for finding in list {
        let detail = plain_text(&finding.detail).into_owned();
        table.add_row([finding.status.to_string(), finding.kind.to_string(), finding.subject.clone(), detail]);
        table.add_row([String::new(), String::new(), String::new(), format!("-> {}", finding.remedy)]);
    }
    render(&table, Some("STATUS"))
}

/// The processes of a sandbox.
pub(crate) fn processes(list: &[Process], now: Timestamp) -> String {
    let mut table = plain(&["PID", "STATUS", "TTY", "USER", "AGE", "COMMAND"]);
    for process in list {
        table.add_row([
            process.pid.to_string(),
            match (process.running, process.exit_code) {
                (true, _) => "running".to_owned(),
                (false, Some(code)) => format!("exited({code})"),
                (false, None) => "exited".to_owned(),
            },
            if process.pty { "yes".into() } else { "-".to_owned() },
            plain_text(&process.user).into_owned(),
            age(process.started_at, now),
            command(&process.command),
        ]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    render(&table, Some("STATUS"))
}

/// Files, as `ls -l` shows them.
pub(crate) fn files(list: &[FileEntry]) -> String {
    let mut table = plain(&["MODE", "OWNER", "SIZE", "MODIFIED", "NAME"]);
    for entry in list {
        let kind = match entry.kind {
            FileType::Directory => 'd',
            FileType::Symlink => 'l',
            FileType::File => '-',
            FileType::Other => '?',
        };
        let name = plain_text(&entry.name);
        table.add_row([
            format!("{kind}{}", plain_text(&entry.mode)),
            plain_text(&entry.owner).into_owned(),
            entry.size.to_string(),
            entry.modified.map_or_else(|| "-".to_owned(), |at| at.0.strftime("%Y-%m-%d %H:%M").to_string()),
            match (&entry.target, entry.kind) {
                (Some(target), _) => format!("{name} -> {}", plain_text(target)),
                (None, FileType::Directory) => format!("{name}/"),
                (None, _) => name.into_owned(),
            },
        ]);
    }
    if let Some(column) = table.column_mut(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    render(&table, None)
}

/// A command on one line, as one would type it.
fn command(command: &Command) -> String {
    let typed = match command {
        Command::Shell(line) => line.clone(),
        Command::Argv(argv) => return words(argv),
    };
    shortened(&typed)
}

/// A program and its arguments, as one would type them.
pub(crate) fn words(argv: &[String]) -> String {
    shortened(&argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}

fn shortened(typed: &str) -> String {
    let line = plain_text(typed);
    match line.char_indices().nth(COMMAND) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into_owned(),
    }
}

fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
    }
}

/// Text from inside a sandbox. It must not speak to our terminal, so what is no character is spelled out.
pub(crate) fn plain_text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
            .collect(),
    )
}

/// Any table.
pub(crate) fn of(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = plain(heads);
    rows.for_each(|row| {
        table.add_row(row);
    });
    render(&table, None)
}

/// The keys, without their secrets.
pub(crate) fn keys(list: &[Key], now: Timestamp) -> String {
    let mut table = plain(&["ID", "NAME", "TENANT", "SCOPES", "AGE", "USED"]);
    for key in list {
        table.add_row([
            key.id.to_string(),
            key.name.clone(),
            key.tenant.clone(),
            key.scopes.join(","),
            age(key.created_at, now),
            key.last_used_at.map_or_else(|| "never".into(), |at| format!("{} ago", age(at, now))),
        ]);
    }
    render(&table, None)
}

/// The tenants: what each has of what it may have.
pub(crate) fn tenants(list: &[Tenant]) -> String {
    let mut table = plain(&["NAME", "SANDBOXES", "MEMORY_MB", "DISK_MB"]);
    let share = |used: u64, most: Option<u64>| format!("{used}/{}", most.map_or_else(|| "-".into(), |n| n.to_string()));
    for Tenant { name, limits, usage, .. } in list {
        table.add_row([
            name.clone(),
            share(usage.sandboxes, limits.sandboxes),
            share(usage.memory_mb, limits.memory_mb),
            share(usage.disk_mb, limits.disk_mb),
        ]);
    }
    render(&table, None)
}

/// The pools.
pub(crate) fn pools(list: &[Pool]) -> String {
    let mut table = plain(&["TEMPLATE", "SIZE", "READY", "CLAIMED", "TARGET", "MEMORY"]);
    for Pool { template, size, ready, claimed, target, memory_mb } in list {
        table.add_row([
            template.clone(),
            size.clone(),
            ready.to_string(),
            claimed.to_string(),
            target.to_string(),
            format!("{memory_mb} MB"),
        ]);
    }
    render(&table, None)
}

/// Where a template comes from, in a few words.
pub(crate) fn source(source: &TemplateSource) -> String {
    match source {
        TemplateSource::Debian { suite, packages } => format!("debian {suite} +{}", packages.len()),
        TemplateSource::Image { reference, upload } => match (reference, upload) {
            (Some(reference), None) => format!("image {reference}"),
            (Some(reference), Some(_)) => format!("archive {reference}"),
            (None, _) => "archive".to_owned(),
        },
        TemplateSource::Dockerfile { dockerfile, target: None, .. } => format!("build {dockerfile}"),
        TemplateSource::Dockerfile { dockerfile, target: Some(target), .. } => format!("build {dockerfile} {target}"),
        TemplateSource::Rootfs { .. } => "root file system".to_owned(),
        TemplateSource::Sandbox { sandbox_id, snapshot_id } => {
            let of = sandbox_id.as_ref().map(ToString::to_string).or(snapshot_id.as_ref().map(ToString::to_string));
            format!("disk of {}", of.unwrap_or_default())
        }
    }
}

/// The preset, or the numbers.
pub(crate) fn size(sandbox: &Sandbox) -> String {
    sandbox.size.clone().unwrap_or_else(|| format!("{}x{}M", sandbox.cpu, sandbox.memory_mb))
}

/// What may be asked of a disk, if that is limited.
pub(crate) fn io(limits: &IoLimits) -> Option<String> {
    let rate = |steady: Option<u64>, burst: Option<u64>, unit: &str| {
        let burst = burst.map(|burst| format!(", {burst} in a burst")).unwrap_or_default();
        steady.map(|steady| format!("{steady} {unit}/s{burst}"))
    };
    let said =
        [rate(limits.ops_per_sec, limits.burst_ops, "ops"), rate(limits.bandwidth_mbps, limits.burst_mbps, "MB")];
    let said: Vec<String> = said.into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// When it sleeps or ends.
pub(crate) fn ends(sandbox: &Sandbox, now: Timestamp) -> String {
    match (sandbox.status, sandbox.mode) {
        (Status::Destroyed | Status::Failed, _) => "-".into(),
        (_, Mode::Ephemeral) => {
            sandbox.expires_at.map_or_else(|| "-".into(), |at| format!("expires {}", until(at, now)))
        }
        (Status::Running, Mode::Persistent) => match (sandbox.sleeps_at, sandbox.awake_because.first()) {
            (Some(at), _) => format!("sleeps {}", until(at, now)),
            (None, Some(why)) => format!("awake ({})", why.reason),
            (None, None) => "-".into(),
        },
        (Status::Suspended, Mode::Persistent) => {
            sandbox.suspended_at.map_or_else(|| "asleep".into(), |at| format!("asleep {}", age(at, now)))
        }
        (Status::Creating, Mode::Persistent) => "-".into(),
    }
}

fn until(at: Instant, now: Timestamp) -> String {
    let seconds = at.0.as_second() - now.as_second();
    if seconds <= 0 { "now".into() } else { format!("in {}", short(seconds)) }
}

pub(crate) fn age(since: Instant, now: Timestamp) -> String {
    short((now.as_second() - since.0.as_second()).max(0))
}

/// `7s`, `12m`, `3h`, `9d`: the largest unit is enough.
fn short(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `184 MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// The table's lines; the words of one column are coloured by what they mean. Colours are put on what is aligned already,
/// and dropped on the way out where nobody could see them.
fn render(table: &Table, coloured: Option<&str>) -> String {
    let mut lines = table.lines().map(|line| line.trim_end().to_owned());
    let Some(header) = lines.next() else { return String::new() };
    let column = coloured.and_then(|name| header.find(name));
    let mut painted = vec![format!("{HEADER}{header}{HEADER:#}")];
    painted.extend(lines.map(|line| column.and_then(|at| paint(&line, at)).unwrap_or(line)));
    painted.join("\n")
}

/// The line with its word at this place coloured.
fn paint(line: &str, at: usize) -> Option<String> {
    let (before, rest) = line.split_at_checked(at)?;
    let (word, after) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
    let style = meaning(word)?;
    Some(format!("{before}{style}{word}{style:#}{after}"))
}

/// A status by itself.
pub(crate) fn status(word: &str) -> String {
    match meaning(word) {
        Some(style) => format!("{style}{word}{style:#}"),
        None => word.to_owned(),
    }
}

/// The colour of a status.
fn meaning(word: &str) -> Option<Style> {
    Some(match word {
        "running" | "ready" | "exited(0)" | "repaired" => GOOD,
        "suspended" => CALM,
        "creating" | "pending" | "building" => BUSY,
        "failed" | "destroyed" | "found" => BAD,
        _ if word.starts_with("exited(") => BAD,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wakeful_client::types::Space;

    #[test]
    fn limits_are_said_if_there_are_any() {
        let none = IoLimits::default();
        assert_eq!(io(&none), None);
        let both = IoLimits { ops_per_sec: Some(100), burst_ops: Some(300), bandwidth_mbps: Some(20), ..none };
        assert_eq!(io(&both).as_deref(), Some("100 ops/s, 300 in a burst; 20 MB/s"));
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (172_799, "47h"), (172_800, "2d")]
        {
            assert_eq!(short(seconds), text);
        }
    }

    #[test]
    fn an_empty_table_has_its_header() {
        insta::assert_snapshot!(
            without_colours(&sandboxes(&[], Timestamp::UNIX_EPOCH)),
            @"ID  STATUS  MODE  TEMPLATE  SIZE  RUNTIME  AGE  SLEEPS/EXPIRES"
        );
    }

    fn without_colours(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn process(pid: u32, command: Command, exit_code: Option<i32>) -> Process {
        Process {
            pid,
            command,
            user: "user".into(),
            workdir: "/".into(),
            started_at: Timestamp::UNIX_EPOCH.into(),
            running: exit_code.is_none(),
            exit_code,
            pty: false,
            last_seq: 0,
            keep_awake: false,
        }
    }

    #[test]
    fn columns_are_aligned_under_their_colours() {
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|&word| word.into()).collect());
        let list = [
            process(7, argv(&["python3", "-c", "print('a b')"]), None),
            process(1214, Command::Shell("ls | wc".into()), Some(0)),
            process(1215, argv(&["printf", "\x1b[2J"]), Some(137)),
        ];
        let table = processes(&list, Timestamp::from_second(90).unwrap());
        assert!(table.contains("\x1b[32mrunning\x1b[0m") && table.contains("\x1b[31mexited(137)\x1b[0m"), "{table:?}");
        insta::assert_snapshot!(without_colours(&table));
    }

    #[test]
    fn space_is_added_up() {
        let space = |kind: &str, count, bytes, reclaimable_bytes| Space {
            kind: kind.into(),
            count,
            bytes,
            apparent_bytes: bytes * 10,
            reclaimable_bytes,
        };
        let kinds = vec![space("sandboxes", 12, 184_320_000, 0), space("build steps", 3, 5_000_000, 4_500_000)];
        let shown = usage(&Usage { kinds, free_bytes: 70_000_000_000, total_bytes: 100_000_000_000 });
        insta::assert_snapshot!(without_colours(&shown), @r"
        KIND         COUNT       SIZE  APPARENT  RECLAIMABLE
        sandboxes       12  184.32 MB   1.84 GB          0 B
        build steps      3    5.00 MB  50.00 MB      4.50 MB
        total           15  189.32 MB   1.89 GB      4.50 MB

        70.00 GB free of 100.00 GB
        ");
    }

    #[test]
    fn names_from_inside_do_not_speak_to_the_terminal() {
        let entry = |name: &str, kind, target: Option<&str>| FileEntry {
            name: name.into(),
            size: 12,
            kind,
            modified: Some(Timestamp::UNIX_EPOCH.into()),
            mode: "0644".into(),
            owner: "user".into(),
            target: target.map(Into::into),
        };
        let list = [
            entry("a\x1b]0;owned\x07", FileType::File, None),
            entry("dir", FileType::Directory, None),
            entry("link", FileType::Symlink, Some("/x\r\ny")),
            entry("größe", FileType::File, None),
        ];
        insta::assert_snapshot!(without_colours(&files(&list)));
    }
}

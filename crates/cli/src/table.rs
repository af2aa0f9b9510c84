//! Tables and short numbers for people.

use comfy_table::{Table, presets};
use jiff::Timestamp;
use wakeful_client::types::{Instant, Key, Sandbox, Status, Template, Tenant};
use wakeful_model::{Mode, TemplateSource};

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
    render(&table)
}

/// The templates.
pub(crate) fn templates(list: &[Template], now: Timestamp) -> String {
    let mut table = plain(&["NAME", "STATUS", "SOURCE", "SIZE", "DISK", "AGE"]);
    for template in list {
        table.add_row([
            template.name.clone(),
            template.status.to_string(),
            source(&template.source),
            template.default_size.clone(),
            if template.disk_bytes == 0 { "-".into() } else { bytes(template.disk_bytes) },
            age(template.created_at, now),
        ]);
    }
    render(&table)
}

/// Any table.
pub(crate) fn of(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = plain(heads);
    rows.for_each(|row| {
        table.add_row(row);
    });
    render(&table)
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
    render(&table)
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
    render(&table)
}

/// Where a template comes from, in a few words.
pub(crate) fn source(source: &TemplateSource) -> String {
    match source {
        TemplateSource::Debian { suite, packages } => format!("debian {suite} +{}", packages.len()),
    }
}

/// The preset, or the numbers.
pub(crate) fn size(sandbox: &Sandbox) -> String {
    sandbox.size.clone().unwrap_or_else(|| format!("{}x{}M", sandbox.cpu, sandbox.memory_mb))
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

fn render(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

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
            sandboxes(&[], Timestamp::UNIX_EPOCH),
            @"ID  STATUS  MODE  TEMPLATE  SIZE  RUNTIME  AGE  SLEEPS/EXPIRES"
        );
    }
}

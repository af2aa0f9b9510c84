//! The list of commands in a help, by what people want to do.
//!
//! Names and purposes come from the commands themselves; here is only where each of them stands. One that stands nowhere
//! is listed at the end, so that nothing can be forgotten.

use clap::Command;
use clap::builder::styling::Style;

type Groups = &'static [(&'static str, &'static [&'static str])];

const ALL: Groups = &[
    ("Use sandboxes", &["sandbox", "template", "snapshot", "pool"]),
    ("Run a server", &["setup", "serve", "suspend-all", "doctor", "df", "fsck", "bench"]),
    ("Say who may use it", &["key", "tenant"]),
    ("This program", &["completions"]),
];

const SANDBOX: Groups = &[
    ("From birth to end", &["create", "fork", "list", "status", "update", "keepalive", "destroy"]),
    ("Sleep", &["suspend", "wake", "events"]),
    ("Commands", &["exec", "run", "shell", "ps", "logs", "kill"]),
    ("Files", &["upload", "download", "ls", "stat", "mkdir", "mv", "rm", "watch"]),
    ("Network", &["url", "port", "ports", "port-forward"]),
];

const HEADING: Style = Style::new().bold().underline();
const NAME: Style = Style::new().bold();

/// The command line with its lists in groups.
pub(crate) fn arrange(command: Command) -> Command {
    arranged(command, ALL).mut_subcommand("sandbox", |sandbox| arranged(sandbox, SANDBOX))
}

fn arranged(command: Command, groups: Groups) -> Command {
    let list = list(&command, groups);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{HEADING}Options:{HEADING:#}\n{{options}}{{after-help}}"
    ))
}

fn list(command: &Command, groups: Groups) -> String {
    let shown: Vec<&Command> = command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let width = shown.iter().map(|command| command.get_name().len()).max().unwrap_or(0).max("help".len());
    let line = |name: &str, about: &str| format!("  {NAME}{name}{NAME:#}{:1$}  {about}\n", "", width - name.len());
    let of = |command: &Command| {
        let mut about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let aliases: Vec<&str> = command.get_visible_aliases().collect();
        if !aliases.is_empty() {
            about.push_str(&format!(" (also: {})", aliases.join(", ")));
        }
        line(command.get_name(), &about)
    };
    let mut text = String::new();
    let mut group = |title: &str, lines: String| {
        if !lines.is_empty() {
            text.push_str(&format!("{HEADING}{title}:{HEADING:#}\n{lines}\n"));
        }
    };
    for (title, names) in groups {
        let found = names.iter().filter_map(|name| shown.iter().find(|command| command.get_name() == *name));
        group(title, found.map(|command| of(command)).collect());
    }
    let placed = |name: &str| groups.iter().any(|(_, names)| names.contains(&name));
    let rest: String = shown.iter().filter(|command| !placed(command.get_name())).map(|command| of(command)).collect();
    group("More", rest + &line("help", "Print this, or the help of a command"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_forgotten() {
        let command = Command::new("x")
            .subcommand(Command::new("sandbox").about("Use them"))
            .subcommand(Command::new("unheard-of").about("Do something new").visible_alias("new"))
            .subcommand(Command::new("secret").hide(true));
        let text = anstream::adapter::strip_str(&list(&command, ALL)).to_string();
        insta::assert_snapshot!(text);
    }
}

//! From lines of text to whole instructions: directives, comments, continuations, heredocs.

use crate::error::Error;
use crate::expand;
use crate::instruction::Heredoc;
use crate::{MAX_INSTRUCTIONS, MAX_TEXT};

/// One instruction's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Logical {
    /// Where it begins.
    pub(crate) line: u32,
    /// All of it, continuations joined, without what heredocs hold.
    pub(crate) text: String,
    /// The heredocs of it.
    pub(crate) heredocs: Vec<Heredoc>,
}

/// A file's instructions.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) escape: char,
    pub(crate) instructions: Vec<Logical>,
    pub(crate) warnings: Vec<String>,
}

/// Divides a text.
pub(crate) fn divide(text: &str) -> Result<Lines, Error> {
    if text.len() > MAX_TEXT {
        return Err(Error::limit(0, format!("the Dockerfile is longer than {MAX_TEXT} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines: Vec<&str> = text.lines().collect();
    let escape = directives(&lines)?;
    let mut reader = Reader { lines, at: 0, escape, warnings: Vec::new() };
    let mut instructions = Vec::new();
    while let Some(logical) = reader.instruction()? {
        if instructions.len() == MAX_INSTRUCTIONS {
            return Err(Error::limit(logical.line, format!("more than {MAX_INSTRUCTIONS} instructions")));
        }
        instructions.push(logical);
    }
    Ok(Lines { escape, instructions, warnings: reader.warnings })
}

/// Reads `# name=value` at the very top. The first line that is not one ends them.
fn directives(lines: &[&str]) -> Result<char, Error> {
    let mut escape = None;
    let mut seen = Vec::new();
    for (number, line) in (1u32..).zip(lines) {
        let Some((name, value)) = line.trim_start().strip_prefix('#').and_then(|rest| rest.split_once('=')) else {
            break;
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        if !["syntax", "escape", "check"].contains(&name.as_str()) || value.is_empty() {
            break;
        }
        if seen.contains(&name) {
            return Err(Error::syntax(number, format!("only one {name} directive can be used")));
        }
        if name == "escape" {
            escape = match value {
                "\\" => Some('\\'),
                "`" => Some('`'),
                _ => return Err(Error::syntax(number, format!("invalid escape {value:?}: it must be \\ or `"))),
            };
        }
        seen.push(name);
    }
    Ok(escape.unwrap_or('\\'))
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
    escape: char,
    warnings: Vec<String>,
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

impl Reader<'_> {
    fn instruction(&mut self) -> Result<Option<Logical>, Error> {
        while let Some(line) = self.lines.get(self.at) {
            if !is_comment(line) && !line.trim().is_empty() {
                break;
            }
            self.at += 1;
        }
        let Some(first) = self.lines.get(self.at) else { return Ok(None) };
        let number = u32::try_from(self.at + 1).unwrap_or(u32::MAX);
        self.at += 1;
        let mut text = String::new();
        let mut open = self.append(&mut text, first.trim_start());
        let mut gap = false;
        while open && let Some(line) = self.lines.get(self.at) {
            self.at += 1;
            if is_comment(line) {
                continue;
            }
            if line.trim().is_empty() {
                gap = true;
                continue;
            }
            open = self.append(&mut text, line);
        }
        if gap && self.warnings.len() < 100 {
            self.warnings.push(format!("line {number}: an empty line inside a continued instruction"));
        }
        let text = text.trim().to_owned();
        let mut heredocs = Vec::new();
        for mut heredoc in markers(&text) {
            self.fill(&mut heredoc, number)?;
            heredocs.push(heredoc);
        }
        Ok(Some(Logical { line: number, text, heredocs }))
    }

    /// Adds one line; true when it goes on below.
    fn append(&self, text: &mut String, line: &str) -> bool {
        let trimmed = line.trim_end_matches([' ', '\t']);
        if let Some(rest) = trimmed.strip_suffix(self.escape)
            && !rest.ends_with(self.escape)
        {
            text.push_str(rest);
            return true;
        }
        text.push_str(line);
        false
    }

    fn fill(&mut self, heredoc: &mut Heredoc, number: u32) -> Result<(), Error> {
        while let Some(line) = self.lines.get(self.at) {
            self.at += 1;
            let end = if heredoc.chomp { line.trim_start_matches('\t') } else { line };
            if end == heredoc.name {
                return Ok(());
            }
            heredoc.content.push_str(line);
            heredoc.content.push('\n');
        }
        Err(Error::syntax(number, format!("the heredoc <<{} does not end: no line is {0:?}", heredoc.name)))
    }
}

/// The heredocs that an instruction begins; only RUN, COPY and ADD have any, also behind ONBUILD.
fn markers(text: &str) -> Vec<Heredoc> {
    let mut rest = text;
    loop {
        let (keyword, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match keyword.to_ascii_lowercase().as_str() {
            "onbuild" => rest = arguments.trim_start(),
            "run" | "copy" | "add" => {
                rest = arguments;
                break;
            }
            _ => return Vec::new(),
        }
    }
    if !rest.contains("<<") || crate::words::json_strings(rest).is_some() {
        return Vec::new();
    }
    // A line that is no whole shell line has no heredocs that could be told from other text.
    let Ok(words) = expand::raw_words(rest) else { return Vec::new() };
    heredocs_of(&words)
}

/// The heredocs among a line's words.
pub(crate) fn heredocs_of(words: &[String]) -> Vec<Heredoc> {
    let mut found = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        if let Some(heredoc) = marker(word) {
            found.push(heredoc);
        } else if let Some(next) = words.peek()
            && matches!(word.trim_start_matches(|c: char| c.is_ascii_digit()), "<<" | "<<-")
            && plain_name(next)
        {
            // `<< EOF`; anything but a name may be a shell's shift.
            found.extend(marker(&format!("{word}{next}")));
            words.next();
        }
    }
    found
}

fn plain_name(word: &str) -> bool {
    let bare = word.trim_matches(['"', '\'']);
    bare.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && bare.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `<<EOF`, `<<-EOF`, `3<<"EOF"`: one word that begins a heredoc.
pub(crate) fn marker(word: &str) -> Option<Heredoc> {
    let rest = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<")?;
    let (chomp, rest) = match rest.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    if rest.is_empty() || rest.contains('<') {
        return None;
    }
    let names = expand::words(rest, '\\', &Unset).ok()?;
    let [name] = names.as_slice() else { return None };
    Some(Heredoc { name: name.clone(), content: String::new(), expand: name == rest, chomp })
}

/// Nothing is set, and a dollar is nothing special in a delimiter.
struct Unset;

impl expand::Variables for Unset {
    fn get(&self, _: &str) -> Option<&str> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{divide, marker};

    fn texts(text: &str) -> Vec<(u32, String)> {
        divide(text).expect(text).instructions.into_iter().map(|i| (i.line, i.text)).collect()
    }

    #[test]
    fn continuations_pass_comments_and_blank_lines() {
        let got = texts("# hi\n\nRUN a \\\n  # note\n\n  b \\  \n  c\nRUN d\\\\\nRUN e \\");
        assert_eq!(got, [(3, "RUN a   b   c".into()), (8, "RUN d\\\\".into()), (9, "RUN e".into())]);
        assert_eq!(divide("RUN a \\\n\n b").unwrap().warnings.len(), 1);
    }

    #[test]
    fn a_hash_inside_a_line_is_no_comment() {
        assert_eq!(texts("RUN echo # x\n  # y\n  RUN z"), [(1, "RUN echo # x".into()), (3, "RUN z".into())]);
    }

    #[test]
    fn directives_come_first_or_not_at_all() {
        assert_eq!(divide("# syntax=docker/dockerfile:1\n#escape = `\nRUN a `\n b\\\nRUN c").unwrap().escape, '`');
        assert_eq!(divide("# comment\n# escape=`\nRUN a").unwrap().escape, '\\');
        assert_eq!(divide("\n# escape=`\nRUN a").unwrap().escape, '\\');
        assert_eq!(divide("# unknown=x\n# escape=`\nRUN a").unwrap().escape, '\\');
        assert_eq!(divide("# escape=x\n").unwrap_err().line(), Some(1));
        assert_eq!(divide("# escape=`\n# escape=`\n").unwrap_err().line(), Some(2));
    }

    #[test]
    fn heredocs_end_at_their_own_line() {
        let lines = divide("RUN <<EOF cat <<-\"B\" > x\n# kept\nEOFX\nEOF\n\ttab\n\tB\nRUN z\n").unwrap();
        let first = &lines.instructions[0];
        assert_eq!(first.heredocs.len(), 2);
        assert_eq!(first.heredocs[0].content, "# kept\nEOFX\n");
        assert!(first.heredocs[0].expand);
        assert_eq!((first.heredocs[1].text().as_str(), first.heredocs[1].expand), ("tab\n", false));
        assert_eq!(lines.instructions[1].line, 7);
        assert_eq!(divide("FROM a\nRUN <<EOF\nx\n").unwrap_err().line(), Some(2));
        assert_eq!(divide("RUN cat << EOF\nx\nEOF\n").unwrap().instructions[0].heredocs.len(), 1);
    }

    #[test]
    fn what_looks_like_a_heredoc_and_is_none() {
        for text in [
            "RUN echo $((1 << 2))",
            "RUN cat <<< word",
            "RUN cat <<<word",
            "RUN [\"cat\", \"<<EOF\"]",
            "RUN echo \"<<EOF\"",
            "RUN echo '<<EOF'",
            "RUN a<<EOF",
            "ENV A=<<EOF",
            "RUN it's <<EOF",
        ] {
            assert!(divide(text).expect(text).instructions[0].heredocs.is_empty(), "{text}");
        }
        assert!(marker("<<").is_none() && marker("<<-").is_none() && marker("<EOF").is_none());
    }

    #[test]
    fn line_ends_of_windows_are_line_ends() {
        assert_eq!(texts("\u{feff}FROM a\r\nRUN b \\\r\n c\r\n"), [(1, "FROM a".into()), (2, "RUN b  c".into())]);
    }
}

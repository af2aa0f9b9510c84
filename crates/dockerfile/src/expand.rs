//! Variables in words: `$x`, `${x:-w}` and their relatives, with quotes and escapes as Docker reads them.
//!
//! Expansion multiplies: forty lines of `ENV A=$A$A` are a terabyte. So the product is bounded, and so are the nesting
//! and the work that patterns may cause.

use crate::MAX_EXPANDED;
use crate::glob::{Flavour, Glob};

/// How deep `${a:-${b:-…}}` may go.
const MAX_DEPTH: usize = 50;
/// Steps that all patterns of one word may take together.
const MAX_STEPS: u64 = 50_000_000;

/// Where values come from.
pub(crate) trait Variables {
    /// The value, if it is set.
    fn get(&self, name: &str) -> Option<&str>;
}

impl Variables for std::collections::BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<&str> {
        self.get(name).map(String::as_str)
    }
}

/// What is done with quotes and escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Quotes and escapes are read and taken away.
    Word,
    /// Quotes are ordinary letters: the content of a heredoc.
    Text,
    /// Quotes and escapes are read and kept, and unset variables stay: for looking at a shell's line.
    Keep,
}

/// One word: no splitting.
pub(crate) fn word(text: &str, escape: char, variables: &dyn Variables) -> Result<String, String> {
    run(text, escape, variables, Manner::Word).map(|out| out.text)
}

/// As many words as it gives, split after the expansion where nothing was quoted.
pub(crate) fn words(text: &str, escape: char, variables: &dyn Variables) -> Result<Vec<String>, String> {
    run(text, escape, variables, Manner::Word).map(Out::into_words)
}

/// The content of a heredoc: quotes stay.
pub(crate) fn text(text: &str, variables: &dyn Variables) -> Result<String, String> {
    run(text, '\\', variables, Manner::Text).map(|out| out.text)
}

/// The words of a shell's line as they are written, quotes and all.
pub(crate) fn raw_words(text: &str) -> Result<Vec<String>, String> {
    run(text, '\\', &std::collections::BTreeMap::new(), Manner::Keep).map(Out::into_words)
}

fn run(text: &str, escape: char, variables: &dyn Variables, manner: Manner) -> Result<Out, String> {
    let mut reader = Reader {
        chars: text.chars().collect(),
        at: 0,
        escape,
        variables,
        manner,
        depth: 0,
        budget: MAX_STEPS,
        produced: 0,
    };
    reader.until(None, manner == Manner::Keep)
}

/// The result as one text and as words, made together because splitting depends on what was quoted.
#[derive(Default)]
struct Out {
    text: String,
    words: Vec<String>,
    word: String,
}

impl Out {
    fn push(&mut self, c: char) {
        self.text.push(c);
        self.word.push(c);
    }

    fn quoted(&mut self, piece: &str) {
        self.text.push_str(piece);
        self.word.push_str(piece);
    }

    fn splitting(&mut self, piece: &str) {
        self.text.push_str(piece);
        for c in piece.chars() {
            if c.is_whitespace() {
                self.end_word();
            } else {
                self.word.push(c);
            }
        }
    }

    fn end_word(&mut self) {
        if !self.word.is_empty() {
            self.words.push(std::mem::take(&mut self.word));
        }
    }

    fn into_words(mut self) -> Vec<String> {
        self.end_word();
        self.words
    }
}

struct Reader<'a> {
    chars: Vec<char>,
    at: usize,
    escape: char,
    variables: &'a dyn Variables,
    manner: Manner,
    depth: usize,
    budget: u64,
    produced: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), String> {
        self.produced = self.produced.saturating_add(bytes);
        if self.produced > MAX_EXPANDED {
            return Err(format!("the expansion is longer than {MAX_EXPANDED} bytes"));
        }
        Ok(())
    }

    fn until(&mut self, stop: Option<char>, keep_escapes: bool) -> Result<Out, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("substitutions are nested more than {MAX_DEPTH} deep"));
        }
        let mut out = Out::default();
        while let Some(c) = self.peek() {
            if Some(c) == stop {
                self.at += 1;
                self.depth -= 1;
                return Ok(out);
            }
            match c {
                '\'' if self.manner != Manner::Text => {
                    let piece = self.single_quoted()?;
                    out.quoted(&piece);
                }
                '"' if self.manner != Manner::Text => {
                    let piece = self.double_quoted(keep_escapes)?;
                    out.quoted(&piece);
                }
                '$' => {
                    let piece = self.dollar()?;
                    out.splitting(&piece);
                }
                _ => {
                    self.at += 1;
                    self.spend(c.len_utf8())?;
                    if c == self.escape {
                        if keep_escapes {
                            out.push(c);
                        }
                        // An escape of nothing is dropped.
                        if let Some(next) = self.next() {
                            out.push(next);
                        }
                    } else {
                        out.splitting(c.encode_utf8(&mut [0; 4]));
                    }
                }
            }
        }
        match stop {
            Some(stop) => Err(format!("unexpected end while looking for the matching {stop}")),
            None => {
                self.depth -= 1;
                Ok(out)
            }
        }
    }

    fn single_quoted(&mut self) -> Result<String, String> {
        let from = self.at;
        self.at += 1;
        let Some(length) = self.chars[self.at..].iter().position(|c| *c == '\'') else {
            return Err("unexpected end while looking for the matching single quote".to_owned());
        };
        self.at += length + 1;
        let inside = if self.manner == Manner::Keep { from..self.at } else { from + 1..self.at - 1 };
        let piece: String = self.chars[inside].iter().collect();
        self.spend(piece.len())?;
        Ok(piece)
    }

    fn double_quoted(&mut self, keep_escapes: bool) -> Result<String, String> {
        let mut piece = String::new();
        self.at += 1;
        if self.manner == Manner::Keep {
            piece.push('"');
        }
        loop {
            match self.peek() {
                None => return Err("unexpected end while looking for the matching double quote".to_owned()),
                Some('"') => {
                    self.at += 1;
                    if self.manner == Manner::Keep {
                        piece.push('"');
                    }
                    return Ok(piece);
                }
                Some('$') => piece.push_str(&self.dollar()?),
                Some(c) => {
                    self.at += 1;
                    self.spend(c.len_utf8())?;
                    let escaped = self.peek().filter(|next| c == self.escape && ['"', '$', c].contains(next));
                    match escaped {
                        Some(next) => {
                            self.at += 1;
                            if keep_escapes {
                                piece.push(c);
                            }
                            piece.push(next);
                        }
                        None => piece.push(c),
                    }
                }
            }
        }
    }

    fn dollar(&mut self) -> Result<String, String> {
        let from = self.at;
        self.at += 1;
        if self.peek() != Some('{') {
            let name = self.name();
            if name.is_empty() {
                self.spend(1)?;
                return Ok("$".to_owned());
            }
            return self.value_or_source(&name, from);
        }
        self.at += 1;
        match self.peek() {
            None => return Err("missing '}' of a substitution".to_owned()),
            Some('{' | '}' | ':') => return Err("bad substitution".to_owned()),
            Some(_) => {}
        }
        let name = self.name();
        let Some(mut operator) = self.next() else { return Err("missing '}' of a substitution".to_owned()) };
        if operator == '}' {
            return self.value_or_source(&name, from);
        }
        if operator == '/' {
            return self.replaced(&name, from);
        }
        let empty_is_unset = operator == ':';
        if empty_is_unset {
            operator = self.next().ok_or_else(|| "missing '}' of a substitution".to_owned())?;
        }
        if !['-', '+', '?', '#', '%'].contains(&operator) {
            let colon = if empty_is_unset { ":" } else { "" };
            return Err(format!("unsupported modifier ({colon}{operator}) in a substitution"));
        }
        let operand = self.until(Some('}'), self.manner == Manner::Keep || ['#', '%'].contains(&operator))?.text;
        if self.manner == Manner::Keep {
            return Ok(self.chars[from..self.at].iter().collect());
        }
        let value = self.variables.get(&name);
        let there = value.filter(|value| !(empty_is_unset && value.is_empty()));
        let result = match operator {
            '-' => there.map_or(operand, str::to_owned),
            '+' => there.map_or_else(String::new, |_| operand),
            '?' => match there {
                Some(value) => value.to_owned(),
                None if operand.is_empty() && value.is_some() => return Err(format!("{name}: may not be empty")),
                None if operand.is_empty() => return Err(format!("{name}: must be set")),
                None => return Err(format!("{name}: {operand}")),
            },
            side => {
                let value = value.unwrap_or_default().to_owned();
                self.cut(&value, &operand, side)?
            }
        };
        self.spend(result.len())?;
        Ok(result)
    }

    /// A variable's value; in a shell's line, what is written.
    fn value_or_source(&mut self, name: &str, from: usize) -> Result<String, String> {
        if self.manner == Manner::Keep {
            return Ok(self.chars[from..self.at].iter().collect());
        }
        let value = self.variables.get(name).unwrap_or_default().to_owned();
        self.spend(value.len())?;
        Ok(value)
    }

    /// `${x#p}`, `${x##p}`, `${x%p}`, `${x%%p}`.
    fn cut(&mut self, value: &str, operand: &str, side: char) -> Result<String, String> {
        let (longest, pattern) = match operand.strip_prefix(side) {
            Some(rest) => (true, rest),
            None => (false, operand),
        };
        let mut glob = pattern_of(pattern)?;
        let mut letters: Vec<char> = value.chars().collect();
        if side == '%' {
            letters.reverse();
            glob = glob.reversed();
        }
        let found = glob.prefixes(&letters, &mut self.budget);
        self.check_budget()?;
        let Some((short, long)) = found else { return Ok(value.to_owned()) };
        let mut rest = letters.split_off(if longest { long } else { short });
        if side == '%' {
            rest.reverse();
        }
        Ok(rest.into_iter().collect())
    }

    /// `${x/p/r}` and `${x//p/r}`.
    fn replaced(&mut self, name: &str, from: usize) -> Result<String, String> {
        let all = self.peek() == Some('/');
        if all {
            self.at += 1;
        }
        let pattern = self.until(Some('/'), true)?.text;
        let replacement = self.until(Some('}'), true)?.text;
        if self.manner == Manner::Keep {
            return Ok(self.chars[from..self.at].iter().collect());
        }
        let replacement = replacement.replace("\\/", "/").replace("\\}", "}");
        let glob = pattern_of(&pattern)?;
        let value: Vec<char> = self.variables.get(name).unwrap_or_default().chars().collect();
        let mut result = String::new();
        let mut at = 0;
        let mut go_on = true;
        while at < value.len() {
            let length = if go_on { glob.prefixes(&value[at..], &mut self.budget).map(|(_, long)| long) } else { None };
            self.check_budget()?;
            let before = result.len();
            match length.filter(|length| *length > 0) {
                Some(length) => {
                    result.push_str(&replacement);
                    at += length;
                    go_on = all;
                }
                None => {
                    result.push(value[at]);
                    at += 1;
                }
            }
            self.spend(result.len() - before)?;
        }
        Ok(result)
    }

    fn check_budget(&self) -> Result<(), String> {
        if self.budget == 0 { Err("a pattern takes too long to match".to_owned()) } else { Ok(()) }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        match self.peek() {
            Some(c) if c.is_numeric() => {
                while let Some(c) = self.peek().filter(|c| c.is_numeric()) {
                    name.push(c);
                    self.at += 1;
                }
            }
            Some(c @ ('@' | '*' | '#' | '?' | '-' | '$' | '!')) => {
                name.push(c);
                self.at += 1;
            }
            _ => {
                while let Some(c) = self.peek().filter(|c| c.is_alphanumeric() || *c == '_') {
                    name.push(c);
                    self.at += 1;
                }
            }
        }
        name
    }
}

/// A pattern inside `${}`, where `/` and `}` had to be escaped without that being part of it.
fn pattern_of(text: &str) -> Result<Glob, String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\\' {
            match chars.peek() {
                Some('/' | '}') => continue,
                Some(next @ ('*' | '?' | '\\')) => {
                    plain.extend(['\\', *next]);
                    chars.next();
                    continue;
                }
                _ => return Err(format!("invalid escape in pattern {text:?}")),
            }
        }
        plain.push(c);
    }
    Glob::new(&plain, Flavour::Shell)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{raw_words, text, word, words};

    fn variables() -> BTreeMap<String, String> {
        [
            ("PWD", "/home"),
            ("SHELL", "bash"),
            ("EMPTY", ""),
            ("FILE", "a/b/c.tar.gz"),
            ("TWO", "x  y"),
            ("STAR", "a*b*c"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    #[test]
    fn words_are_expanded_as_docker_does() {
        let variables = variables();
        for (given, expected) in [
            ("plain", "plain"),
            ("o'n'e", "one"),
            ("o'n\\'e", "on\\e"),
            ("it\\'s", "it's"),
            ("new\\nline", "newnline"),
            ("\"new\\nline\"", "new\\nline"),
            ("'new\\nline'", "new\\nline"),
            ("end\\", "end"),
            ("end\\\\", "end\\"),
            ("\"", "!"),
            ("\"open", "!"),
            ("\"open\\\"", "!"),
            ("'open", "!"),
            ("\"it's\"", "it's"),
            ("'5\" disk'", "5\" disk"),
            ("$PWD", "/home"),
            ("${PWD}", "/home"),
            ("$PWDX", ""),
            ("'$PWD'", "$PWD"),
            ("\"$PWD\"", "/home"),
            ("\\$PWD", "$PWD"),
            ("\"\\$PWD\"", "$PWD"),
            ("\\\\$PWD", "\\/home"),
            ("5$", "5$"),
            ("5$ each", "5$ each"),
            ("$1x", "x"),
            ("$", "$"),
            ("in ${PWD", "!"),
            ("in ${}", "!"),
            ("in ${:}", "!"),
            ("in ${:-w}", "!"),
            ("in ${{w}", "!"),
            ("v${NO:-1}.0", "v1.0"),
            ("v${PWD:-1}.0", "v/home.0"),
            ("v${EMPTY:-1}", "v1"),
            ("v${EMPTY-1}", "v"),
            ("v${NO-1}", "v1"),
            ("v${NO:-$PWD}.0", "v/home.0"),
            ("v${NO:-${NOR:-2}}.0", "v2.0"),
            ("v${NO:-'1}2'}", "v1}2"),
            ("v${NO:-1\\}2}", "v1}2"),
            ("v${NO:+1}", "v"),
            ("v${PWD:+1}", "v1"),
            ("v${EMPTY:+1}", "v"),
            ("v${EMPTY+1}", "v1"),
            ("${NO:?needed}", "!"),
            ("${PWD:?needed}", "/home"),
            ("${EMPTY?needed}", ""),
            ("${EMPTY:?needed}", "!"),
            ("${NO:=w}", "!"),
            ("${NO^}", "!"),
            ("${FILE#*/}", "b/c.tar.gz"),
            ("${FILE##*/}", "c.tar.gz"),
            ("${FILE%.*}", "a/b/c.tar"),
            ("${FILE%%.*}", "a/b/c"),
            ("${FILE#x}", "a/b/c.tar.gz"),
            ("${FILE#?}", "/b/c.tar.gz"),
            ("${FILE/\\//-}", "a-b/c.tar.gz"),
            ("${FILE//\\//-}", "a-b-c.tar.gz"),
            ("${FILE//./}", "a/b/ctargz"),
            ("${STAR#a\\*}", "b*c"),
            ("${STAR//\\*/+}", "a+b+c"),
            ("${STAR/*/z}", "z"),
            ("${STAR/x/z}", "a*b*c"),
            ("${EMPTY/x/z}", ""),
            ("${FILE/x", "!"),
            ("ä$PWDö", "ä"),
            ("ä${PWD}ö", "ä/homeö"),
        ] {
            match word(given, '\\', &variables) {
                Ok(got) => assert_eq!(got, expected, "{given}"),
                Err(why) => assert_eq!("!", expected, "{given}: {why}"),
            }
        }
    }

    #[test]
    fn the_escape_character_can_be_another() {
        let variables = variables();
        assert_eq!(word("c:\\dir\\`$PWD", '`', &variables).as_deref(), Ok("c:\\dir\\$PWD"));
        assert_eq!(word("c:\\$PWD", '`', &variables).as_deref(), Ok("c:\\/home"));
    }

    #[test]
    fn splitting_comes_after_expansion_and_heeds_quotes() {
        let variables = variables();
        assert_eq!(words("a  $TWO \"$TWO\" b\\ c", '\\', &variables).unwrap(), ["a", "x", "y", "x  y", "b c"]);
        assert_eq!(words("", '\\', &variables).unwrap(), Vec::<String>::new());
        assert_eq!(raw_words("cat <<'A B' $X ${Y:-\"q\"} \"a b\" c\\ d").unwrap().len(), 6);
    }

    #[test]
    fn content_keeps_its_quotes() {
        assert_eq!(text("say \"$PWD\" it's \\$PWD", &variables()).as_deref(), Ok("say \"/home\" it's $PWD"));
    }

    #[test]
    fn products_depth_and_work_are_bounded() {
        let mut variables = BTreeMap::new();
        variables.insert("A".to_owned(), "a".repeat(1 << 19));
        assert!(word("$A$A$A", '\\', &variables).unwrap_err().contains("longer than"));
        assert!(word("${A//a/xxxxxxxxxx}", '\\', &variables).unwrap_err().contains("longer than"));
        let deep = "${X:-".repeat(5000) + &"}".repeat(5000);
        assert!(word(&deep, '\\', &variables).unwrap_err().contains("nested"));
        let costly = format!("${{A//{}b/x}}", "*a".repeat(50));
        assert!(word(&costly, '\\', &variables).unwrap_err().contains("too long"));
    }
}

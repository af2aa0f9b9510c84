//! The arguments of an instruction: flags, words, JSON arrays.

use crate::error::Error;

/// `--name` or `--name=value`, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

impl Flag {
    /// The value that it must have.
    pub(crate) fn required(&self, line: u32) -> Result<String, Error> {
        match &self.value {
            Some(value) if !value.is_empty() => Ok(value.clone()),
            _ => Err(Error::syntax(line, format!("flag --{} needs a value", self.name))),
        }
    }

    /// `--flag`, `--flag=true` or `--flag=false`.
    pub(crate) fn truth(&self, line: u32) -> Result<bool, Error> {
        match self.value.as_deref() {
            None | Some("" | "true") => Ok(true),
            Some("false") => Ok(false),
            Some(value) => {
                Err(Error::syntax(line, format!("flag --{} must be true or false, not {value:?}", self.name)))
            }
        }
    }
}

/// Takes the flags off the front of an instruction's arguments. A flag's value may be quoted and may have escapes.
pub(crate) fn split_flags(text: &str, escape: char) -> (Vec<Flag>, &str) {
    let mut flags = Vec::new();
    let mut rest = text.trim_start();
    while rest.starts_with("--") {
        let mut word = String::new();
        let mut quote = None;
        let mut end = rest.len();
        let mut chars = rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match quote {
                None if c.is_whitespace() => {
                    end = at;
                    break;
                }
                None if c == '"' || c == '\'' => quote = Some(c),
                Some(open) if c == open => quote = None,
                _ if c == escape && quote != Some('\'') => {
                    if let Some((_, next)) = chars.next() {
                        word.push(next);
                    }
                }
                _ => word.push(c),
            }
        }
        rest = rest[end..].trim_start();
        if word == "--" {
            break;
        }
        let word = &word[2..];
        flags.push(match word.split_once('=') {
            Some((name, value)) => Flag { name: name.to_ascii_lowercase(), value: Some(value.to_owned()) },
            None => Flag { name: word.to_ascii_lowercase(), value: None },
        });
    }
    (flags, rest)
}

/// Words divided by white space that is neither quoted nor escaped; quotes and escapes stay for the expansion.
pub(crate) fn split_words(text: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match quote {
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            None if c == '"' || c == '\'' => quote = Some(c),
            Some(open) if c == open => quote = None,
            _ => {}
        }
        word.push(c);
        if c == escape
            && quote != Some('\'')
            && let Some(next) = chars.next()
        {
            word.push(next);
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Words divided by white space, whatever is quoted.
pub(crate) fn plain_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The array, when the text is JSON; what it holds is not looked at.
fn json_array(text: &str) -> Option<Vec<serde_json::Value>> {
    let text = text.trim();
    if !text.starts_with('[') {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// The strings of a JSON array; nothing if it is none or holds anything else.
pub(crate) fn json_strings(text: &str) -> Option<Vec<String>> {
    json_array(text)?.into_iter().map(|value| value.as_str().map(str::to_owned)).collect()
}

/// The exec form, if it is one. What is not JSON at all is the other form.
///
/// # Errors
/// An array of other things than strings: it cannot be meant as a shell's line.
pub(crate) fn exec_form(text: &str, line: u32) -> Result<Option<Vec<String>>, Error> {
    if json_array(text).is_none() {
        return Ok(None);
    }
    json_strings(text)
        .map(Some)
        .ok_or_else(|| Error::syntax(line, "a JSON array here must hold strings and nothing else"))
}

#[cfg(test)]
mod tests {
    use super::{exec_form, split_flags, split_words};

    #[test]
    fn flags_end_at_the_first_word() {
        let (flags, rest) = split_flags("--from=a --chown=\"b c\"  --link x --y", '\\');
        let flags: Vec<_> = flags.iter().map(|f| (f.name.as_str(), f.value.as_deref())).collect();
        assert_eq!(flags, [("from", Some("a")), ("chown", Some("b c")), ("link", None)]);
        assert_eq!(rest, "x --y");
        assert_eq!(split_flags("-- --x", '\\'), (vec![], "--x"));
        assert_eq!(split_flags("--a\\ b x", '\\').1, "x");
        assert_eq!(split_flags("--", '\\'), (vec![], ""));
    }

    #[test]
    fn words_keep_their_quotes() {
        assert_eq!(split_words("a=\"b c\" d='e f' g\\ h  i", '\\'), ["a=\"b c\"", "d='e f'", "g\\ h", "i"]);
        assert_eq!(split_words("\"open end", '\\'), ["\"open end"]);
    }

    #[test]
    fn json_or_not() {
        assert_eq!(exec_form(" [\"a\", \"b\"] ", 1).unwrap(), Some(vec!["a".into(), "b".into()]));
        assert_eq!(exec_form("['a']", 1).unwrap(), None);
        assert_eq!(exec_form("[ -f x ] && y", 1).unwrap(), None);
        assert_eq!(exec_form("[]", 1).unwrap(), Some(vec![]));
        assert!(exec_form("[1, 2]", 7).is_err());
    }
}

//! `.dockerignore`: what of a context does not exist for a build.
//!
//! A path is hidden when the last pattern that matches it, or a directory above it, does not begin with `!`. The same
//! rules serve `COPY --exclude`.

use std::path::Path;

use crate::error::Error;
use crate::glob::{Flavour, Glob, is_pattern};

const MAX_PATTERNS: usize = 1_000;
/// The longest list, in bytes.
pub(crate) const MAX_LIST: u64 = 256 << 10;

/// A list of patterns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ignore {
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    /// Nothing where the text itself is the name.
    glob: Option<Glob>,
    reveals: bool,
}

/// Which patterns match a directory or one above it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Above(Vec<bool>);

impl Ignore {
    /// Reads a `.dockerignore`.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let mut ignore = Self::default();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, text) in (1u32..).zip(text.lines()) {
            // Only in the first column is it a comment; elsewhere it may be a name.
            if text.starts_with('#') {
                continue;
            }
            ignore.add(text).map_err(|detail| Error::Ignore { path: path.to_owned(), line, detail })?;
        }
        Ok(ignore)
    }

    /// Reads the patterns of `--exclude`.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, String> {
        let mut ignore = Self::default();
        for text in patterns {
            ignore.add(text)?;
        }
        Ok(ignore)
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        let text = text.trim();
        let (reveals, text) = match text.strip_prefix('!') {
            Some(rest) if rest.trim().is_empty() => return Err("\"!\" without a pattern".to_owned()),
            Some(rest) => (true, rest.trim()),
            None => (false, text),
        };
        let text = clean(text);
        if text.is_empty() {
            return Ok(());
        }
        if self.patterns.len() == MAX_PATTERNS {
            return Err(format!("more than {MAX_PATTERNS} patterns"));
        }
        let glob = if is_pattern(&text) { Some(Glob::new(&text, Flavour::Deep)?) } else { None };
        self.patterns.push(Pattern { text, glob, reveals });
        Ok(())
    }

    /// Whether a path is hidden, and what its children have to know. `above` is its directory's.
    pub(crate) fn look(&self, above: &Above, path: &str) -> (bool, Above) {
        let mut hidden = false;
        let mut matched = Vec::with_capacity(self.patterns.len());
        for (i, pattern) in self.patterns.iter().enumerate() {
            let matches = above.0.get(i).copied().unwrap_or_default()
                || pattern.glob.as_ref().map_or_else(|| pattern.text == path, |glob| glob.matches(path));
            if matches {
                hidden = !pattern.reveals;
            }
            matched.push(matches);
        }
        (hidden, Above(matched))
    }

    /// The same for a path from the top.
    pub(crate) fn look_from_top(&self, path: &str) -> (bool, Above) {
        let mut above = Above::default();
        let mut hidden = false;
        if self.patterns.is_empty() || path.is_empty() {
            return (hidden, above);
        }
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            (hidden, above) = self.look(&above, &path[..end]);
        }
        (hidden, above)
    }

    /// Whether anything below a hidden directory can be seen again.
    pub(crate) fn may_reveal_below(&self, directory: &str) -> bool {
        self.patterns.iter().filter(|pattern| pattern.reveals).any(|pattern| {
            for (part, name) in pattern.text.split('/').zip(directory.split('/')) {
                if part.contains("**") {
                    return true;
                }
                let same = if is_pattern(part) {
                    Glob::new(part, Flavour::Path).is_ok_and(|glob| glob.matches(name))
                } else {
                    part == name
                };
                if !same {
                    return false;
                }
            }
            true
        })
    }
}

/// Without `.`, `..`, slashes at either end and double ones.
fn clean(text: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Ignore;

    fn hidden(list: &str, path: &str) -> bool {
        Ignore::parse(list, Path::new(".dockerignore")).expect(list).look_from_top(path).0
    }

    #[test]
    fn patterns_hide_and_reveal() {
        for (list, path, expected) in [
            ("", "a", false),
            ("a", "a", true),
            ("a", "a/b/c", true),
            ("a", "b/a", false),
            ("/a", "a", true),
            ("a/", "a", true),
            ("a/", "a/b", true),
            ("./a", "a", true),
            ("a//b", "a/b", true),
            ("a/../b", "b", true),
            (".", "a", false),
            ("# a\na", "a", true),
            ("#a", "#a", false),
            (" #a", "#a", true),
            ("\\#a", "#a", true),
            ("  a  ", "a", true),
            ("*", "a", true),
            ("*", "a/b", true),
            ("*.md", "x.md", true),
            ("*.md", "d/x.md", false),
            ("*/*.md", "d/x.md", true),
            ("**/*.md", "x.md", true),
            ("**/*.md", "a/b/x.md", true),
            ("**", "a/b", true),
            ("a/**", "a/b", true),
            ("a/**", "a", false),
            ("temp?", "tempa", true),
            ("temp?", "temp", false),
            ("[a-c]x", "bx", true),
            ("*.md\n!README.md", "README.md", false),
            ("*.md\n!README.md", "OTHER.md", true),
            ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", true),
            ("*.md\nREADME-secret.md\n!README*.md", "README-secret.md", false),
            ("a\n!a/b", "a/b", false),
            ("a\n!a/b", "a/b/c", false),
            ("a\n!a/b", "a/c", true),
            ("!a\na", "a", true),
            ("*\n!src", "src/main.rs", false),
            ("*\n!src\nsrc/secret", "src/secret/x", true),
            ("*\n!**/*.go", "a/b/c.go", false),
            ("! a", "a", false),
            ("node_modules", "app/node_modules", false),
            ("**/node_modules", "app/node_modules/x", true),
            ("\u{feff}a", "a", true),
            ("a\r\nb\r\n", "a", true),
        ] {
            assert_eq!(hidden(list, path), expected, "{list:?} and {path}");
        }
    }

    #[test]
    fn wrong_patterns_have_a_line() {
        assert_eq!(Ignore::parse("a\n!\n", Path::new("x")).unwrap_err().line(), Some(2));
        assert_eq!(Ignore::parse("a\n\n[b\n", Path::new("x")).unwrap_err().line(), Some(3));
    }

    #[test]
    fn hidden_directories_are_entered_only_for_a_reason() {
        let list = |text: &str| Ignore::parse(text, Path::new("x")).unwrap();
        assert!(!list("a").may_reveal_below("a"));
        assert!(list("a\n!a/b").may_reveal_below("a"));
        assert!(!list("a\n!b/c").may_reveal_below("a"));
        assert!(list("a\n!*/c").may_reveal_below("a"));
        assert!(list("a\n!**/c").may_reveal_below("a/b"));
        assert!(!list("a\n!x/**").may_reveal_below("a"));
    }
}

//! Patterns: what COPY takes, what `.dockerignore` hides, what `${x#p}` cuts.
//!
//! The three have different rules but one engine: a pattern is a row of tokens, and all places in it where a text may
//! stand are followed at once. That costs length times length and never more, whatever the pattern is.

/// Whose rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Names in a context: `*` and `?` stop at `/`, classes, `\` escapes.
    Path,
    /// The same, and `**` is any number of directories.
    Deep,
    /// Values of variables: `*` and `?` take everything, no classes.
    Shell,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    One {
        slash: bool,
    },
    Many {
        slash: bool,
    },
    /// `**/`: nothing, or …
    Skip,
    /// … anything that ends with `/`. Always behind a `Skip`.
    Directories,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// A pattern, ready to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    tokens: Vec<Token>,
}

/// Whether a name has anything in it that a pattern would give a meaning to.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// A class that does not end, or an escape of nothing.
    pub(crate) fn new(pattern: &str, flavour: Flavour) -> Result<Self, String> {
        let bad = || format!("syntax error in pattern {pattern:?}");
        let slash = flavour == Flavour::Shell;
        let mut tokens = Vec::new();
        let mut chars = pattern.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '*' if flavour == Flavour::Deep && chars.peek() == Some(&'*') => {
                    while chars.next_if_eq(&'*').is_some() {}
                    chars.next_if_eq(&'/');
                    if chars.peek().is_none() {
                        tokens.push(Token::Many { slash: true });
                    } else {
                        tokens.extend([Token::Skip, Token::Directories]);
                    }
                }
                '*' => {
                    if tokens.last() != Some(&(Token::Many { slash })) {
                        tokens.push(Token::Many { slash });
                    }
                }
                '?' => tokens.push(Token::One { slash }),
                '[' if flavour != Flavour::Shell => tokens.push(class(&mut chars).ok_or_else(bad)?),
                '\\' => match chars.next() {
                    Some(next) => tokens.push(Token::Char(next)),
                    None if flavour == Flavour::Shell => tokens.push(Token::Char('\\')),
                    None => return Err(bad()),
                },
                c => tokens.push(Token::Char(c)),
            }
        }
        Ok(Self { tokens })
    }

    /// Whether it is all of the text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let mut at = self.start();
        for c in text.chars() {
            if !self.advance(&mut at, c) {
                return false;
            }
        }
        at[self.tokens.len()]
    }

    /// The shortest and the longest beginning of `text` that it matches. Takes what it costs from `budget`; gives up and
    /// leaves 0 when that does not suffice.
    pub(crate) fn prefixes(&self, text: &[char], budget: &mut u64) -> Option<(usize, usize)> {
        let mut at = self.start();
        let mut found = at[self.tokens.len()].then_some((0, 0));
        for (i, c) in text.iter().enumerate() {
            let Some(left) = budget.checked_sub(self.tokens.len() as u64 + 1) else {
                *budget = 0;
                return None;
            };
            *budget = left;
            if !self.advance(&mut at, *c) {
                break;
            }
            if at[self.tokens.len()] {
                found = Some((found.map_or(i + 1, |(short, _)| short), i + 1));
            }
        }
        found
    }

    /// The same pattern for a text that is read from its end.
    pub(crate) fn reversed(&self) -> Self {
        // Only patterns of values are reversed, and those have no `Skip`, whose place before its partner matters.
        Self { tokens: self.tokens.iter().rev().cloned().collect() }
    }

    fn start(&self) -> Vec<bool> {
        let mut at = vec![false; self.tokens.len() + 1];
        at[0] = true;
        self.settle(&mut at);
        at
    }

    /// Goes on where a token may stand for nothing.
    fn settle(&self, at: &mut [bool]) {
        for i in 0..self.tokens.len() {
            if !at[i] {
                continue;
            }
            match self.tokens[i] {
                Token::Many { .. } => at[i + 1] = true,
                Token::Skip => {
                    at[i + 1] = true;
                    at[i + 2] = true;
                }
                Token::Char(_) | Token::One { .. } | Token::Directories | Token::Class { .. } => {}
            }
        }
    }

    /// Takes one character; false when no place is left.
    fn advance(&self, at: &mut Vec<bool>, c: char) -> bool {
        let mut next = vec![false; at.len()];
        for (i, token) in self.tokens.iter().enumerate() {
            if !at[i] {
                continue;
            }
            match token {
                Token::Char(own) => next[i + 1] |= *own == c,
                Token::One { slash } => next[i + 1] |= *slash || c != '/',
                Token::Many { slash } => next[i] |= *slash || c != '/',
                Token::Skip => {}
                Token::Directories => {
                    next[i] = true;
                    next[i + 1] |= c == '/';
                }
                Token::Class { negated, ranges } => {
                    let inside = ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
                    next[i + 1] |= c != '/' && inside != *negated;
                }
            }
        }
        self.settle(&mut next);
        let any = next.contains(&true);
        *at = next;
        any
    }
}

fn class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<Token> {
    let negated = chars.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        if chars.peek() == Some(&']') && !ranges.is_empty() {
            chars.next();
            return Some(Token::Class { negated, ranges });
        }
        let low = member(chars)?;
        let high = if chars.next_if_eq(&'-').is_some() { member(chars)? } else { low };
        ranges.push((low, high));
    }
}

fn member(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<char> {
    match chars.next()? {
        '-' | ']' => None,
        '\\' => chars.next(),
        c => Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::{Flavour, Glob};

    #[test]
    fn names_follow_the_rules_of_go() {
        for (pattern, name, expected) in [
            ("go.mod", "go.mod", true),
            ("go.mod", "go.sum", false),
            ("*", "Makefile", true),
            ("*", ".env", true),
            ("*file", "Makefile", true),
            ("Make*", "Makefile", true),
            ("Make*", "Make/file", false),
            ("src*/main", "src-old/main", true),
            ("src*/main", "src/old/main", false),
            ("*-*-*.whl", "pkg-1.0-py3.whl", true),
            ("*-*-*.whl", "pkg-1.0.whl", false),
            ("v?.*z", "v1.22.tgz", true),
            ("v?.*z", "v1.22.tar", false),
            ("lib[s]", "libs", true),
            ("lib[r-t]", "libs", true),
            ("lib[0-9]", "libs", false),
            ("lib[^s]", "libs", false),
            ("lib[^0-9]", "libs", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("?.txt", "ü.txt", true),
            ("[^x].txt", "ü.txt", true),
            ("d?f", "d/f", false),
            ("d[^x]f", "d/f", false),
            ("[!x]", "!", true),
            ("[\\]]", "]", true),
            ("[\\-]", "-", true),
            ("[0\\-9]", "5", false),
            ("**", "d/f", false),
            ("", "", true),
            ("", "x", false),
        ] {
            let glob = Glob::new(pattern, Flavour::Path).expect(pattern);
            assert_eq!(glob.matches(name), expected, "{pattern} and {name}");
        }
        for pattern in ["[", "x[", "[0-9", "[]0]", "[-]", "[0-]", "[^", "[^0", "x\\"] {
            assert!(Glob::new(pattern, Flavour::Path).is_err(), "{pattern}");
        }
    }

    #[test]
    fn two_stars_cross_directories() {
        for (pattern, name, expected) in [
            ("**", "a/b/c", true),
            ("**/", "a/b", true),
            ("**/b", "b", true),
            ("**/b", "a/b", true),
            ("**/b", "a/c/b", true),
            ("**/b", "ab", false),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/b/b/c", true),
            ("a**", "abc/d", true),
            ("**/*.txt", "x/y.txt", true),
            ("**/**/x", "x", true),
            ("**x", "a/x", true),
        ] {
            let glob = Glob::new(pattern, Flavour::Deep).expect(pattern);
            assert_eq!(glob.matches(name), expected, "{pattern} and {name}");
        }
    }
}

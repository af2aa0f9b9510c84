//! The templates that come with the house: files in the repository, part of the program.

use serde::Deserialize;

use crate::DebianSpec;

/// Names of the built-in templates.
pub const BUILTINS: [&str; 4] = ["base", "python", "node", "go"];

const FILES: [&str; 4] = [
    include_str!("../../../templates/base.toml"),
    include_str!("../../../templates/python.toml"),
    include_str!("../../../templates/node.toml"),
    include_str!("../../../templates/go.toml"),
];

/// A template that comes with the house: of Debian packages, or of an official image where a registry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// What it is for.
    pub description: String,
    /// The packages.
    pub debian: DebianSpec,
    /// The image.
    pub image: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    description: String,
    image: String,
    debian: Packages,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Packages {
    suite: String,
    packages: Vec<String>,
}

/// The built-in template of this name.
///
/// # Panics
/// If its file is not what a test says it is.
#[must_use]
pub fn builtin(name: &str) -> Option<Builtin> {
    let at = BUILTINS.iter().position(|known| *known == name)?;
    let File { description, image, debian } = toml::from_str(FILES[at]).expect("part of the program, and tested");
    let packages: Vec<&str> = debian.packages.iter().map(String::as_str).collect();
    Some(Builtin { description, image, debian: DebianSpec::new(&debian.suite, &packages) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtins_are_sound() {
        for name in BUILTINS {
            let builtin = builtin(name).expect("it is in the list");
            builtin.debian.check().unwrap();
            assert!(!builtin.description.is_empty() && builtin.image.contains(':'), "{name}");
        }
        assert_eq!(builtin("nosuch"), None);
    }
}

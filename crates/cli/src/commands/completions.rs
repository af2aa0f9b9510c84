//! `wakeful completions SHELL`.

use clap::Args;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output;

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful completions bash > /etc/bash_completion.d/wakeful
  wakeful completions zsh > ~/.zfunc/_wakeful
  wakeful completions fish > ~/.config/fish/completions/wakeful.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        // into memory first: the generator panics when its output is closed
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::all(), "wakeful", &mut script);
        output::bytes(&script)?;
        Ok(0)
    }
}

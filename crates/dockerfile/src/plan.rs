//! Which stages a target needs, and in what order.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::action::Origin;
use crate::args::{PLATFORM, Scope, listed};
use crate::error::Error;
use crate::expand;
use crate::instruction::{Dockerfile, Instruction, MountSpec, Op, Stage};
use crate::parse::triggers_of;
use crate::suggest;

/// How long the ONBUILD instructions of all stages may be together, and how many: each stage upon one has them again.
const MAX_TRIGGERS: (usize, usize) = (4 << 20, 20_000);
/// For how many images it is asked whether a stage was meant.
const MAX_HINTS: usize = 50;

/// What a caller may say about a build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Values for ARGs.
    pub build_args: BTreeMap<String, String>,
    /// The stage that is wanted, by name or number; the last one if nothing.
    pub target: Option<String>,
}

/// What is to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The stages that are needed, each behind those that it needs; the target last.
    pub stages: Vec<PlannedStage>,
    /// What is accepted and yet probably not meant.
    pub warnings: Vec<String>,
}

/// A stage that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// Its number in the Dockerfile.
    pub index: usize,
    /// Its name.
    pub name: Option<String>,
    /// Where its FROM stands.
    pub line: u32,
    /// What it begins from.
    pub base: Base,
    /// What is done to that.
    pub instructions: Vec<Instruction>,
    /// The stages that it needs, by number, its base among them.
    pub needs: Vec<usize>,
    /// The images that it copies from, beside its base.
    pub images: Vec<String>,
    pub(crate) scope: Arc<Scope>,
}

/// What a stage begins from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// Nothing at all.
    Scratch,
    /// Another stage, by number.
    Stage(usize),
    /// An image, by reference.
    Image(String),
}

impl Plan {
    /// The stage that is wanted.
    ///
    /// # Panics
    /// Never: a plan has at least its target.
    #[must_use]
    pub fn target(&self) -> &PlannedStage {
        self.stages.last().expect("a plan has at least its target")
    }

    /// A stage by its number in the Dockerfile.
    #[must_use]
    pub fn stage(&self, index: usize) -> Option<&PlannedStage> {
        self.stages.iter().find(|stage| stage.index == index)
    }
}

/// Decides what is to be built.
///
/// # Errors
/// A target or a stage that is not there, stages that need each other, an image's name that is empty, a platform that
/// no guest has.
pub fn plan(file: &Dockerfile, options: &Options) -> Result<Plan, Error> {
    let names: Vec<Option<String>> = file.stages.iter().map(|stage| stage.name.clone()).collect();
    let target = find_target(&names, options.target.as_deref())?;
    let target_name = names.get(target).cloned().flatten().unwrap_or_else(|| target.to_string());
    let scope = Arc::new(Scope::new(file, &options.build_args, &target_name)?);
    let mut planner = Planner {
        file,
        scope,
        marks: vec![Mark::New; file.stages.len()],
        done: Vec::new(),
        warnings: file.warnings.clone(),
        triggers: (0, 0),
        hints: 0,
    };
    planner.visit(target, file.stages.get(target).map_or(0, |stage| stage.line))?;
    let mut warnings = planner.warnings;
    for name in planner.scope.unused(file) {
        warnings.push(format!("build argument {name:?} is given, but no ARG asks for it"));
    }
    Ok(Plan { stages: planner.done, warnings })
}

fn find_target(names: &[Option<String>], wanted: Option<&str>) -> Result<usize, Error> {
    let Some(wanted) = wanted else {
        return names.len().checked_sub(1).ok_or_else(|| Error::syntax(0, "there is no FROM in the Dockerfile"));
    };
    let lower = wanted.to_ascii_lowercase();
    names
        .iter()
        .position(|name| name.as_deref() == Some(&lower))
        .or_else(|| wanted.parse().ok().filter(|number| *number < names.len()))
        .ok_or_else(|| Error::syntax(0, format!("there is no stage {wanted:?}; there are {}", listed(names))))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    UnderWay,
    Done,
}

struct Planner<'a> {
    file: &'a Dockerfile,
    scope: Arc<Scope>,
    marks: Vec<Mark>,
    done: Vec<PlannedStage>,
    warnings: Vec<String>,
    triggers: (usize, usize),
    hints: usize,
}

impl Planner<'_> {
    /// Adds a stage behind all that it needs. The depth is at most the number of stages, which is bounded.
    fn visit(&mut self, index: usize, line: u32) -> Result<(), Error> {
        match self.marks[index] {
            Mark::Done => return Ok(()),
            Mark::UnderWay => {
                let name = self.file.stages[index].name.clone().unwrap_or_else(|| index.to_string());
                return Err(Error::syntax(line, format!("stage {name} needs itself, directly or through others")));
            }
            Mark::New => self.marks[index] = Mark::UnderWay,
        }
        let stage = &self.file.stages[index];
        let base = self.base(stage, index)?;
        let mut instructions = stage.instructions.clone();
        let mut needs = Vec::new();
        if let Base::Stage(parent) = base {
            self.visit(parent, stage.line)?;
            needs.push(parent);
            let triggers: Vec<String> = self.file.stages[parent]
                .instructions
                .iter()
                .filter_map(|one| match &one.op {
                    Op::Onbuild(text) => Some(text.clone()),
                    _ => None,
                })
                .collect();
            self.triggers.0 += triggers.iter().map(String::len).sum::<usize>();
            self.triggers.1 += triggers.len();
            if self.triggers.0 > MAX_TRIGGERS.0 || self.triggers.1 > MAX_TRIGGERS.1 {
                return Err(Error::limit(stage.line, "the ONBUILD instructions of all stages are too many"));
            }
            instructions.splice(0..0, triggers_of(&triggers, stage.line)?);
        }
        let mut images = Vec::new();
        for instruction in &instructions {
            for from in froms(&instruction.op) {
                match self.scope.origin(from, instruction.line)? {
                    Origin::Stage(other) => {
                        self.visit(other, instruction.line)?;
                        needs.push(other);
                    }
                    Origin::Image(image) => {
                        let names = self.file.stages.iter().filter_map(|stage| stage.name.as_deref());
                        self.hints += 1;
                        if self.hints <= MAX_HINTS
                            && let Some(near) = suggest::nearest(&image, names)
                        {
                            self.warnings.push(format!(
                                "line {}: --from={image} is taken for an image; there is a stage {near:?}",
                                instruction.line
                            ));
                        }
                        images.push(image);
                    }
                    Origin::Context => {}
                }
            }
        }
        needs.sort_unstable();
        needs.dedup();
        images.sort_unstable();
        images.dedup();
        self.marks[index] = Mark::Done;
        self.done.push(PlannedStage {
            index,
            name: stage.name.clone(),
            line: stage.line,
            base,
            instructions,
            needs,
            images,
            scope: Arc::clone(&self.scope),
        });
        Ok(())
    }

    fn base(&self, stage: &Stage, index: usize) -> Result<Base, Error> {
        let line = stage.line;
        let expanded = |text: &str| {
            expand::word(text, self.file.escape, self.scope.global()).map_err(|why| Error::syntax(line, why))
        };
        if let Some(platform) = &stage.platform {
            let platform = expanded(platform)?;
            if !["linux", "amd64", PLATFORM, "linux/amd64/v1", "linux/x86_64"].contains(&platform.as_str()) {
                return Err(Error::unsupported(
                    line,
                    format!("FROM --platform={platform}: sandboxes are {PLATFORM}, and nothing else is built"),
                ));
            }
        }
        let image = expanded(&stage.image)?;
        if image.is_empty() {
            return Err(Error::syntax(
                line,
                format!("FROM {}: the name is empty; an ARG before FROM must give it a value", stage.image),
            ));
        }
        if image.contains(char::is_whitespace) || image.contains(char::is_control) {
            return Err(Error::syntax(line, format!("FROM {image:?}: not the name of an image")));
        }
        let lower = image.to_ascii_lowercase();
        // FROM looks back only: a later stage of that name is not meant.
        let earlier = self.file.stages[..index].iter().position(|other| other.name.as_deref() == Some(&lower));
        Ok(match earlier {
            Some(number) => Base::Stage(number),
            None if image == "scratch" => Base::Scratch,
            None => Base::Image(image),
        })
    }
}

/// The stages and images that an instruction names.
fn froms(op: &Op) -> Vec<&str> {
    match op {
        Op::Copy(copy) => copy.from.iter().map(String::as_str).collect(),
        Op::Run(run) => run
            .mounts
            .iter()
            .filter_map(|mount| match mount {
                MountSpec::Bind { from, .. } => from.as_deref(),
                MountSpec::Cache { .. } | MountSpec::Tmpfs { .. } => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

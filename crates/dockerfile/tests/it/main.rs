//! Dockerfiles as they are met, and contexts on a real file system.

mod context;
mod grammar;
mod hostile;
mod keys;
mod pack;
mod plan;
mod shapes;
mod state;

use std::path::Path;

use wakeful_dockerfile::{Action, Base, CopyStep, ImageConfig, Options, Plan, RunStep, State, parse, plan};

/// A file's plan with nothing said about it.
fn planned(text: &str) -> Plan {
    plan(&parse(text).expect("parses"), &Options::default()).expect("has a plan")
}

/// Walks all stages of a plan; the actions of the last, and its state.
fn walked(plan: &Plan) -> (Vec<Action>, State) {
    let mut states: Vec<(usize, State)> = Vec::new();
    let mut actions = Vec::new();
    for stage in &plan.stages {
        let mut state = match &stage.base {
            Base::Stage(parent) => {
                let (_, parent) = states.iter().find(|(index, _)| index == parent).expect("parents come first");
                State::begin_from(stage, parent)
            }
            Base::Scratch | Base::Image(_) => State::begin(stage, ImageConfig::default()),
        };
        actions = stage.instructions.iter().map(|one| state.step(one).expect("a good step")).collect();
        states.push((stage.index, state));
    }
    (actions, states.pop().expect("a stage").1)
}

/// The actions of a text that begins behind `FROM scratch`.
fn actions(text: &str) -> Vec<Action> {
    walked(&planned(&format!("FROM scratch\n{text}"))).0
}

fn config(text: &str) -> ImageConfig {
    walked(&planned(&format!("FROM scratch\n{text}"))).1.into_config()
}

fn run(action: &Action) -> &RunStep {
    match action {
        Action::Run(step) => step,
        other => panic!("not a command: {other:?}"),
    }
}

fn copy(action: &Action) -> &CopyStep {
    match action {
        Action::Copy(step) => step,
        other => panic!("not a copy: {other:?}"),
    }
}

/// Writes files, `name` to `content`; a name that ends with `/` is a directory.
fn lay(dir: &Path, files: &[(&str, &str)]) {
    for (name, content) in files {
        let path = dir.join(name);
        if name.ends_with('/') {
            std::fs::create_dir_all(&path).expect("makes a directory");
            continue;
        }
        std::fs::create_dir_all(path.parent().expect("has a parent")).expect("makes a directory");
        std::fs::write(&path, content).expect("writes");
    }
}

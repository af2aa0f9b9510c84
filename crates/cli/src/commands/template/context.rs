//! A Dockerfile with what it copies from.
//!
//! What `.dockerignore` hides is not sent at all. The Dockerfile and the list itself are sent in any case, since the server
//! reads them again. A Dockerfile that is not in the directory goes under a name of ours, hidden by a list of ours, so that
//! `COPY . .` does not take it along.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use wakeful_dockerfile::{Context, Error, InlineFile, MAX_TEXT, Options, TemplateFile};

use super::content::{Stop, is_gone};
use crate::failure::Failure;

/// What a Dockerfile from elsewhere is called in the context.
const FROM_ELSEWHERE: &str = "Dockerfile.wakeful";
const DOCKERFILE: &str = "Dockerfile";
const SETTINGS: &str = "wakeful-template.toml";
const LIST: &str = ".dockerignore";

/// A Dockerfile as it is named on the command line.
#[derive(Debug)]
pub(super) struct Named {
    /// The file.
    pub(super) dockerfile: PathBuf,
    /// The directory to copy from, unless somebody says otherwise.
    pub(super) dir: PathBuf,
    /// What lies beside it.
    pub(super) settings: TemplateFile,
}

impl Named {
    /// A Dockerfile, or a directory that has one.
    pub(super) fn find(path: &Path) -> Result<Self, Failure> {
        let metadata = std::fs::metadata(path).map_err(|error| Failure::file("read", path, &error))?;
        if metadata.is_dir() {
            let settings = settings(path)?;
            let dockerfile = path.join(settings.dockerfile.as_deref().unwrap_or(DOCKERFILE));
            return Ok(Self { dockerfile, dir: path.to_owned(), settings });
        }
        let dir = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(Self { dockerfile: path.to_owned(), settings: settings(&dir)?, dir })
    }
}

/// `wakeful-template.toml`, if there is one.
fn settings(dir: &Path) -> Result<TemplateFile, Failure> {
    let path = dir.join(SETTINGS);
    match text(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(TemplateFile::default()),
        Err(error) => Err(Failure::file("read", &path, &error)),
        Ok(text) => TemplateFile::parse(&text).map_err(|error| about(&path, &error)),
    }
}

fn about(path: &Path, error: &Error) -> Failure {
    Failure::refused(format!("{}: {}", path.display(), Failure::chain(error)))
}

/// A text of bounded length. One that is longer is cut where its reader says that it is too long.
fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_TEXT as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// What is sent.
#[derive(Debug)]
pub(super) struct BuildContext {
    dir: PathBuf,
    context: Context,
    /// The Dockerfile and the list.
    own: Vec<InlineFile>,
    /// Names that nothing else may have.
    reserved: Vec<String>,
    name: String,
}

impl BuildContext {
    /// Reads the Dockerfile and looks at the directory. What is wrong with either is told before anything is sent.
    pub(super) fn open(dir: &Path, dockerfile: &Path, options: &Options) -> Result<Self, Failure> {
        let wrong = |path: &Path, error: &io::Error| Failure::file("read", path, error);
        let content = text(dockerfile).map_err(|error| wrong(dockerfile, &error))?;
        let file = wakeful_dockerfile::parse(&content).map_err(|error| about(dockerfile, &error))?;
        wakeful_dockerfile::plan(&file, options).map_err(|error| about(dockerfile, &error))?;
        let within = within(dir, dockerfile)?;
        let named = match &within {
            Some(name) => PathBuf::from(name),
            None => std::path::absolute(dockerfile).map_err(|error| wrong(dockerfile, &error))?,
        };
        let context = Context::open(dir, &named).map_err(|error| about(dir, &error))?;
        let name = within.clone().unwrap_or_else(|| FROM_ELSEWHERE.to_owned());
        let own_list = format!("{name}{LIST}");
        let mut beside = dir.join(&named).into_os_string();
        beside.push(LIST);
        let (beside, common) = (list(Path::new(&beside))?, list(&dir.join(LIST))?);
        let mut own = vec![InlineFile { name: name.clone(), content: content.into_bytes() }];
        if within.is_some() {
            own.extend(
                beside
                    .map(|text| (own_list.clone(), text))
                    .into_iter()
                    .chain(common.map(|text| (LIST.to_owned(), text)))
                    .map(inline),
            );
        } else {
            // The last word is ours, so that nothing in the list brings them back.
            let hidden = format!("{}\n{FROM_ELSEWHERE}\n{own_list}\n", beside.or(common.clone()).unwrap_or_default());
            own.push(inline((own_list.clone(), hidden)));
            own.extend(common.map(|text| inline((LIST.to_owned(), text))));
        }
        let reserved = vec![name.clone(), own_list, LIST.to_owned()];
        Ok(Self { dir: dir.to_owned(), context, own, reserved, name })
    }

    /// The directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the Dockerfile is in what is sent.
    pub(super) fn dockerfile(&self) -> &str {
        &self.name
    }

    /// Sends it under this name, whatever it is called here.
    pub(super) fn called(mut self, name: &str) -> Self {
        if name == self.name {
            return self;
        }
        let (old, old_list, new_list) = (self.name, self.reserved[1].clone(), format!("{name}{LIST}"));
        for file in &mut self.own {
            if file.name == old {
                name.clone_into(&mut file.name);
            } else if file.name == old_list {
                new_list.clone_into(&mut file.name);
            }
        }
        self.reserved = vec![name.to_owned(), new_list, LIST.to_owned()];
        self.name = name.to_owned();
        self
    }

    /// Everything that is not hidden, as a tar. Blocks.
    pub(super) fn pack(&self, writer: impl Write) -> Result<(), Stop> {
        let failed = |error: Error| match &error {
            Error::Io { source, .. } if is_gone(source) => Stop::Unwanted,
            _ => Stop::Failed(about(&self.dir, &error)),
        };
        let mut selected = self.context.select_paths(&[".".to_owned()], &[]).map_err(failed)?;
        selected.retain(|one| !self.reserved.iter().any(|name| one.path == Path::new(name)));
        self.context.pack(&selected, &self.own, writer).map_err(failed)
    }
}

fn inline((name, text): (String, String)) -> InlineFile {
    InlineFile { name, content: text.into_bytes() }
}

/// A list, if there is one. That it can be used was seen when the context was opened.
fn list(path: &Path) -> Result<Option<String>, Failure> {
    match text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Failure::file("read", path, &error)),
    }
}

/// The name of a plain file in the directory; `None` if it is elsewhere, or a link that may lead there.
fn within(dir: &Path, file: &Path) -> Result<Option<String>, Failure> {
    let wrong = |error: io::Error| Failure::file("read", file, &error);
    if !std::fs::symlink_metadata(file).map_err(wrong)?.is_file() {
        return Ok(None);
    }
    let dir = std::fs::canonicalize(dir).map_err(|error| Failure::file("read", dir, &error))?;
    let file = std::fs::canonicalize(file).map_err(wrong)?;
    match file.strip_prefix(&dir) {
        Err(_) => Ok(None),
        Ok(name) => match name.to_str() {
            Some(name) => Ok(Some(name.to_owned())),
            None => Err(Failure::refused(format!("{} has a name that is no UTF-8", file.display()))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn open(dir: &Path, dockerfile: &Path) -> BuildContext {
        BuildContext::open(dir, dockerfile, &Options::default()).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    /// The files of the archive, by name.
    fn sent(context: &BuildContext) -> BTreeMap<String, String> {
        fn walk(dir: &Path, name: &str, into: &mut BTreeMap<String, String>) {
            for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let name = format!("{name}{}", entry.file_name().into_string().unwrap());
                if entry.file_type().unwrap().is_dir() {
                    walk(&entry.path(), &format!("{name}/"), into);
                } else {
                    into.insert(name, std::fs::read_to_string(entry.path()).unwrap());
                }
            }
        }
        let mut tar = Vec::new();
        assert!(context.pack(&mut tar).is_ok());
        let copy = tempfile::tempdir().unwrap();
        wakeful_tree::unpack(&tar[..], copy.path(), &wakeful_tree::Unpack::default()).unwrap();
        let mut files = BTreeMap::new();
        walk(copy.path(), "", &mut files);
        files
    }

    fn names(files: &BTreeMap<String, String>) -> Vec<&str> {
        files.keys().map(String::as_str).collect()
    }

    #[test]
    fn what_is_hidden_stays_here() {
        let dir = tree(&[
            ("Dockerfile", "FROM scratch\nCOPY . /\n"),
            (".dockerignore", "*.md\nnode_modules\nDockerfile\n.dockerignore\n"),
            ("README.md", "x"),
            ("node_modules/a/b", "x"),
            ("src/main.rs", "fn main() {}"),
        ]);
        let context = open(dir.path(), &dir.path().join("Dockerfile"));
        assert_eq!(context.dockerfile(), "Dockerfile");
        let files = sent(&context);
        assert_eq!(names(&files), [".dockerignore", "Dockerfile", "src/main.rs"]);
        assert_eq!(files["Dockerfile"], "FROM scratch\nCOPY . /\n");
        // As the server sees it, once more.
        let seen = context.context.select_paths(&[".".to_owned()], &[]).unwrap();
        assert!(seen.iter().all(|one| one.path != Path::new("Dockerfile")));
    }

    #[test]
    fn a_list_of_its_own_goes_before() {
        let dir = tree(&[
            ("docker/web", "FROM scratch\n"),
            ("docker/web.dockerignore", "b\ndocker\n"),
            (".dockerignore", "a\n"),
            ("a", "x"),
            ("b", "x"),
        ]);
        let context = open(dir.path(), &dir.path().join("docker/web"));
        assert_eq!(context.dockerfile(), "docker/web");
        assert_eq!(names(&sent(&context)), [".dockerignore", "a", "docker/web", "docker/web.dockerignore"]);
    }

    #[test]
    fn a_dockerfile_from_elsewhere_hides_itself() {
        let elsewhere = tree(&[("Dockerfile", "FROM scratch\nCOPY . /\n")]);
        let dir = tree(&[
            (".dockerignore", "secret\n!Dockerfile.wakeful"),
            ("secret", "x"),
            ("a", "x"),
            ("Dockerfile", "another one"),
            ("Dockerfile.wakeful", "not this one"),
        ]);
        let context = open(dir.path(), &elsewhere.path().join("Dockerfile"));
        assert_eq!(context.dockerfile(), "Dockerfile.wakeful");
        let files = sent(&context);
        assert_eq!(
            names(&files),
            [".dockerignore", "Dockerfile", "Dockerfile.wakeful", "Dockerfile.wakeful.dockerignore", "a"]
        );
        assert_eq!(files["Dockerfile.wakeful"], "FROM scratch\nCOPY . /\n");
        // What the server would copy.
        let copy = tree(&files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>());
        let server = Context::open(copy.path(), Path::new("Dockerfile.wakeful")).unwrap();
        let mut seen: Vec<String> = server
            .select_paths(&[".".to_owned()], &[])
            .unwrap()
            .into_iter()
            .map(|one| one.path.to_string_lossy().into_owned())
            .collect();
        seen.sort();
        assert_eq!(seen, [".dockerignore", "Dockerfile", "a"]);
        // A rebuild sends it under the name that the template knows.
        let renamed = sent(&context.called("docker/web"));
        assert_eq!(renamed["docker/web"], "FROM scratch\nCOPY . /\n");
        assert!(renamed.contains_key("docker/web.dockerignore"));
        assert_eq!(renamed["Dockerfile.wakeful"], "not this one", "it is a file like others then");
    }

    #[test]
    fn a_link_is_from_elsewhere() {
        let elsewhere = tree(&[("real", "FROM scratch\n")]);
        let dir = tree(&[("a", "x")]);
        std::os::unix::fs::symlink(elsewhere.path().join("real"), dir.path().join("Dockerfile")).unwrap();
        assert_eq!(open(dir.path(), &dir.path().join("Dockerfile")).dockerfile(), "Dockerfile.wakeful");
    }

    #[test]
    fn mistakes_are_told_before_anything_is_sent() {
        let dir = tree(&[("Dockerfile", "FROM scratch\nCOPI a b\n"), ("good", "FROM scratch AS one\n")]);
        let told = |dockerfile: &str, target: Option<&str>| {
            let options = Options { target: target.map(str::to_owned), ..Options::default() };
            let opened = BuildContext::open(dir.path(), &dir.path().join(dockerfile), &options);
            format!("{:?}", opened.map(drop).expect_err("it is wrong"))
        };
        assert!(told("Dockerfile", None).contains("line 2"));
        assert!(told("nowhere", None).contains("nowhere"));
        assert!(told("good", Some("two")).contains("two"));
        std::fs::write(dir.path().join(SETTINGS), "name = \"a\"\ncolour = 1\n").unwrap();
        let wrong = format!("{:?}", Named::find(dir.path()).expect_err("it is wrong"));
        assert!(wrong.contains("wakeful-template.toml: line 2") && wrong.contains("colour"), "{wrong}");
    }

    #[test]
    fn a_directory_stands_for_its_dockerfile() {
        let dir = tree(&[("docker/web", "FROM scratch\n"), ("wakeful-template.toml", "dockerfile = \"docker/web\"\n")]);
        let named = Named::find(dir.path()).unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!((named.dockerfile, named.dir.as_path()), (dir.path().join("docker/web"), dir.path()));
        let named = Named::find(&dir.path().join("docker/web")).unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!((named.dir, named.settings), (dir.path().join("docker"), TemplateFile::default()));
    }
}

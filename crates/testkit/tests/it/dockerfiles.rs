//! Dockerfiles as people write them, carried out on real guests.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use wakeful_api_types::{Command, ExecuteRequest};
use wakeful_client::Client;
use wakeful_testkit::Daemon;

use crate::forge::{Forge, Registry, tool};
use crate::support::{create, sh, wait_for};

/// The longest that a build here may take on a busy machine.
const BUILT: Duration = Duration::from_secs(120);

struct Site {
    daemon: Daemon,
    client: Client,
    forge: Forge,
    busybox: String,
    _registry: Registry,
}

impl Site {
    async fn open() -> Result<Self> {
        let (daemon, registry, forge) = (Daemon::start().await?, Registry::start(), Forge::new()?);
        let busybox = forge.push_busybox(&registry)?;
        Ok(Self { client: daemon.client()?, daemon, forge, busybox, _registry: registry })
    }

    /// `template create NAME --dockerfile …` with these files; `BASE` in the Dockerfile is the shell's image. Exit code and
    /// all that was said.
    async fn build(
        &self,
        name: &str,
        dockerfile: &str,
        files: &[(&str, &str)],
        more: &[&str],
    ) -> Result<(i32, String)> {
        let text = dockerfile.replace("BASE", &self.busybox);
        let context = self.forge.tree(name, &[&[("Dockerfile", text.as_str())], files].concat())?;
        let mut command = self.daemon.command();
        command.args(["template", "create", name, "--dockerfile"]).arg(context).args(more);
        command.stdin(std::process::Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Ok((output.status.code().unwrap_or(-1), said))
    }

    /// The same, and it must succeed: a sandbox of it.
    async fn sandbox(&self, name: &str, dockerfile: &str, files: &[(&str, &str)], more: &[&str]) -> Result<String> {
        let (code, said) = self.build(name, dockerfile, files, more).await?;
        ensure!(code == 0, "{name}: {said}");
        Ok(create(&self.client, json!({"template": name})).await?.id.to_string())
    }

    /// Has the context of this name built without the command line.
    async fn build_by_hand(&self, name: &str) -> Result<()> {
        let tar = self.forge.path(&format!("{name}.tar"));
        tool("tar", &["-C", &self.forge.path(name).display().to_string(), "-cf", &tar.display().to_string(), "."])?;
        let http = reqwest::Client::new();
        let post = |path: &str, body: Vec<u8>| http.post(format!("{}{path}", self.daemon.url())).body(body).send();
        let upload: Value = serde_json::from_slice(&post("/v1/uploads", std::fs::read(tar)?).await?.bytes().await?)?;
        let source = json!({"kind": "dockerfile", "upload": upload["id"]});
        let new = json!({"name": name, "source": source}).to_string().into_bytes();
        let answer = post("/v1/templates", new).await?;
        ensure!(answer.status() == 202, "{}", answer.text().await?);
        Ok(())
    }

    async fn template(&self, name: &str) -> Result<Value> {
        let answer = reqwest::get(format!("{}/v1/templates/{name}", self.daemon.url())).await?;
        Ok(serde_json::from_slice(&answer.bytes().await?)?)
    }

    /// What a shell line says in a sandbox that goes after it.
    async fn says(&self, id: &str, script: &str) -> Result<String> {
        let said = sh(&self.client, id, script).await;
        self.client.destroy_sandbox(id).await?;
        said
    }
}

/// How many steps were not run.
fn cached(said: &str) -> usize {
    said.lines().filter(|line| line.trim() == "cached").count()
}

#[tokio::test]
async fn an_application_with_dependencies_and_a_user_of_its_own() -> Result<()> {
    let site = Site::open().await?;
    // A service: dependencies first, then the code; a user of its own; a command.
    let dockerfile = r#"# syntax=docker/dockerfile:1
FROM BASE
ENV APP_HOME=/srv/app \
    LOG_LEVEL=info
WORKDIR $APP_HOME
COPY requirements.txt ./
RUN while read name; do mkdir -p lib/$name && echo installed > lib/$name/done; done < requirements.txt
RUN mkdir -p /home/app && chown app:app /home/app
COPY --chown=app:app . .
USER app
EXPOSE 8000/tcp
LABEL org.example.kind="service"
CMD ["/bin/sleep", "31415"]
"#;
    let files =
        [("requirements.txt", "flask\nrequests\n"), ("main.py", "print('hi')"), ("static/style.css", "body {}")];
    let id = site.sandbox("service", dockerfile, &files, &[]).await?;
    let said = site.says(&id, "id -un; pwd; ls lib; ls -ln main.py | cut -c1-40; echo $LOG_LEVEL; grep -l 31415 /proc/[0-9]*/cmdline | wc -l").await?;
    ensure!(said.starts_with("app\n/srv/app\nflask\nrequests\n-rw-r--r--    1 1001     1001"), "{said}");
    ensure!(said.contains("\ninfo\n") && !said.ends_with("\n0"), "{said}");

    // The same again is not run again, down to the base; other code runs only what follows it.
    let (code, said) = site.build("service-two", dockerfile, &files, &[]).await?;
    ensure!(code == 0 && cached(&said) == 5 && said.contains("exported before"), "{said}");
    ensure!(site.template("service").await?["base"] == site.template("service-two").await?["base"]);
    let changed = [files[0], ("main.py", "print('changed')"), files[2]];
    let (code, said) = site.build("service-three", dockerfile, &changed, &[]).await?;
    ensure!(code == 0 && cached(&said) == 4, "WORKDIR, COPY, RUN, RUN: {said}");
    let id = create(&site.client, json!({"template": "service-three"})).await?.id.to_string();
    ensure!(site.says(&id, "cat main.py").await? == "print('changed')");
    Ok(())
}

#[tokio::test]
async fn many_stages_and_arguments() -> Result<()> {
    let site = Site::open().await?;
    // A compiled program without anything around it.
    let static_program = r#"ARG IMAGE=BASE
FROM ${IMAGE} AS build
ARG VERSION=0.0.1
WORKDIR /src
COPY . .
RUN mkdir -p /out/etc && cp /bin/busybox /out/busybox && echo "$VERSION" > /out/etc/version && ln -s version /out/etc/current

FROM scratch
COPY --from=build /out/ /
ENTRYPOINT ["/busybox", "sleep"]
CMD ["2718"]
"#;
    let (code, said) = site
        .build("program", static_program, &[("main.go", "package main")], &["--build-arg", "VERSION=1.2.3"])
        .await?;
    ensure!(code == 0, "{said}");
    let template = site.template("program").await?;
    ensure!(
        template["entry"]["start"] == json!(["/busybox", "sleep", "2718"]) && template["user"] == "root",
        "{template}"
    );
    let id = create(&site.client, json!({"template": "program"})).await?.id.to_string();
    let argv = ["/busybox", "cat", "/etc/current"].map(str::to_owned).to_vec();
    let ran = site.client.execute(&id, &ExecuteRequest::new(Command::Argv(argv))).await?;
    ensure!(ran.stdout == "1.2.3\n", "{ran:?}");
    site.client.destroy_sandbox(&id).await?;

    // Stages on stages, by name and number, another image, and a target in the middle.
    let stages = r#"FROM BASE AS common
RUN echo common > /common
FROM common AS one
RUN echo one > /one
FROM common AS two
COPY --from=one /one /from-one
COPY --from=0 /common /from-zero
COPY --from=BASE /etc/pass* /copied/
RUN cat /from-one /from-zero > /both
FROM two AS unused
RUN false
"#;
    let id = site.sandbox("two", stages, &[], &["--target", "two"]).await?;
    ensure!(
        site.says(&id, "cat /both; ls /copied; ls /one 2>/dev/null || echo not here").await?
            == "one\ncommon\npasswd\nnot here"
    );
    Ok(())
}

#[tokio::test]
async fn services_scripts_and_archives() -> Result<()> {
    let site = Site::open().await?;
    // A server with a health check: a create waits until it answers.
    let server = r#"FROM BASE
COPY --chmod=755 start.sh /usr/local/bin/
COPY nginx.conf /etc/nginx/nginx.conf
VOLUME /data
STOPSIGNAL SIGQUIT
HEALTHCHECK --interval=5s --timeout=3s CMD grep -q ready /run/state || exit 1
ENTRYPOINT ["/usr/local/bin/start.sh"]
CMD ["serve"]
"#;
    let script = "#!/bin/sh\nsleep 1\necho ready $1 > /run/state\nexec sleep 10000\n";
    let id = site.sandbox("server", server, &[("start.sh", script), ("nginx.conf", "events {}")], &[]).await?;
    ensure!(site.says(&id, "cat /run/state /etc/nginx/nginx.conf").await? == "ready serve\nevents {}");

    // Here documents, another shell, the exec form.
    let scripts = r#"FROM BASE
SHELL ["/bin/sh", "-ec"]
RUN <<EOF
mkdir /made
echo one > /made/one
echo two > /made/two
EOF
COPY <<CONFIG /etc/app.conf
[app]
name = here
CONFIG
RUN ["/bin/sh", "-c", "echo exec > /made/exec"]
# a comment
RUN echo a \
    # between
    && echo b > /made/b
"#;
    let id = site.sandbox("scripts", scripts, &[], &[]).await?;
    ensure!(site.says(&id, "ls /made; cat /etc/app.conf").await? == "b\nexec\none\ntwo\n[app]\nname = here");

    // An archive that is unpacked, files that are ignored, patterns, mounts that leave nothing.
    let archives = r#"FROM BASE
ADD vendor.tar.gz /opt/
COPY *.txt docs/ /texts/
RUN --mount=type=cache,target=/cache --mount=type=cache,target=/opt/lib --mount=type=bind,source=docs,target=/mnt/docs \
    echo kept > /cache/x && cat /mnt/docs/guide.md > /guide
"#;
    let tree = site.forge.tree("vendor", &[("lib/tool", "tool")])?;
    let context = site.forge.tree("archives", &[("docs/", "")])?;
    let tar = context.join("vendor.tar.gz").display().to_string();
    tool("tar", &["-C", &tree.display().to_string(), "-czf", &tar, "lib"])?;
    let files = [
        ("a.txt", "a"),
        ("b.txt", "b"),
        ("secret.txt", "s"),
        ("docs/guide.md", "guide"),
        ("docs/draft.md", "draft"),
        (".dockerignore", "secret.txt\ndocs/*\n!docs/guide.md\n"),
    ];
    let id = site.sandbox("archives", archives, &files, &[]).await?;
    let said =
        site.says(&id, "cat /opt/lib/tool /guide; echo; ls /texts; ls /cache /mnt/docs 2>/dev/null | wc -l").await?;
    ensure!(said == "toolguide\na.txt\nb.txt\nguide.md\n0", "{said}");
    Ok(())
}

#[tokio::test]
async fn a_template_file_says_the_rest() -> Result<()> {
    let site = Site::open().await?;
    let settings = r#"
name = "described"
tags = ["1", "stable"]
description = "what it is for"
default_size = "shared-cpu-2x"
disk_mb = 512
start = ["/bin/sleep", "8128"]
[env]
FROM_FILE = "yes"
[egress]
mode = "deny_all"
[io]
ops_per_sec = 5000
"#;
    let text = "FROM BASE\nRUN touch /here\nCMD [\"/bin/false\"]\n".replace("BASE", &site.busybox);
    let context = site.forge.tree("described", &[("Dockerfile", &text), ("wakeful-template.toml", settings)])?;
    let mut command = site.daemon.command();
    command.args(["template", "create", "--description", "by flag", "--dockerfile"]).arg(context);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let template = site.template("described:stable").await?;
    ensure!(template["description"] == "by flag" && template["default_size"] == "shared-cpu-2x", "{template}");
    ensure!(template["disk_mb"] == 512 && template["io"]["ops_per_sec"] == 5000, "{template}");
    ensure!(template["egress"]["mode"] == "deny_all" && template["entry"]["start"][1] == "8128", "{template}");
    let sandbox = create(&site.client, json!({"template": "described:1"})).await?;
    ensure!(sandbox.memory_mb == 512 && sandbox.disk_mb == 512, "{sandbox:?}");
    ensure!(site.says(&sandbox.id.to_string(), "ls /here; echo $FROM_FILE").await? == "/here\nyes");
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_said_with_its_line() -> Result<()> {
    let site = Site::open().await?;
    for (name, dockerfile, line, words) in [
        ("failing", "FROM BASE\nRUN echo fine\nRUN echo the reason >&2 \\\n  && exit 7\n", 3, &["the reason", "7"][..]),
        ("unknown", "FROM BASE\nRUNN true\n", 2, &["RUNN"]),
        ("nothing", "FROM BASE\nCOPY not-there.txt /x\n", 2, &["not-there.txt"]),
        ("stage", "FROM BASE\n\nCOPY --from=nobody /x /y\n", 3, &["nobody"]),
        ("nobody", "FROM BASE\nUSER nobody-here\nRUN true\n", 3, &["nobody-here"]),
    ] {
        let (code, said) = site.build(name, dockerfile, &[], &[]).await?;
        ensure!(code == 1 && words.iter().all(|word| said.contains(word)), "{name}: {code} {said}");
        ensure!(said.contains(&format!("line {line}")), "{name}: {said}");
        // The command line finds some of it before anything is sent; the daemon finds it for everybody.
        if site.template(name).await?["status"] == 404 {
            site.build_by_hand(name).await?;
        }
        wait_for("the failure", BUILT, || async { Ok(site.template(name).await?["status"] == "failed") }).await?;
        let template = site.template(name).await?;
        ensure!(template["build_error"]["line"] == line, "{name}: {template}");
        let detail = template["build_error"]["detail"].as_str().unwrap_or_default();
        ensure!(words.iter().all(|word| detail.contains(word)), "{name}: {template}");
    }
    // What a context links to on the host is not read.
    let context = site.forge.tree("links", &[])?;
    std::os::unix::fs::symlink("/etc/hostname", context.join("Dockerfile"))?;
    site.build_by_hand("links").await?;
    wait_for("the failure", BUILT, || async { Ok(site.template("links").await?["status"] == "failed") }).await?;
    let said = site.template("links").await?["build_error"].to_string();
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    ensure!(host.trim().is_empty() || !said.contains(host.trim()), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_web_front_a_jar_and_a_worker() -> Result<()> {
    let site = Site::open().await?;
    // A front end: dependencies by their lock file alone, a build, and only its result in the end.
    let front = r#"FROM BASE AS deps
WORKDIR /app
COPY package.json package-lock.json* ./
RUN mkdir node_modules && cp package.json node_modules/.installed

FROM BASE AS builder
WORKDIR /app
COPY --from=deps /app/node_modules ./node_modules
COPY . .
ENV NODE_ENV=production
RUN mkdir -p dist && cat src/index.js node_modules/.installed > dist/bundle.js

FROM BASE AS runner
WORKDIR /usr/share/www
COPY --from=builder --chown=app:app /app/dist ./
USER app
EXPOSE 80 443
CMD ["sleep", "1618"]
"#;
    let files = [("package.json", "{}\n"), ("package-lock.json", "{}\n"), ("src/index.js", "run()\n")];
    let id = site.sandbox("front", front, &files, &[]).await?;
    let said = site
        .says(&id, "id -un; pwd; ls; cat bundle.js; ls -ln bundle.js | cut -c15-40; ls /app 2>/dev/null | wc -l")
        .await?;
    ensure!(said.starts_with("app\n/usr/share/www\nbundle.js\nrun()\n{}\n") && said.ends_with("\n0"), "{said}");
    ensure!(said.contains("1001     1001"), "{said}");

    // A program with arguments that a caller may replace, in one layer of commands that cleans up after itself.
    let jar = r#"FROM BASE
ARG JAR_FILE=target/*.jar
ARG PROFILE
LABEL maintainer="somebody" \
      version="1.0"
RUN mkdir -p /var/cache/things && touch /var/cache/things/big \
 && echo "${PROFILE:-default}" > /etc/profile-name \
 && rm -rf /var/cache/things
COPY ${JAR_FILE} /app.jar
VOLUME ["/tmp"]
ENTRYPOINT ["sh", "-c", "exec sleep ${SLEEP:-577}"]
"#;
    let files = [("target/app-1.0.jar", "jar"), ("target/classes/A.class", "x")];
    let id = site.sandbox("jar", jar, &files, &["--build-arg", "PROFILE=prod", "-e", "SLEEP=99"]).await?;
    let said = site
        .says(&id, "cat /app.jar /etc/profile-name; ls /var/cache; grep -l 99 /proc/[0-9]*/cmdline | wc -l")
        .await?;
    ensure!(said.starts_with("jarprod\n") && !said.ends_with("\n0"), "{said}");

    // A worker that adds its user itself, works in its home, and is asked for by another name of the file.
    let worker = r#"FROM BASE
RUN printf 'worker:x:2000:2000::/home/worker:/bin/sh\n' >> /etc/passwd && mkdir -p /home/worker/.cache && chown -R 2000:2000 /home/worker
USER 2000:2000
WORKDIR /home/worker
ENV PATH="/home/worker/bin:${PATH}" HOME=/home/worker
COPY --chmod=0755 run.sh bin/run
RUN touch made && bin/run > log
CMD ["run"]
"#;
    let script = "#!/bin/sh\necho ran as $(id -u)\n";
    let id = site.sandbox("worker", worker, &[("run.sh", script)], &["--no-start"]).await?;
    let said = site.says(&id, "run; cat log; ls -ln made | cut -c15-40; pwd").await?;
    ensure!(said.starts_with("ran as 2000\nran as 2000\n") && said.ends_with("/home/worker"), "{said}");
    ensure!(said.contains("2000     2000"), "{said}");
    ensure!(site.template("worker").await?["entry"].is_null());
    Ok(())
}

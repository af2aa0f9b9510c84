//! Templates from anything: images, archives, Dockerfiles, root file systems, sandboxes; by the command line and over HTTP.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wakeful_api_types::{Command, ExecuteRequest};
use wakeful_testkit::{Daemon, Options};

use crate::forge::{Forge, Registry, tool};
use crate::support::{code_of, create, run, sh, wait_for};

/// The longest that a build here may take on a busy machine.
const BUILT: Duration = Duration::from_secs(240);

/// Runs `wakeful`, off the runtime's threads.
async fn wakeful(daemon: &Daemon, args: &[&str]) -> Result<Output> {
    let mut command = daemon.command();
    command.args(args).stdin(std::process::Stdio::null());
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

/// The same, and it must succeed.
async fn done(daemon: &Daemon, args: &[&str]) -> Result<String> {
    let output = wakeful(daemon, args).await?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "wakeful {args:?}: {out}{err}");
    Ok(format!("{out}{err}"))
}

/// The same, and it must be refused: what it said.
async fn refused(daemon: &Daemon, args: &[&str]) -> Result<String> {
    let output = wakeful(daemon, args).await?;
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "wakeful {args:?} ended with {}: {err}", output.status);
    Ok(err)
}

async fn get(daemon: &Daemon, path: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&reqwest::get(format!("{}{path}", daemon.url())).await?.bytes().await?)?)
}

async fn post(daemon: &Daemon, path: &str, body: &Value) -> Result<(u16, Value)> {
    let answer = reqwest::Client::new().post(format!("{}{path}", daemon.url())).body(body.to_string()).send().await?;
    let status = answer.status().as_u16();
    Ok((status, serde_json::from_slice(&answer.bytes().await?).unwrap_or_default()))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// What is left of builds beside their logs and sources.
fn leftovers(daemon: &Daemon) -> Vec<String> {
    let works = names(&daemon.data().join("builds")).into_iter();
    let works = works.flat_map(|id| names(&daemon.data().join("builds").join(id).join("work")));
    works.chain(names(&daemon.data().join("layers")).into_iter().filter(|name| name.starts_with("new-"))).collect()
}

#[tokio::test]
async fn an_image_of_a_registry_is_a_template() -> Result<()> {
    let (daemon, registry, forge) = (Daemon::start().await?, Registry::start(), Forge::new()?);
    let client = daemon.client()?;
    // Two layers: the second hides a file of the first, and empties a directory.
    let image = forge.image("app")?;
    let root = forge.busybox()?;
    forge.tree(
        "busybox",
        &[("srv/old", "old"), ("srv/kept", "kept"), ("opt/things/one", "1"), ("opt/things/two", "2")],
    )?;
    forge.layer(&image, &root)?;
    let over =
        forge.tree("over", &[("srv/.wh.old", ""), ("opt/things/.wh..wh..opq", ""), ("opt/things/three", "3")])?;
    std::fs::write(over.join("srv/linked"), "linked")?;
    std::fs::hard_link(over.join("srv/linked"), over.join("srv/other"))?;
    forge.layer(&image, &over)?;
    let settings = ["--config.env", "PATH=/bin", "--config.env", "GREETING=hello", "--config.user", "app"];
    forge.config(&image, &settings)?;
    forge.config(
        &image,
        &["--config.workingdir", "/srv", "--config.entrypoint", "/bin/sleep", "--config.cmd", "4711"],
    )?;
    let reference = forge.push(&image, &registry, "team/app:2")?;

    let said =
        done(&daemon, &["template", "create", "app", "--image", &reference, "--tag", "2.0", "-e", "MORE=yes"]).await?;
    ensure!(said.contains("app"), "{said}");
    let template = get(&daemon, "/v1/templates/app").await?;
    ensure!(template["status"] == "ready" && template["user"] == "app" && template["workdir"] == "/srv", "{template}");
    ensure!(template["entry"]["start"] == json!(["/bin/sleep", "4711"]), "{template}");
    let id = create(&client, json!({"template": "app:2.0"})).await?.id.to_string();
    ensure!(sh(&client, &id, "id -un; pwd; echo $GREETING $MORE").await? == "app\n/srv\nhello yes");
    ensure!(sh(&client, &id, "ls /srv; ls /opt/things").await? == "kept\nlinked\nother\nthree");
    ensure!(
        sh(&client, &id, "ls -i linked other | cut -c1-8 | sort -u | wc -l").await? == "1",
        "one file with two names"
    );
    ensure!(sh(&client, &id, "grep -l 4711 /proc/[0-9]*/cmdline | head -n 1").await?.starts_with("/proc/"), "it runs");
    ensure!(run(&client, &id, "ls /lost+found").await?.exit_code != 0);
    // It sleeps and wakes like any other, with its program.
    client.suspend(&id, true).await?;
    ensure!(sh(&client, &id, "grep -l 4711 /proc/[0-9]*/cmdline | head -n 1").await?.starts_with("/proc/"));
    ensure!(
        code_of(client.create_sandbox(&serde_json::from_value(json!({"template": "app:3"}))?).await)
            == "template_not_found"
    );

    // The same image again: nothing is fetched or unpacked, and there is one base for both.
    let said = done(&daemon, &["template", "create", "again", "--image", &reference]).await?;
    ensure!(said.contains("unpacked before"), "{said}");
    ensure!(get(&daemon, "/v1/templates/again").await?["base"] == template["base"]);
    ensure!(leftovers(&daemon).is_empty(), "{:?}", leftovers(&daemon));
    Ok(())
}

#[tokio::test]
async fn an_image_without_a_shell_runs_commands() -> Result<()> {
    let (daemon, registry, forge) = (Daemon::start().await?, Registry::start(), Forge::new()?);
    let client = daemon.client()?;
    let image = forge.image("bare")?;
    let tree = forge.tree("bare", &[("app/", "")])?;
    std::fs::copy("/bin/busybox", tree.join("app/busybox"))?;
    forge.layer(&image, &tree)?;
    let reference = forge.push(&image, &registry, "bare")?;
    done(&daemon, &["template", "create", "bare", "--image", &reference]).await?;
    let id = create(&client, json!({"template": "bare"})).await?.id.to_string();
    let argv = |words: &[&str]| ExecuteRequest::new(Command::Argv(words.iter().map(|&word| word.to_owned()).collect()));
    let ran = client.execute(&id, &argv(&["/app/busybox", "echo", "no shell"])).await?;
    ensure!(ran.exit_code == 0 && ran.stdout == "no shell\n", "{ran:?}");
    let shell = client.execute(&id, &ExecuteRequest::new(Command::Shell("true".into()))).await;
    ensure!(code_of(shell) == "no_shell");
    client.suspend(&id, true).await?;
    ensure!(client.execute(&id, &argv(&["/app/busybox", "true"])).await?.exit_code == 0);
    Ok(())
}

#[tokio::test]
async fn bad_images_leave_a_reason_and_nothing_else() -> Result<()> {
    let (registry, locked, forge) = (Registry::start(), Registry::with_password(), Forge::new()?);
    let daemon = Daemon::start_with(Options::default().config("[builds]\nimage_bytes = 50000000\n")).await?;
    let bases = names(&daemon.data().join("bases"));
    let good = forge.push_busybox(&registry)?;
    let hostile = |name: &str, script: &str| -> Result<String> {
        let tar = forge.path(&format!("{name}.tar"));
        let script =
            format!("import io, tarfile\nt = tarfile.open({:?}, 'w')\n{script}\nt.close()", tar.display().to_string());
        tool("python3", &["-c", &script])?;
        let image = forge.image(name)?;
        forge.raw_layer(&image, &tar)?;
        forge.push(&image, &registry, name)
    };
    let file = "def put(name, data=b'x', **more):\n i = tarfile.TarInfo(name); i.size = len(data)\n for k, v in more.items(): setattr(i, k, v)\n t.addfile(i, io.BytesIO(data))\n";
    let climbing = hostile("climbing", &format!("{file}put('../../outside')"))?;
    let through = hostile(
        "through",
        &format!("{file}put('link', b'', type=tarfile.SYMTYPE, linkname='/etc')\nput('link/wakeful-was-here')"),
    )?;
    let linked =
        hostile("linked", &format!("{file}put('hard', b'', type=tarfile.LNKTYPE, linkname='../../../etc/passwd')"))?;
    let bomb = hostile("bomb", &format!("{file}put('zeros', bytes(60_000_000))"))?;
    let corrupted = {
        let image = forge.image("corrupted")?;
        forge.layer(&image, &forge.tree("small", &[("some/file", &"words ".repeat(5000))])?)?;
        let reference = forge.push(&image, &registry, "corrupted")?;
        let manifest: Value = serde_json::from_str(&tool(
            "skopeo",
            &["--insecure-policy", "inspect", "--raw", "--tls-verify=false", &format!("docker://{reference}")],
        )?)?;
        let digest = manifest["layers"][0]["digest"].as_str().context("a layer")?.to_owned();
        let blob = registry.blob(digest.trim_start_matches("sha256:"));
        let mut bytes = std::fs::read(&blob)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x20;
        std::fs::write(blob, bytes)?;
        reference
    };
    let foreign = {
        let image = forge.image("foreign")?;
        forge.layer(&image, &forge.tree("small", &[])?)?;
        forge.config(&image, &["--architecture", "s390x"])?;
        forge.push(&image, &registry, "foreign")?
    };
    let wrong_digest = format!("{}@sha256:{}", good.trim_end_matches(":1"), "0".repeat(64));
    let private = format!("{}/secret:1", locked.host());
    let missing = format!("{}:2", good.trim_end_matches(":1"));
    for (name, reference, reason) in [
        ("missing-tag", missing.as_str(), "2"),
        ("no-password", &private, "401|credentials|password|log in"),
        ("wrong-digest", &wrong_digest, "sha256"),
        ("corrupted", &corrupted, "sha256|digest"),
        ("foreign", &foreign, "s390x"),
        ("climbing", &climbing, "outside|\\.\\."),
        ("through", &through, "link"),
        ("linked", &linked, "hard|link"),
        ("bomb", &bomb, "bytes|large"),
    ] {
        let said = refused(&daemon, &["template", "create", name, "--image", reference]).await?;
        ensure!(reason.split('|').any(|word| said.contains(word)), "{name}: {said}");
        let template = get(&daemon, &format!("/v1/templates/{name}")).await?;
        ensure!(template["status"] == "failed" && template["base"].is_null(), "{name}: {template}");
        ensure!(template["build_error"]["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{template}");
    }
    ensure!(!Path::new("/etc/wakeful-was-here").exists());
    ensure!(names(&daemon.data().join("bases")) == bases, "a bad image left a base");
    ensure!(leftovers(&daemon).is_empty(), "{:?}", leftovers(&daemon));
    ensure!(daemon.places().is_empty() && daemon.engines().is_empty(), "{:?}", daemon.places());
    // A name of one that failed can be tried again.
    let said = refused(&daemon, &["template", "rebuild", "foreign"]).await?;
    ensure!(said.contains("s390x"), "{said}");
    done(&daemon, &["template", "delete", "-f", "foreign"]).await?;
    Ok(())
}

#[tokio::test]
async fn credentials_of_dockers_file_open_a_registry() -> Result<()> {
    let (registry, forge) = (Registry::with_password(), Forge::new()?);
    let image = forge.image("secret")?;
    forge.layer(&image, &forge.busybox()?)?;
    let (from, reference) = (format!("oci:{image}"), format!("{}/secret:1", registry.host()));
    let who = format!("{}:{}", crate::registry::USER, crate::registry::PASSWORD);
    let to = format!("docker://{reference}");
    tool("skopeo", &["--insecure-policy", "copy", "--dest-tls-verify=false", "--dest-creds", &who, &from, &to])?;
    let encoded = tool(
        "python3",
        &["-c", "import base64, sys; print(base64.b64encode(sys.argv[1].encode()).decode(), end='')", &who],
    )?;
    let file = forge.path("config.json");
    std::fs::write(&file, json!({"auths": {registry.host(): {"auth": encoded}}}).to_string())?;
    let config =
        format!("[registries]\ndocker_config = {:?}\ndefault = {:?}\n", file.display().to_string(), registry.host());
    let daemon = Daemon::start_with(Options::default().config(&config)).await?;
    done(&daemon, &["template", "create", "secret", "--image", "secret:1"]).await?;
    Ok(())
}

#[tokio::test]
async fn archives_and_root_file_systems_are_templates() -> Result<()> {
    let (daemon, forge) = (Daemon::start().await?, Forge::new()?);
    let client = daemon.client()?;
    let root = forge.busybox()?;
    forge.tree("busybox", &[("etc/mark", "here")])?;
    std::fs::write(root.join("etc/one"), "1")?;
    std::fs::hard_link(root.join("etc/one"), root.join("etc/two"))?;
    tool("setfattr", &["-n", "user.colour", "-v", "blue", &root.join("etc/one").display().to_string()])?;
    tool("chown", &["1001:1001", &root.join("etc/mark").display().to_string()])?;
    let image = forge.image("arch")?;
    forge.layer(&image, &root)?;
    forge.config(&image, &["--config.env", "PATH=/bin"])?;
    let (saved, layout, tar) = (forge.path("saved.tar"), forge.path("layout.tar"), forge.path("root.tar.gz"));
    let (from, root) = (format!("oci:{image}"), root.display().to_string());
    let copy = |to: String| tool("skopeo", &["--insecure-policy", "copy", &from, &to]);
    copy(format!("docker-archive:{}:arch:1", saved.display()))?;
    copy(format!("oci-archive:{}", layout.display()))?;
    tool("tar", &["-C", &root, "--xattrs", "-czf", &tar.display().to_string(), "."])?;
    let oci = forge.path("arch.oci").display().to_string();
    let path = |path: &std::path::PathBuf| path.display().to_string();
    for (name, option, source) in [
        ("saved", "--archive", path(&saved)),
        ("layout", "--archive", path(&layout)),
        ("directory", "--archive", oci),
        ("tree", "--rootfs", root.clone()),
        ("tarred", "--rootfs", path(&tar)),
    ] {
        done(&daemon, &["template", "create", name, option, &source]).await?;
        let id = create(&client, json!({"template": name})).await?.id.to_string();
        ensure!(sh(&client, &id, "cat /etc/mark").await? == "here", "{name}");
        if option == "--rootfs" {
            ensure!(sh(&client, &id, "ls -ln /etc/mark").await?.contains("1001     1001"), "{name}: owners");
            let inodes =
                sh(&client, &id, "ls -i /etc/one /etc/two | sed 's/^ *//' | cut -d' ' -f1 | sort -u | wc -l").await?;
            ensure!(inodes == "1", "{name}: hard links");
            let base =
                get(&daemon, &format!("/v1/templates/{name}")).await?["base"].as_str().context("a base")?.to_owned();
            let image = daemon.data().join("bases").join(base).join("base.ext4").display().to_string();
            ensure!(
                tool("/usr/sbin/debugfs", &["-R", "ea_get /etc/one user.colour", &image])?.contains("blue"),
                "{name}"
            );
        }
        client.destroy_sandbox(&id).await?;
    }
    // What is no archive, and what is not there.
    let text = forge.path("text");
    std::fs::write(&text, "no archive at all")?;
    let said = refused(&daemon, &["template", "create", "text", "--archive", &path(&text)]).await?;
    ensure!(said.contains("archive") || said.contains("tar"), "{said}");
    let (status, problem) = post(
        &daemon,
        "/v1/templates",
        &json!({"name": "x", "source": {"kind": "rootfs", "upload": "upl_aaaaaaaaaaaaaaaaaaaa"}}),
    )
    .await?;
    ensure!(status == 400 && problem["field"] == "source.upload", "{problem}");
    Ok(())
}

#[tokio::test]
async fn a_sandbox_and_a_snapshot_are_templates() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "env": {"SECRET": "mine"}})).await?.id.to_string();
    sh(&client, &id, "echo made > ~/made; sudo touch /opt/by-root; sudo rm /etc/motd 2>/dev/null; sync").await?;
    let snapshot = client.create_snapshot(&id, &serde_json::from_value(json!({"name": "kept"}))?).await?;
    sh(&client, &id, "echo later > ~/later").await?;
    done(&daemon, &["template", "create", "of-sandbox", "--from-sandbox", &id]).await?;
    done(&daemon, &["template", "create", "of-snapshot", "--from-snapshot", snapshot.id.as_str()]).await?;
    client.destroy_sandbox(&id).await?;
    for (name, later) in [("of-sandbox", true), ("of-snapshot", false)] {
        let id = create(&client, json!({"template": name})).await?.id.to_string();
        ensure!(
            sh(&client, &id, "cat ~/made; ls /opt; whoami; pwd; echo [$SECRET]").await?
                == "made\nby-root\nuser\n/home/user\n[]"
        );
        ensure!((run(&client, &id, "cat ~/later").await?.exit_code == 0) == later, "{name}");
        ensure!(sh(&client, &id, "sudo id -u").await? == "0", "{name}: setuid programs are what they were");
        client.destroy_sandbox(&id).await?;
    }
    ensure!(client.snapshots().await?.snapshots.len() == 1, "the copy that was made of the sandbox is gone");
    Ok(())
}

#[tokio::test]
async fn a_rebuild_disturbs_nobody() -> Result<()> {
    let (daemon, registry, forge) = (Daemon::start().await?, Registry::start(), Forge::new()?);
    let client = daemon.client()?;
    let image = forge.image("moving")?;
    forge.layer(&image, &forge.busybox()?)?;
    forge.config(&image, &["--config.env", "PATH=/bin"])?;
    let reference = forge.push(&image, &registry, "moving")?;
    done(&daemon, &["template", "create", "moving", "--image", &reference]).await?;
    let base = |template: &Value| template["base"].as_str().map(str::to_owned).unwrap_or_default();
    let first = base(&get(&daemon, "/v1/templates/moving").await?);
    let old = create(&client, json!({"template": "moving", "mode": "persistent"})).await?.id.to_string();
    sh(&client, &old, "echo kept > /dev/shm/memory").await?;

    forge.layer(&image, &forge.tree("news", &[("etc/news", "new")])?)?;
    forge.push(&image, &registry, "moving")?;
    done(&daemon, &["template", "rebuild", "moving"]).await?;
    let second = base(&get(&daemon, "/v1/templates/moving").await?);
    ensure!(first != second);
    let new = create(&client, json!({"template": "moving"})).await?.id.to_string();
    ensure!(sh(&client, &new, "cat /etc/news").await? == "new");
    // The old one sleeps and wakes on what it began with.
    client.suspend(&old, true).await?;
    ensure!(sh(&client, &old, "cat /dev/shm/memory; ls /etc/news 2>/dev/null || true").await? == "kept");
    ensure!(names(&daemon.data().join("bases")).contains(&first));

    // One that fails leaves what there was, and says why.
    let blobs = daemon.data().join("blobs");
    drop(registry);
    let said = refused(&daemon, &["template", "rebuild", "moving"]).await?;
    ensure!(!said.is_empty());
    let template = get(&daemon, "/v1/templates/moving").await?;
    ensure!(
        template["status"] == "ready" && base(&template) == second && !template["build_error"].is_null(),
        "{template}"
    );
    create(&client, json!({"template": "moving"})).await?;

    // Pruned, what the cache kept goes; with its last sandbox the old base goes too.
    done(&daemon, &["template", "prune", "-f"]).await?;
    ensure!(names(&blobs.join("sha256")).is_empty(), "{:?}", names(&blobs.join("sha256")));
    ensure!(names(&daemon.data().join("bases")).contains(&first));
    client.destroy_sandbox(&old).await?;
    wait_for("the old base to go", Duration::from_secs(20), || async {
        Ok(!names(&daemon.data().join("bases")).contains(&first))
    })
    .await?;
    ensure!(sh(&client, &new, "cat /etc/news").await? == "new");
    let df = get(&daemon, "/v1/df").await?;
    let bases = df["kinds"].as_array().and_then(|kinds| kinds.iter().find(|kind| kind["kind"] == "bases").cloned());
    ensure!(bases.is_some_and(|bases| bases["bytes"].as_u64() > Some(1 << 20)), "{df}");
    ensure!(done(&daemon, &["df"]).await?.contains("golden snapshots"));
    Ok(())
}

#[tokio::test]
async fn a_build_is_cancelled_deleted_or_killed_and_leaves_nothing() -> Result<()> {
    let (mut daemon, registry, forge) = (Daemon::start().await?, Registry::start(), Forge::new()?);
    let busybox = forge.push_busybox(&registry)?;
    let context =
        forge.tree("slow", &[("Dockerfile", &format!("FROM {busybox}\nRUN echo first > /first\nRUN sleep 600\n"))])?;
    let context = context.display().to_string();
    let sleeping = async |daemon: &Daemon, name: &str| {
        wait_for("the second step", BUILT, || async {
            let log = reqwest::get(format!("{}/v1/templates/{name}/logs", daemon.url())).await?.text().await?;
            let status = get(daemon, &format!("/v1/templates/{name}")).await?;
            ensure!(status["status"] != "failed", "{status}");
            Ok(log.contains("sleep 600") && !daemon.engines().is_empty())
        })
        .await
    };
    let gone = async |daemon: &Daemon| {
        wait_for("the machine to go", Duration::from_secs(30), || async {
            Ok(daemon.engines().is_empty() && daemon.places().is_empty() && leftovers(daemon).is_empty())
        })
        .await
    };
    done(&daemon, &["template", "create", "slow", "--dockerfile", &context, "--no-wait"]).await?;
    sleeping(&daemon, "slow").await?;
    let (status, problem) = post(&daemon, "/v1/templates/slow/rebuild", &json!({})).await?;
    ensure!(status == 409 && problem["code"] == "build_in_progress", "{problem}");
    done(&daemon, &["template", "cancel", "slow"]).await?;
    let template = get(&daemon, "/v1/templates/slow").await?;
    ensure!(template["status"] == "failed" && template["build_error"]["detail"] == "cancelled", "{template}");
    gone(&daemon).await?;
    ensure!(post(&daemon, "/v1/templates/slow/cancel", &json!({})).await?.1["code"] == "no_build");

    done(&daemon, &["template", "rebuild", "slow", "--no-wait"]).await?;
    sleeping(&daemon, "slow").await?;
    done(&daemon, &["template", "delete", "-f", "slow"]).await?;
    gone(&daemon).await?;

    // Killed in the middle, it begins again, and the step that was kept is not run again.
    done(&daemon, &["template", "create", "slow", "--dockerfile", &context, "--no-wait"]).await?;
    sleeping(&daemon, "slow").await?;
    daemon.kill()?;
    daemon.start_again(Options::default()).await?;
    sleeping(&daemon, "slow").await?;
    let log = reqwest::get(format!("{}/v1/templates/slow/logs", daemon.url())).await?.text().await?;
    ensure!(log.contains("\"cached\""), "{log}");
    ensure!(daemon.engines().len() == 1, "{:?}", daemon.engines());
    done(&daemon, &["template", "delete", "-f", "slow"]).await?;
    gone(&daemon).await
}

//! Precedence, unknown keys and bad values.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::*;

/// A file in a folder of its own, and an environment.
struct Stage {
    dir: tempfile::TempDir,
    variables: HashMap<&'static str, OsString>,
}

impl Stage {
    fn new(file: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), file).unwrap();
        Self { dir, variables: HashMap::new() }
    }

    fn set(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.insert(name, value.into());
        self
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    fn load(&self, flags: Overrides) -> Result<Loaded, Error> {
        Config::load_from(flags, |name| self.variables.get(name).cloned(), &self.path())
    }
}

fn refused(file: &str) -> String {
    match Stage::new(file).load(Overrides::default()) {
        Ok(_) => panic!("{file:?} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn flags_beat_environment_beats_file_beats_default() {
    let stage = Stage::new("runtime = \"gvisor\"\ndata_dir = \"/file\"\ndomain = \"file.example\"\nlog = \"warn\"\n")
        .set("WAKEFUL_RUNTIME", "firecracker")
        .set("WAKEFUL_DATA_DIR", "/env")
        .set("WAKEFUL_LISTEN", "127.0.0.1:1, [::1]:2");
    let flags = Overrides { runtime: Some("qemu".into()), ..Overrides::default() };
    let loaded = stage.load(flags).unwrap();
    assert_eq!(loaded.config.runtime, RuntimeChoice::Qemu);
    assert_eq!(loaded.config.data_dir, PathBuf::from("/env"));
    assert_eq!(loaded.config.domain, "file.example");
    assert_eq!(loaded.config.log, "warn");
    assert_eq!(loaded.config.log_format, LogFormat::Text);
    assert_eq!(loaded.config.listen, ["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]);
    assert!(!loaded.listen_by_default);
    assert_eq!(loaded.file, Some(stage.path()));

    let flags = Overrides { listen: vec!["127.0.0.1:0".into()], ..Overrides::default() };
    assert_eq!(stage.load(flags).unwrap().config.listen, ["127.0.0.1:0".parse().unwrap()]);
}

#[test]
fn every_variable_arrives() {
    let stage = Stage::new("")
        .set("WAKEFUL_LISTEN", "127.0.0.1:9")
        .set("WAKEFUL_DATA_DIR", "/d")
        .set("WAKEFUL_DATABASE", "")
        .set("WAKEFUL_RUNTIME", "qemu")
        .set("WAKEFUL_LOG", "debug,wakeful_api=trace")
        .set("WAKEFUL_LOG_FORMAT", "json");
    let config = stage.load(Overrides::default()).unwrap().config;
    let expected = Config {
        listen: vec!["127.0.0.1:9".parse().unwrap()],
        data_dir: "/d".into(),
        runtime: RuntimeChoice::Qemu,
        log: "debug,wakeful_api=trace".into(),
        log_format: LogFormat::Json,
        ..Config::default()
    };
    assert_eq!(config, expected);
}

#[test]
fn the_named_file_is_read_and_must_exist() {
    let stage = Stage::new("domain = \"default.example\"");
    let other = stage.dir.path().join("other.toml");
    std::fs::write(&other, "domain = \"other.example\"").unwrap();
    let third = stage.dir.path().join("third.toml");
    std::fs::write(&third, "domain = \"third.example\"").unwrap();
    let stage = stage.set("WAKEFUL_CONFIG", other.as_os_str());
    assert_eq!(stage.load(Overrides::default()).unwrap().config.domain, "other.example");
    let flags = Overrides { config: Some(third), ..Overrides::default() };
    assert_eq!(stage.load(flags).unwrap().config.domain, "third.example");
    let flags = Overrides { config: Some("/nowhere/config.toml".into()), ..Overrides::default() };
    assert!(matches!(stage.load(flags), Err(Error::Read { .. })));
}

#[test]
fn no_file_is_no_error() {
    let loaded = Config::load_from(Overrides::default(), |_| None, Path::new("/nowhere/config.toml")).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.listen_by_default);
    assert_eq!(loaded.file, None);
}

#[test]
fn the_printed_file_is_the_configuration() {
    let file = "[pool.sizes]\npython = 3\n[limits]\nsandboxes = 7\n[qemu]\naccel = \"tcg\"\n[defaults]\ntimeout = 90\n";
    let config = Stage::new(file).load(Overrides::default()).unwrap().config;
    assert_eq!(config.defaults.timeout, Span::seconds(90));
    assert_eq!(config.pool.sizes["python"], 3);
    let printed = config.to_toml();
    assert_eq!(Stage::new(&printed).load(Overrides::default()).unwrap().config, config, "{printed}");
    let defaults = Config::default();
    assert_eq!(Stage::new(&defaults.to_toml()).load(Overrides::default()).unwrap().config, defaults);
}

#[test]
fn the_contract_s_example_is_accepted() {
    let file = r#"
        listen = ["127.0.0.1:8080", "[::1]:8080"]
        data_dir = "/var/lib/wakeful"
        database = ""
        runtime = "auto"
        domain = "localhost"
        log = "info"
        [tls]
        [defaults]
        template_size = "shared-cpu-1x"
        timeout="5m"
        max_timeout="24h"
        idle_timeout="10m"
        exec_timeout="30s"
        max_exec_timeout="5m"
        disk_mb=2048
        tombstone="24h"
        [limits]
        upload_bytes=104857600
        [network]
        pool = "auto"
        allow_private = ["10.1.0.0/16"]
        dns = ["192.0.2.53"]
        [pool]
        enabled=false
        replenish_interval="5s"
        default_size = "shared-cpu-1x"
        [pool.sizes]
        python = 3
        [qemu]
        binary = "/usr/bin/qemu-system-x86_64"
        accel = "kvm"
        [gvisor]
        binary = "/usr/local/bin/runsc"
        platform="systrap"
        hardened = true
    "#;
    Stage::new(file).load(Overrides::default()).unwrap();
}

#[test]
fn unknown_keys_are_named() {
    assert!(refused("lsiten = []").contains("lsiten"));
    assert!(refused("[defaults]\ntimeuot = \"5m\"").contains("timeuot"));
    assert!(refused("[tls]\ncertificate = \"x\"").contains("certificate"));
    assert!(refused("[qemu]\nkvm = true").contains("kvm"));
    assert!(refused("[firecracker]").contains("firecracker"));
}

#[test]
fn bad_values_say_key_and_reason() {
    for (file, parts) in [
        ("listen = [\"localhost\"]", &["listen", "localhost", "127.0.0.1:8080"][..]),
        ("listen = []", &["no address"]),
        ("listen = \"127.0.0.1:8080\"", &["listen"]),
        ("runtime = \"docker\"", &["docker", "auto, qemu, gvisor, firecracker"]),
        ("database = \"postgres://user:word@host/db\"", &["database", "SQLite"]),
        ("data_dir = \"\"", &["data_dir"]),
        ("domain = \"Not A Name\"", &["domain"]),
        ("log = \"info,=what\"", &["log"]),
        ("log_format = \"xml\"", &["xml", "text, json"]),
        ("[defaults]\ntimeout = \"5 minutes\"", &["5 minutes"]),
        ("[defaults]\ntimeout = -5", &["negative"]),
        ("[defaults]\ntimeout = \"0s\"", &["defaults.timeout"]),
        ("[defaults]\ntimeout = \"2d\"", &["defaults.timeout", "max_timeout"]),
        ("[defaults]\nexec_timeout = \"6m\"", &["defaults.exec_timeout"]),
        ("[defaults]\ntemplate_size = \"huge\"", &["defaults.template_size", "huge", "performance-8x"]),
        ("[defaults]\ndisk_mb = 1", &["defaults.disk_mb"]),
        ("[limits]\nsandboxes = 0", &["limits.sandboxes"]),
        ("[network]\npool = \"10.0.0.0\"", &["network.pool"]),
        ("[network]\nallow_private = [\"10.0.0.0/33\"]", &["network.allow_private"]),
        ("[network]\ndns = [\"resolver\"]", &["network.dns"]),
        ("[pool]\nreplenish_interval = \"0s\"", &["pool.replenish_interval"]),
        ("[pool.sizes]\npython = 100000", &["pool.sizes"]),
        ("[qemu]\naccel = \"hvf\"", &["hvf", "auto, kvm, tcg"]),
        ("[qemu]\nbinary = \"qemu\"", &["qemu.binary", "absolute"]),
        ("[gvisor]\nplatform = \"ptrace\"", &["gvisor.platform", "systrap"]),
        ("[gvisor]\nbinary = \"runsc\"", &["gvisor.binary", "absolute"]),
        ("[gvisor]\nhardened = \"yes\"", &["hardened"]),
        ("[tls]\ncert = \"/a\"", &["tls"]),
        ("what is this", &["config.toml"]),
    ] {
        let error = refused(file);
        for part in parts {
            assert!(error.contains(part), "{file:?}: {error}");
        }
        assert!(!error.contains("word@"), "{error}");
    }
}

#[test]
fn who_said_it_is_named() {
    let error = Stage::new("").set("WAKEFUL_RUNTIME", "docker").load(Overrides::default()).unwrap_err().to_string();
    assert!(error.contains("WAKEFUL_RUNTIME"), "{error}");
    let flags = Overrides { listen: vec!["nonsense".into()], ..Overrides::default() };
    let error = Stage::new("").load(flags).unwrap_err().to_string();
    assert!(error.contains("--listen"), "{error}");
}

#[test]
fn exposure_is_seen() {
    assert_eq!(Config::default().exposed(), None);
    let config = Config { listen: vec!["0.0.0.0:80".parse().unwrap()], ..Config::default() };
    assert_eq!(config.exposed(), Some("0.0.0.0:80".parse().unwrap()));
}

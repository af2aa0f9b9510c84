//! A program inside that holds things, and the way to it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use wakeful_driver::{Engine, Machine};
use wakeful_driver_contract::{Lab, Sandbox, shell};
use wakeful_guest_client::{Exec, Guest};
use wakeful_net::GUEST;

use crate::lab::{GvisorLab, MACHINE};

const PORT: u16 = 9000;
const SOON: Duration = Duration::from_secs(30);

/// A sandbox that runs, with the program in it.
pub(crate) async fn started(lab: &Arc<GvisorLab>, name: &str) -> (Sandbox, Arc<dyn Engine>, Guest) {
    started_as(lab, name, MACHINE).await
}

/// The same, on another machine.
pub(crate) async fn started_as(
    lab: &Arc<GvisorLab>,
    name: &str,
    machine: Machine,
) -> (Sandbox, Arc<dyn Engine>, Guest) {
    let whole: Arc<dyn Lab> = Arc::clone(lab) as Arc<dyn Lab>;
    let mut sandbox = Sandbox::new(&whole, name);
    sandbox.machine = machine;
    let engine = sandbox.first().await.expect("can be started");
    let guest = sandbox.go(&*engine).await;
    put(&guest, "/root/survivors.py", include_bytes!("survivors.py").to_vec()).await;
    shell(&guest, "python3 -u /root/survivors.py > /root/said 2>&1 < /dev/null &").await;
    (sandbox, engine, guest)
}

/// Writes a program into the guest.
pub(crate) async fn put(guest: &Guest, path: &str, content: Vec<u8>) {
    let write = Exec { stdin: Some(content.into()), ..Exec::shell(format!("cat > {path} && chmod 755 {path}")) };
    let done = guest.exec(&write).await.expect("it runs");
    assert_eq!(done.exit_code, 0, "{}", String::from_utf8_lossy(&done.stderr));
}

/// The host's own program with its libraries, in `/opt`: templates have none. It is of the same Debian, so what comes with the
/// system's C library is there.
pub(crate) async fn put_program(guest: &Guest, name: &str) {
    shell(guest, &format!("mkdir -p /opt/{name}")).await;
    let program = Path::new("/usr/bin").join(name);
    let content = fs::read(&program).unwrap_or_else(|error| panic!("`make test` installs {name}: {error}"));
    put(guest, &format!("/opt/{name}/{name}"), content).await;
    let listed = tokio::process::Command::new("ldd").arg(&program).output().await.expect("ldd is there");
    let listed = String::from_utf8(listed.stdout).expect("is text");
    let system = ["ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so"];
    let own = |path: &&str| path.starts_with('/') && !system.iter().any(|name| path.contains(name));
    for library in listed.split_ascii_whitespace().filter(own) {
        let file = Path::new(library).file_name().expect("a file").to_string_lossy().into_owned();
        put(guest, &format!("/opt/{name}/{file}"), fs::read(library).expect("is there")).await;
    }
}

/// A connection to the program, from the gateway.
pub(crate) async fn connect(lab: &GvisorLab) -> TcpStream {
    let dial = async {
        loop {
            let socket = std::net::TcpStream::from(lab.slot().tcp_socket().expect("a socket"));
            let socket = TcpSocket::from_std_stream(socket);
            let dialled = socket.connect(SocketAddr::from((GUEST, PORT)));
            if let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(500), dialled).await {
                return stream;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, dial).await.expect("it listens")
}

/// Asks the program.
pub(crate) async fn ask(lab: &GvisorLab, question: Value) -> Result<Value, String> {
    let asked = async {
        let mut stream = connect(lab).await;
        stream.write_all(format!("{question}\n").as_bytes()).await.map_err(|error| error.to_string())?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.map_err(|error| error.to_string())?;
        let said: Value = serde_json::from_slice(&said).map_err(|error| error.to_string())?;
        match said.get("error") {
            Some(error) => Err(error.to_string()),
            None => Ok(said["said"].clone()),
        }
    };
    tokio::time::timeout(2 * SOON, asked).await.map_err(|_| "no answer".to_owned())?
}

/// Has it hold or check something.
pub(crate) async fn tell(lab: &GvisorLab, op: &str, what: &str) {
    let done = ask(lab, json!({"op": op, "what": what})).await;
    assert_eq!(done, Ok(Value::Null), "{op} {what}");
}

//! The listeners: the inner HTTP/1.1 surface, and the channel over a socket where there is no virtio port.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use wakeful_guest_proto::contact::{self, Reader, Repair};
use wakeful_guest_proto::hello::{self, Hello, Scanner, Side};

use crate::channel::last_hello;
use crate::context::Context;
use crate::control;
use crate::routes;
use crate::session::{self, Session};

/// A dialler that does not say hello in this time is not the host; the next one gets its turn.
const HELLO: Duration = Duration::from_secs(2);
/// Connections of programs inside at one time.
const INSIDE: usize = 128;
/// A head that takes longer is not coming.
const HEAD: Duration = Duration::from_secs(30);
/// After a failed accept, which mostly means that descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);

/// Where hosts dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// A unix socket, made by us.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// Serves one host after the other on a socket. The same hello as on a port, since on some engines any process inside
/// can dial here.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) async fn door(context: Arc<Context>, door: &Door) -> io::Result<()> {
    match door {
        Door::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => host(&context, stream).await,
                    Err(_) => sleep(PAUSE).await,
                }
            }
        }
        Door::Tcp(address) => {
            let listener = TcpListener::bind(address).await?;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let _ = stream.set_nodelay(true);
                        host(&context, stream).await;
                    }
                    Err(_) => sleep(PAUSE).await,
                }
            }
        }
    }
}

async fn host<S>(context: &Arc<Context>, mut stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok(Ok(hello)) = timeout(HELLO, greet(context, &mut stream)).await else { return };
    let mut first = Vec::new();
    if hello.protocol >= contact::SINCE {
        match first_contact(context, &mut stream).await {
            Ok(bytes) => first = bytes,
            // It hung up, or speaks nonsense: it is gone.
            Err(_) => return,
        }
    }
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(io::Cursor::new(first).chain(reader), writer);
    session::serve(stream, Arc::clone(context), Arc::new(Session::default())).await;
}

/// Does what the host asks for before its session, and gives what came of that already.
async fn first_contact<S: AsyncRead + AsyncWrite + Unpin>(context: &Context, stream: &mut S) -> io::Result<Vec<u8>> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
    let (mut reader, mut within, mut buffer) = (Reader::default(), false, vec![0; 16 * 1024]);
    loop {
        let n = stream.read(&mut buffer).await?;
        match buffer[..n].first() {
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(first) if !within && *first != contact::ASK => return Ok(buffer[..n].to_vec()),
            Some(_) => {}
        }
        let fed = reader.feed(contact::ASK, &buffer[..n]).map_err(invalid)?;
        within = fed.is_none();
        let Some((body, used)) = fed else { continue };
        if used != n {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let ask = Repair::decode(&body).map_err(invalid)?;
        let outcome = control::repair(context, &ask).await.map_err(control::Refusal::text);
        stream.write_all(&contact::encode_outcome(&outcome)).await?;
    }
}

/// Throws everything away until a valid hello is the last thing that came, and answers it.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(context: &Context, stream: &mut S) -> io::Result<Hello> {
    let mut scanner = Scanner::new(Side::Host);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(said) = last_hello(&mut scanner, &context.secret(), &buffer[..n]) {
            let answer = Hello { nonce: said.nonce, protocol: hello::PROTOCOL };
            stream.write_all(&hello::encode(Side::Agent, &context.secret(), &answer)).await?;
            return Ok(said);
        }
    }
}

/// The surface for programs inside, which know it from other sandboxes: HTTP/1.1, without the control routes.
///
/// # Errors
/// When the address cannot be bound.
pub(crate) async fn inside(context: Arc<Context>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let places = Arc::new(Semaphore::new(INSIDE));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let context = Arc::clone(&context);
                context.tasks.clone().spawn(async move {
                    program(context, stream).await;
                    drop(place);
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn program(context: Arc<Context>, stream: TcpStream) {
    let service = service_fn(move |request| {
        let answer = routes::inside(Arc::clone(&context), request);
        async move { Ok::<_, io::Error>(answer.await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // It broke off or spoke nonsense; it knows that itself.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

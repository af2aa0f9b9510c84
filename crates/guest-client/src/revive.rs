//! The first contact with a guest whose memory was just loaded: hello, and what it must be told before it counts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use wakeful_guest_proto::contact::{self, Reader, Repair};
use wakeful_guest_proto::control::RestoreAnswer;

use crate::connect::say_hello;
use crate::{Error, Guest};

const CONFIRM: &str = "confirm the restore";

/// A guest that was put right, and how long that took.
#[derive(Debug)]
pub struct Revived {
    /// The channel.
    pub guest: Guest,
    /// What the agent said about the first setting.
    pub answer: RestoreAnswer,
    /// Until the hello was answered.
    pub hello: Duration,
    /// Until the guest knew who it is.
    pub first: Duration,
    /// Until its clock was right.
    pub all: Duration,
}

impl Guest {
    /// Says hello as [`connect`](Guest::connect) does, then sets clock, entropy and whatever `identity` names. Time and
    /// entropy are filled in here, twice: the first setting after a load is 10 to 30 ms late, because it runs cold code;
    /// the second is right. An agent of protocol 1 gets the same by its control route.
    ///
    /// # Errors
    /// [`Error::Hello`] and [`Error::Io`] as `connect`: nothing was told yet. Any other: the guest must not be used, and it
    /// may know the new secret already.
    ///
    /// # Cancel safety
    /// Dropping the future closes the stream.
    pub async fn revive<S>(
        mut stream: S,
        secret: &[u8; 32],
        hello: Duration,
        confirm: Duration,
        identity: Repair,
    ) -> Result<Revived, Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let began = Instant::now();
        let (protocol, early) = say_hello(&mut stream, secret, hello).await?;
        let hello = began.elapsed();
        if protocol < contact::SINCE {
            let guest = Self::begin(stream, early, protocol).await?;
            let answer = guest.restore(&now(identity)?.to_restore()).await?;
            let first = began.elapsed();
            guest.restore(&now(clock_only())?.to_restore()).await?;
            return Ok(Revived { guest, answer, hello, first, all: began.elapsed() });
        }
        if !early.is_empty() {
            return Err(Error::Protocol { detail: "it spoke before it was asked".to_owned() });
        }
        let answer = tell(&mut stream, &now(identity)?, confirm).await?;
        let first = began.elapsed();
        tell(&mut stream, &now(clock_only())?, confirm).await?;
        let all = began.elapsed();
        let guest = Self::begin(stream, Bytes::new(), protocol).await?;
        Ok(Revived { guest, answer, hello, first, all })
    }
}

fn clock_only() -> Repair {
    Repair::new(0, [0; 64])
}

/// With the time of this moment, and entropy that nobody has seen.
fn now(mut repair: Repair) -> Result<Repair, Error> {
    let failed = |source| Error::Io { attempted: "get random bytes for the guest", source };
    getrandom::fill(&mut repair.entropy).map_err(|error| failed(std::io::Error::other(error.to_string())))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    repair.time_unix_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    Ok(repair)
}

/// One message, one answer.
async fn tell<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    repair: &Repair,
    deadline: Duration,
) -> Result<RestoreAnswer, Error> {
    let broken = |detail: &str| Error::Protocol { detail: detail.to_owned() };
    let exchange = async {
        stream.write_all(&repair.encode()).await.map_err(|_| Error::Lost)?;
        stream.flush().await.map_err(|_| Error::Lost)?;
        let (mut reader, mut buffer) = (Reader::default(), [0; 4096]);
        loop {
            let n = stream.read(&mut buffer).await.map_err(|_| Error::Lost)?;
            if n == 0 {
                return Err(Error::Lost);
            }
            let fed = reader.feed(contact::ANSWER, &buffer[..n]).map_err(|error| broken(&error.to_string()))?;
            let Some((body, used)) = fed else { continue };
            if used != n {
                return Err(broken("it said more than it was asked"));
            }
            let outcome = contact::decode_outcome(&body).map_err(|error| broken(&error.to_string()))?;
            return outcome.map_err(|why| Error::refused_because(&why));
        }
    };
    timeout(deadline, exchange).await.map_err(|_| Error::Late { attempted: CONFIRM, after: deadline })?
}

//! What a master says of itself in its answer to a handshake, asked on a connection of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use epochlog_engine::{Epoch, Offset};
use epochlog_ha::{FrameFromMaster, HandshakeAnswerForm, MasterFrameDecoder, SlaveHandshake};

/// Longer than a master takes that has just been elected.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probed {
    /// The end of its log.
    pub(super) end: Offset,
    /// The last epoch of its list.
    pub(super) last_epoch: Option<Epoch>,
}

/// Asks the master at `addr`, which answers `hello` in this form.
///
/// # Errors
/// It cannot be reached, or what comes back is no answer.
pub(super) fn probe(
    addr: SocketAddr,
    hello: &SlaveHandshake,
    form: HandshakeAnswerForm,
) -> io::Result<Probed> {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&hello.encode())?;
    let give_up = Instant::now() + PATIENCE;
    let mut decoder = MasterFrameDecoder::new(form);
    let mut bytes = vec![0; 64 << 10];
    loop {
        let left = give_up.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let wanted = decoder.wanted().min(bytes.len());
        let n = stream.read(&mut bytes[..wanted])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let decoded = decoder
            .push(&bytes[..n])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(FrameFromMaster::Handshake(answer)) = decoded.frame {
            return Ok(Probed {
                end: answer.end,
                last_epoch: answer.entries.last().map(|entry| entry.epoch),
            });
        }
    }
}

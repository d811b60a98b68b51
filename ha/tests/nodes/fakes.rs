//! A slave and a master made of a bare socket: they say what the test makes them say.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use epochlog_engine::EpochEntry;
use epochlog_ha::{
    BOTH_OFFSETS_REPORT_LEN, Capabilities, Extension, FrameFromMaster, FrameFromSlave,
    HandshakeAnswer, HandshakeAnswerForm, MasterFrameDecoder, REPORT_LEN, SLAVE_HANDSHAKE_LEN,
    SlaveFrameDecoder, SlaveHandshake, SlaveIdentity, TransferHeader,
};
use socket2::SockRef;

/// Ends a connection wherever it stands: in order, or with a reset.
fn break_off(stream: &TcpStream, resets: bool) {
    if resets {
        SockRef::from(stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    } else {
        // It may be over already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

pub(crate) struct FakeSlave {
    stream: TcpStream,
    decoder: MasterFrameDecoder,
    /// It says and reads single bytes.
    dribbles: bool,
}

impl FakeSlave {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        Self {
            stream,
            decoder: MasterFrameDecoder::new(HandshakeAnswerForm::Short),
            dribbles: false,
        }
    }

    /// From now on it says and reads single bytes.
    pub(crate) fn dribbles(&mut self) {
        self.stream.set_nodelay(true).unwrap();
        self.dribbles = true;
    }

    pub(crate) fn break_off(self, resets: bool) {
        break_off(&self.stream, resets);
    }

    /// Connected, with the handshake answered.
    pub(crate) fn joined(addr: SocketAddr, id: u64) -> Self {
        let mut slave = Self::connect(addr);
        slave.hello(id);
        assert!(matches!(
            slave.frame(),
            Some((FrameFromMaster::Handshake(_), _))
        ));
        slave
    }

    /// The same as a slave of ours.
    pub(crate) fn joined_extended(addr: SocketAddr, id: u64, asks: Capabilities) -> Self {
        let mut slave = Self::connect(addr);
        slave.decoder = MasterFrameDecoder::new(HandshakeAnswerForm::Short).asking(Some(asks));
        slave.hello_asking(id, Some(asks));
        assert!(matches!(
            slave.frame(),
            Some((FrameFromMaster::Handshake(_), _))
        ));
        assert_eq!(slave.decoder.agreed(), asks);
        slave
    }

    pub(crate) fn report_both(&mut self, published: u64, flushed: u64) {
        self.say(&FrameFromSlave::encode_report_of_both(published, flushed));
    }

    pub(crate) fn hello(&mut self, id: u64) {
        self.hello_asking(id, None);
    }

    fn hello_asking(&mut self, id: u64, asks: Option<Capabilities>) {
        let handshake = SlaveHandshake {
            sync_from_last_file: false,
            async_learner: false,
            identity: SlaveIdentity::BrokerId(id),
            asks,
        };
        self.say(&handshake.encode());
    }

    pub(crate) fn report(&mut self, offset: u64) {
        self.say(&FrameFromSlave::encode_report(offset));
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let piece = if self.dribbles { 1 } else { bytes.len() };
        for piece in bytes.chunks(piece.max(1)) {
            self.stream.write_all(piece).unwrap();
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let piece = if self.dribbles { 1 } else { bytes.len() };
        let mut pieces = bytes.chunks_mut(piece.max(1));
        pieces.try_for_each(|piece| self.stream.read_exact(piece))
    }

    pub(crate) fn quiet_for(&mut self, time: Duration) {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let error = self.stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        self.stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
    }

    /// The next frame and its body; none when the connection is over.
    pub(crate) fn frame(&mut self) -> Option<(FrameFromMaster, Vec<u8>)> {
        loop {
            let mut bytes = vec![0; self.decoder.wanted()];
            self.fill(&mut bytes).ok()?;
            if let Some(frame) = self.decoder.push(&bytes).unwrap().frame {
                let len = match &frame {
                    FrameFromMaster::Transfer(header) => header.body_len as usize,
                    FrameFromMaster::Handshake(_) => 0,
                };
                let mut body = vec![0; len];
                self.fill(&mut body).ok()?;
                return Some((frame, body));
            }
        }
    }

    /// Takes frames until the log is there up to `end`.
    pub(crate) fn read_to(&mut self, end: u64) {
        loop {
            let Some((FrameFromMaster::Transfer(header), _)) = self.frame() else {
                panic!("the connection ended before {end}");
            };
            if header.offset.unwrap() + u64::from(header.body_len) >= end {
                return;
            }
        }
    }

    /// Waits for the end of the connection, whatever comes before.
    pub(crate) fn expect_end(&mut self) {
        while self.frame().is_some() {}
        let mut byte = [0; 1];
        match self.stream.read(&mut byte) {
            Ok(0) => (),
            Ok(_) => panic!("the connection goes on"),
            Err(error) => assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "it stays open"),
        }
    }
}

pub(crate) struct FakeMaster {
    listener: TcpListener,
}

pub(crate) struct FakeMasterConnection {
    stream: TcpStream,
    decoder: SlaveFrameDecoder,
    agreed: Capabilities,
}

impl FakeMaster {
    pub(crate) fn listen() -> Self {
        Self {
            listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Takes the slave's next connection and its handshake, and answers it.
    pub(crate) fn join(&self, end: u64, entries: &[(u32, u64)]) -> FakeMasterConnection {
        self.join_as(end, entries, None)
    }

    /// The same, as a master of ours that says this of itself.
    pub(crate) fn join_as(
        &self,
        end: u64,
        entries: &[(u32, u64)],
        extension: Option<Extension>,
    ) -> FakeMasterConnection {
        let (stream, _) = self.listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut conn = FakeMasterConnection {
            stream,
            decoder: SlaveFrameDecoder::new(false),
            agreed: extension.map_or(Capabilities::NONE, |it| it.capabilities),
        };
        conn.decoder.agree(conn.agreed);
        let mut hello = [0; SLAVE_HANDSHAKE_LEN];
        conn.stream.read_exact(&mut hello).unwrap();
        let frame = conn.decoder.push(&hello).unwrap().frame;
        let Some(FrameFromSlave::Handshake(hello)) = frame else {
            panic!("{frame:?}");
        };
        assert!(hello.asks.is_some(), "our slave asks for the extension");
        let entries: Vec<_> = entries
            .iter()
            .map(|(epoch, start)| EpochEntry {
                epoch: *epoch,
                start: *start,
            })
            .collect();
        let answer = match &extension {
            Some(extension) => HandshakeAnswer::encode_extended(end, &entries, extension),
            None => HandshakeAnswer::encode(end, &entries, HandshakeAnswerForm::Short),
        };
        conn.say(&answer.unwrap());
        conn
    }
}

impl FakeMasterConnection {
    pub(crate) fn break_off(self, resets: bool) {
        break_off(&self.stream, resets);
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// A frame as Java's master sends it.
    pub(crate) fn frame(offset: u64, epoch: (u32, u64), body: &[u8]) -> Vec<u8> {
        let header = TransferHeader {
            body_len: u32::try_from(body.len()).unwrap(),
            offset: Some(offset),
            epoch: epoch.0,
            epoch_start: epoch.1,
            confirm: Some(0),
        };
        [&header.encode()[..], body].concat()
    }

    pub(crate) fn transfer(&mut self, offset: u64, epoch: (u32, u64), body: &[u8]) {
        let header = TransferHeader {
            body_len: u32::try_from(body.len()).unwrap(),
            offset: Some(offset),
            epoch: epoch.0,
            epoch_start: epoch.1,
            confirm: Some(0),
        };
        // In one piece: the slave may end the connection at the header.
        let frame = match self.agreed.contains(Capabilities::CHECKSUM) {
            true => [&header.encode_checked(body)[..], body].concat(),
            false => [&header.encode()[..], body].concat(),
        };
        self.say(&frame);
    }

    /// A frame whose body was changed on its way, in its byte `at`.
    pub(crate) fn transfer_changed(
        &mut self,
        offset: u64,
        epoch: (u32, u64),
        body: &[u8],
        at: usize,
    ) {
        let header = TransferHeader {
            body_len: u32::try_from(body.len()).unwrap(),
            offset: Some(offset),
            epoch: epoch.0,
            epoch_start: epoch.1,
            confirm: Some(0),
        };
        let head = header.encode_checked(body);
        let mut body = body.to_vec();
        body[at] ^= 1;
        self.say(&[&head[..], &body].concat());
    }

    /// The next report; none when the connection is over.
    pub(crate) fn report(&mut self) -> Option<u64> {
        let both = self.agreed.contains(Capabilities::BOTH_OFFSETS);
        let mut bytes = vec![
            0;
            if both {
                BOTH_OFFSETS_REPORT_LEN
            } else {
                REPORT_LEN
            }
        ];
        self.stream.read_exact(&mut bytes).ok()?;
        match self.decoder.push(&bytes).unwrap().frame {
            Some(FrameFromSlave::Report(offset)) => Some(offset),
            Some(FrameFromSlave::ReportBoth { published, .. }) => Some(published),
            other => panic!("{other:?}"),
        }
    }
}

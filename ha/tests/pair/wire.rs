//! One slave's wire to its master: both machines, the bytes under way, and the loop around each.

use std::collections::VecDeque;

use epochlog_engine::EpochList;
use epochlog_ha::{
    Capabilities, Decision, FrameChecksum, FrameFromSlave, HandshakeAnswerForm, Heard, Joined,
    LogId, MasterConnection, MasterConnectionConfig, MasterFrameDecoder, MasterLog, MasterSend,
    MasterSide, SlaveAction, SlaveConnection, SlaveConnectionConfig, SlaveFrameDecoder,
    SlaveHandshake, SlaveIdentity, SlaveSide, TransferHeader, decide,
};

use crate::node::{Node, RECORD_LEN, SEGMENT_SIZE};

/// Far beyond what a schedule sends: the machines' limits are for other tests.
const WIRE_LEN: usize = 4096;

enum Takes {
    Header,
    Body(usize),
    Compare(usize, usize),
}

struct Open {
    master: MasterConnection,
    from_slave: SlaveFrameDecoder,
    from_master: MasterFrameDecoder,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    takes: Takes,
    part: Vec<u8>,
    checksum: Option<FrameChecksum>,
}

impl Open {
    fn frame(&mut self, head: &TransferHeader, body: &[u8]) {
        match self.master.agreed().contains(Capabilities::CHECKSUM) {
            true => self.down.extend(head.encode_checked(body)),
            false => self.down.extend(head.encode()),
        }
        self.down.extend(body);
    }
}

/// One of the three slaves is a peer of Java's, as far as its frames go.
fn asks(id: u64) -> Option<Capabilities> {
    (id != 1).then_some(Capabilities::ALL)
}

pub(crate) struct Wire {
    id: u64,
    slave: SlaveConnection,
    open: Option<Open>,
    master_epochs: EpochList,
}

impl Wire {
    pub(crate) fn new(id: u64, now: u64) -> Self {
        let config = SlaveConnectionConfig {
            handshake: SlaveHandshake {
                sync_from_last_file: false,
                async_learner: false,
                identity: SlaveIdentity::BrokerId(id),
                asks: None,
            },
            log_id: LogId::UNKNOWN,
            segment_size: SEGMENT_SIZE,
            heartbeat_interval_ms: 50,
            housekeeping_interval_ms: 100_000,
            reconnect_min_ms: 1,
            reconnect_max_ms: 10,
            report_flushed: false,
        };
        let slave = SlaveConnection::new(config, now);
        Self {
            id,
            slave,
            open: None,
            master_epochs: EpochList::new(),
        }
    }

    /// The connection breaks: bytes under way are gone, what was not published is erased.
    pub(crate) fn cut(&mut self, node: &mut Node, now: u64) {
        if self.open.take().is_some() {
            node.window.clear();
            self.slave.closed(now, self.id);
        }
    }

    pub(crate) fn step(
        &mut self,
        master: &mut Node,
        node: &mut Node,
        epoch: u32,
        pieces: [u64; 2],
        now: u64,
    ) {
        self.slave.tick(now);
        self.act(node, now);
        if !self.serve(master, node, epoch, pieces[0], now) {
            self.cut(node, now);
        }
        self.deliver(node, pieces[1], now);
        self.act(node, now);
    }

    /// The master's loop. Returns false when it ends the connection.
    fn serve(&mut self, log: &Node, slave: &Node, epoch: u32, piece: u64, now: u64) -> bool {
        let Some(open) = &mut self.open else {
            return true;
        };
        let view = MasterLog {
            epochs: &log.epochs,
            bounds: log.bounds(),
            confirm: 0,
            serving: Some(epoch),
        };
        let n = usize::try_from(piece).unwrap().min(open.up.len());
        let bytes: Vec<u8> = open.up.drain(..n).collect();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            open.master.heard(now);
            let decoded = open.from_slave.push(rest).unwrap();
            rest = &rest[decoded.consumed..];
            let Some(frame) = decoded.frame else { continue };
            match open.master.frame(frame, &view).unwrap() {
                Heard::Nothing | Heard::Started { .. } => (),
                Heard::Acked { offset, .. } => {
                    let upto = usize::try_from(offset).unwrap();
                    assert_eq!(slave.log[..upto], log.log[..upto], "an ack of {offset}");
                }
            }
        }
        if open.down.len() > WIRE_LEN {
            return true;
        }
        match open.master.next_send(&view, now) {
            Ok(None) => (),
            Ok(Some(MasterSend::Handshake(bytes))) => open.down.extend(bytes),
            Ok(Some(MasterSend::Heartbeat(head))) => open.frame(&head, &[]),
            Ok(Some(MasterSend::Transfer(head, batch))) => {
                let from = usize::try_from(batch.offset).unwrap();
                open.frame(&head, &log.log[from..from + batch.len as usize]);
            }
            Err(reason) => panic!("the master ends the connection: {reason}"),
        }
        open.from_slave.agree(open.master.agreed());
        open.master.sent();
        true
    }

    /// The slave's receives.
    fn deliver(&mut self, node: &mut Node, piece: u64, now: u64) {
        let mut left = usize::try_from(piece).unwrap();
        while left > 0 {
            self.act(node, now);
            let Some(open) = &mut self.open else { return };
            let wanted = match open.takes {
                Takes::Header => open.from_master.wanted(),
                Takes::Body(len) | Takes::Compare(_, len) => len - open.part.len(),
            };
            let n = wanted.min(left).min(open.down.len());
            if n == 0 {
                return;
            }
            left -= n;
            let bytes: Vec<u8> = open.down.drain(..n).collect();
            if let (Some(checksum), Takes::Body(_) | Takes::Compare(..)) =
                (&mut open.checksum, &open.takes)
            {
                checksum.add(&bytes);
                checksum.check().unwrap();
            }
            self.slave.heard(now);
            match open.takes {
                Takes::Header => {
                    if let Some(frame) = open.from_master.push(&bytes).unwrap().frame {
                        open.checksum = open.from_master.checksum();
                        self.slave.frame(frame);
                    }
                }
                Takes::Body(len) => {
                    open.part.extend(bytes);
                    if open.part.len() == len {
                        open.takes = Takes::Header;
                        node.receive(&std::mem::take(&mut open.part));
                        self.slave.received(node.end(), now);
                    }
                }
                Takes::Compare(at, len) => {
                    open.part.extend(bytes);
                    if open.part.len() == len {
                        open.takes = Takes::Header;
                        // Epochs that tell the truth leave nothing to find here.
                        assert_eq!(open.part[..], node.log[at..at + len], "compared at {at}");
                        open.part.clear();
                        self.slave.compared(now);
                    }
                }
            }
        }
    }

    /// The slave's actions, until one waits for bytes.
    fn act(&mut self, node: &mut Node, now: u64) {
        loop {
            let waits = self
                .open
                .as_ref()
                .is_some_and(|it| !matches!(it.takes, Takes::Header));
            if waits && !self.slave.must_close() {
                return;
            }
            let Some(action) = self.slave.next_action(now) else {
                return;
            };
            self.perform(action, node, now);
        }
    }

    fn perform(&mut self, action: SlaveAction, node: &mut Node, now: u64) {
        match action {
            SlaveAction::Connect => {
                let form = HandshakeAnswerForm::Short;
                let config = MasterConnectionConfig {
                    transfer_batch_size: 50,
                    extended_batch_size: 200,
                    max_unacked_bytes: 300,
                    extension: Some(Capabilities::ALL),
                    log_id: LogId::UNKNOWN,
                    heartbeat_interval_ms: 50,
                    housekeeping_interval_ms: 100_000,
                    handshake_wait_ms: 100_000,
                    answer_form: form,
                };
                self.open = Some(Open {
                    master: MasterConnection::new(config, now),
                    from_slave: SlaveFrameDecoder::new(false),
                    from_master: MasterFrameDecoder::new(form).asking(asks(self.id)),
                    up: VecDeque::new(),
                    down: VecDeque::new(),
                    takes: Takes::Header,
                    part: Vec::new(),
                    checksum: None,
                });
                self.slave.connected(now);
            }
            SlaveAction::SendHandshake => {
                let identity = SlaveIdentity::BrokerId(self.id);
                let hello = SlaveHandshake {
                    sync_from_last_file: false,
                    async_learner: false,
                    identity,
                    asks: asks(self.id),
                };
                self.up(&hello.encode());
            }
            SlaveAction::Report(offset) => self.report(offset),
            SlaveAction::Decide { answer, lookback } => {
                assert!(node.window.is_empty());
                self.master_epochs = EpochList::from_entries(answer.entries).unwrap();
                let decision = self.decide(node, answer.end);
                let Decision { point, epochs, .. } = decision;
                node.log.truncate(usize::try_from(point).unwrap());
                node.epochs = epochs;
                node.check_labels();
                let last = point.checked_sub(RECORD_LEN as u64);
                let joined = Joined {
                    end: point,
                    is_empty: point == 0,
                    last_epoch: node.epochs.last(),
                    overlap_from: lookback.begin(point, 0, || last),
                    overlap_floor: 0,
                };
                self.slave.decided(joined, now);
            }
            SlaveAction::AdoptEpoch(entry) => {
                assert!(node.window.is_empty(), "no epoch begins inside a record");
                assert_eq!(entry.start, node.end());
                node.epochs.append(entry).unwrap();
            }
            SlaveAction::Receive { len } => self.takes(Takes::Body(len as usize)),
            SlaveAction::Compare { at, len } => {
                let at = usize::try_from(at).unwrap();
                self.takes(Takes::Compare(at, len as usize));
            }
            SlaveAction::Confirm(_) => (),
            SlaveAction::Close(reason) => panic!("the slave ends the connection: {reason}"),
            SlaveAction::StartAt(_) | SlaveAction::Cut(_) => panic!("{action:?}"),
        }
    }

    fn decide(&self, node: &Node, master_end: u64) -> Decision {
        let slave = SlaveSide {
            epochs: &node.epochs,
            min: 0,
            end: node.end(),
            role_epoch: None,
        };
        let master = MasterSide {
            epochs: &self.master_epochs,
            end: master_end,
            role_epoch: None,
        };
        decide(slave, master, |point| {
            point.is_multiple_of(RECORD_LEN as u64)
        })
        .unwrap()
    }

    fn report(&mut self, offset: u64) {
        match self.slave.reports_both() {
            true => self.up(&FrameFromSlave::encode_report_of_both(offset, offset)),
            false => self.up(&FrameFromSlave::encode_report(offset)),
        }
    }

    fn up(&mut self, bytes: &[u8]) {
        if let Some(open) = &mut self.open {
            open.up.extend(bytes);
        }
    }

    fn takes(&mut self, takes: Takes) {
        if let Some(open) = &mut self.open {
            open.takes = takes;
        }
    }
}

//! Every frame of real RocketMQ sessions, both ways, decoded and encoded again to the same bytes.
//! `fixtures/ha-sessions/<release>/` holds what one connection carried; no JVM is needed.

use std::path::PathBuf;

use epochlog_ha::{
    FrameFromMaster, FrameFromSlave, HandshakeAnswer, HandshakeAnswerForm, MasterFrameDecoder,
    SlaveFrameDecoder, SlaveIdentity, TransferHeader,
};

fn tape(release: &str, name: &str) -> Vec<u8> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/ha-sessions");
    std::fs::read(dir.join(release).join(name)).expect("a recorded session")
}

/// Frames of a slave, and their bytes encoded anew.
fn from_slave(bytes: &[u8], by_address: bool) -> (Vec<FrameFromSlave>, Vec<u8>) {
    let mut decoder = SlaveFrameDecoder::new(by_address);
    let (mut frames, mut again, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        let got = decoder.push(&bytes[at..]).expect("a frame of RocketMQ");
        at += got.consumed;
        let frame = got.frame.expect("the tape ends with a whole frame");
        match &frame {
            FrameFromSlave::Handshake(handshake) => again.extend(handshake.encode()),
            FrameFromSlave::Report(offset) => {
                again.extend_from_slice(&FrameFromSlave::encode_report(*offset));
            }
            FrameFromSlave::ReportBoth { .. } => panic!("{frame:?} from a RocketMQ slave"),
        }
        frames.push(frame);
    }
    (frames, again)
}

struct FromMaster {
    answer: HandshakeAnswer,
    headers: Vec<TransferHeader>,
    log: Vec<u8>,
    again: Vec<u8>,
}

fn from_master(bytes: &[u8], form: HandshakeAnswerForm) -> FromMaster {
    let mut decoder = MasterFrameDecoder::new(form);
    let (mut answer, mut headers) = (None, Vec::new());
    let (mut log, mut again, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        let got = decoder.push(&bytes[at..]).expect("a frame of RocketMQ");
        at += got.consumed;
        match got.frame.expect("the tape ends with a whole frame") {
            FrameFromMaster::Handshake(table) => {
                assert!(answer.is_none(), "one answer on one connection");
                let encoded = HandshakeAnswer::encode(table.end, &table.entries, form);
                again.extend(encoded.expect("it fits"));
                answer = Some(table);
            }
            FrameFromMaster::Transfer(header) => {
                again.extend_from_slice(&header.encode());
                let body = &bytes[at..at + header.body_len as usize];
                again.extend_from_slice(body);
                log.extend_from_slice(body);
                at += body.len();
                headers.push(header);
            }
        }
    }
    FromMaster {
        answer: answer.expect("an answer to the handshake"),
        headers,
        log,
        again,
    }
}

/// `address`: what the slave says of itself in releases that know no ids.
fn check(release: &str, form: HandshakeAnswerForm, by_address: bool) {
    let bytes = tape(release, "from-slave");
    let (frames, again) = from_slave(&bytes, by_address);
    assert_eq!(again, bytes, "{release}: the slave's frames");
    let FrameFromSlave::Handshake(handshake) = &frames[0] else {
        panic!("{release}: {:?}", frames[0]);
    };
    assert!(!handshake.sync_from_last_file && !handshake.async_learner);
    match &handshake.identity {
        SlaveIdentity::BrokerId(id) => assert_eq!((*id, by_address), (2, false)),
        SlaveIdentity::Address(text) => assert_eq!((&text[..], by_address), ("127.0.0.1:2", true)),
    }
    let reports: Vec<u64> = frames[1..]
        .iter()
        .map(|frame| match frame {
            FrameFromSlave::Report(offset) => *offset,
            other => panic!("{release}: {other:?} after the handshake"),
        })
        .collect();
    assert_eq!(reports[0], 0, "a new replica");
    assert!(reports.is_sorted());
    assert!(
        reports.windows(2).any(|pair| pair[0] == pair[1]),
        "{release}: a report repeated as heartbeat"
    );

    let bytes = tape(release, "from-master");
    let got = from_master(&bytes, form);
    assert_eq!(got.again, bytes, "{release}: the master's frames");
    let epochs: Vec<u32> = got.answer.entries.iter().map(|entry| entry.epoch).collect();
    assert_eq!(epochs, [1, 2], "{release}");
    let mut at = 0;
    for header in &got.headers {
        assert_eq!(header.offset, Some(at), "{release}: {header:?}");
        at += u64::from(header.body_len);
        let labelled = got
            .answer
            .entries
            .iter()
            .find(|it| it.epoch == header.epoch);
        assert_eq!(labelled.map(|it| it.start), Some(header.epoch_start));
    }
    assert!(at > got.answer.end, "{release}: live messages follow");
    assert_eq!(
        reports.last(),
        Some(&at),
        "{release}: all of it is acknowledged"
    );
    assert_eq!(got.log.len() as u64, at);
    assert!(
        got.headers.iter().any(|it| it.body_len == 0),
        "{release}: a heartbeat"
    );
}

#[test]
fn a_session_of_5_5_1() {
    check("5.5.1", HandshakeAnswerForm::Short, false);
}

#[test]
fn a_session_of_5_3_3() {
    check("5.3.3", HandshakeAnswerForm::Short, false);
}

#[test]
fn a_session_of_5_1_4() {
    check("5.1.4", HandshakeAnswerForm::Short, false);
}

#[test]
fn a_session_of_5_1_0_names_the_slave_by_its_address() {
    check("5.1.0", HandshakeAnswerForm::Short, true);
}

#[test]
fn a_session_of_5_0_0_has_the_long_answer_as_well() {
    check("5.0.0", HandshakeAnswerForm::Long, true);
}

//! Golden frames, every split, every changed byte; what Java's peers see of it.

use epochlog_engine::EpochEntry;

use super::*;
use crate::frame::{
    FrameFromMaster, FrameFromSlave, HandshakeAnswer, HandshakeAnswerForm, MasterFrameDecoder,
    SlaveFrameDecoder, SlaveHandshake, SlaveIdentity, TransferHeader,
};

const HELLO: &str = "00 00 00 01 ec 0f 00 00 00 00 00 00 00 00 00 02";
/// The last four bytes of these were computed by another program.
const ANSWER: &str = "00 00 00 01 00 00 00 18 00 00 00 00 00 00 10 00 80 ec 00 03 \
    00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 04 00 \
    00 00 00 20 00 00 00 07 00 00 00 00 40 00 00 00 \
    00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 32 76 9a eb";
const DATA: &str = "00 00 00 02 00 00 00 03 00 00 00 00 00 00 04 00 00 00 00 02 00 00 00 00 \
    00 00 04 00 00 00 00 00 00 00 03 84 00 43 52 d1 61 62 63";
const HEARTBEAT: &str = "00 00 00 02 00 00 00 00 00 00 00 00 00 00 10 00 00 00 00 02 \
    00 00 00 00 00 00 04 00 00 00 00 00 00 00 10 00 3e 36 0a 41";
const REPORT: &str = "00 00 00 02 00 00 00 00 00 00 04 00 00 00 00 00 00 00 03 84 51 ea 9f f9";

fn hex(text: &str) -> Vec<u8> {
    let bytes = text.split_whitespace();
    bytes.map(|b| u8::from_str_radix(b, 16).unwrap()).collect()
}

fn agreed() -> Capabilities {
    Capabilities::CHECKSUM.or(Capabilities::BOTH_OFFSETS)
}

fn extension() -> Extension {
    let mut log_id = LogId::UNKNOWN;
    for (value, byte) in (0..).zip(&mut log_id.0) {
        *byte = value;
    }
    Extension {
        capabilities: agreed(),
        role_epoch: 7,
        segment_size: 1 << 30,
        log_id,
    }
}

fn entries() -> Vec<EpochEntry> {
    let entry = |epoch, start| EpochEntry { epoch, start };
    vec![entry(1, 0), entry(2, 1024)]
}

fn header(body_len: u32, offset: u64, confirm: u64) -> TransferHeader {
    TransferHeader {
        body_len,
        offset: Some(offset),
        epoch: 2,
        epoch_start: 1024,
        confirm: Some(confirm),
    }
}

fn hello() -> SlaveHandshake {
    SlaveHandshake {
        sync_from_last_file: false,
        async_learner: false,
        identity: SlaveIdentity::BrokerId(2),
        asks: Some(Capabilities::ALL),
    }
}

fn asking() -> MasterFrameDecoder {
    MasterFrameDecoder::new(HandshakeAnswerForm::Short).asking(Some(Capabilities::ALL))
}

#[test]
fn the_frames_are_these_bytes() {
    assert_eq!(hello().encode(), hex(HELLO));
    let answer = HandshakeAnswer::encode_extended(4096, &entries(), &extension()).unwrap();
    assert_eq!(answer, hex(ANSWER));
    let data = header(3, 1024, 900).encode_checked(b"abc");
    assert_eq!([&data[..], b"abc"].concat(), hex(DATA));
    let beat = header(0, 4096, 4096).encode_checked(b"");
    assert_eq!(beat.to_vec(), hex(HEARTBEAT));
    let report = FrameFromSlave::encode_report_of_both(1024, 900);
    assert_eq!(report.to_vec(), hex(REPORT));
    assert_eq!(
        FrameFromSlave::encode_report_of_both(900, 1024)[4..20],
        FrameFromSlave::encode_report_of_both(900, 900)[4..20],
        "what is flushed and not published does not count"
    );
}

#[test]
fn they_are_read_back_however_they_are_cut() {
    let stream = [hex(ANSWER), hex(DATA), hex(HEARTBEAT)].concat();
    for piece in 1..stream.len() {
        let (mut decoder, mut frames, mut body) = (asking(), Vec::new(), 0);
        let mut checksum: Option<FrameChecksum> = None;
        for mut bytes in stream.chunks(piece) {
            while !bytes.is_empty() {
                if body > 0 {
                    let n = body.min(bytes.len());
                    checksum.as_mut().unwrap().add(&bytes[..n]);
                    (body, bytes) = (body - n, &bytes[n..]);
                    assert_eq!(checksum.unwrap().left() as usize, body);
                    checksum.unwrap().check().unwrap();
                    continue;
                }
                assert!(decoder.wanted() > 0);
                let got = decoder.push(bytes).unwrap();
                bytes = &bytes[got.consumed..];
                if let Some(FrameFromMaster::Transfer(header)) = &got.frame {
                    body = header.body_len as usize;
                    checksum = decoder.checksum();
                    assert!(checksum.is_some());
                }
                frames.extend(got.frame);
            }
        }
        let expect = [
            FrameFromMaster::Handshake(HandshakeAnswer {
                end: 4096,
                entries: entries(),
                extension: Some(extension()),
            }),
            FrameFromMaster::Transfer(header(3, 1024, 900)),
            FrameFromMaster::Transfer(header(0, 4096, 4096)),
        ];
        assert_eq!(frames, expect, "pieces of {piece}");
        assert_eq!(decoder.agreed(), agreed());
    }
    // Reading what is wanted never takes a byte of what follows.
    let (mut decoder, mut at) = (asking(), 0);
    while decoder.agreed() == Capabilities::NONE {
        let n = decoder.wanted();
        decoder.push(&stream[at..at + n]).unwrap();
        at += n;
    }
    assert_eq!(at, hex(ANSWER).len());
    assert_eq!(decoder.wanted(), 40);

    let stream = [hex(HELLO), hex(REPORT), hex(REPORT)].concat();
    for piece in 1..stream.len() {
        let (mut decoder, mut frames) = (SlaveFrameDecoder::new(false), Vec::new());
        for mut bytes in stream.chunks(piece) {
            while !bytes.is_empty() {
                let got = decoder.push(bytes).unwrap();
                bytes = &bytes[got.consumed..];
                if got.frame.is_some() {
                    decoder.agree(agreed());
                }
                frames.extend(got.frame);
            }
        }
        let report = FrameFromSlave::ReportBoth {
            published: 1024,
            flushed: 900,
        };
        let hello = FrameFromSlave::Handshake(hello());
        assert_eq!(frames, [hello, report.clone(), report], "pieces of {piece}");
    }
}

/// Whether `bytes` go through as frames of a master, bodies and checksums included.
fn reads(bytes: &[u8]) -> Result<Vec<FrameFromMaster>, FrameError> {
    let (mut decoder, mut bytes, mut frames) = (asking(), bytes, Vec::new());
    while !bytes.is_empty() {
        let got = decoder.push(bytes)?;
        bytes = &bytes[got.consumed..];
        let Some(frame) = got.frame else { break };
        if let (FrameFromMaster::Transfer(head), Some(mut checksum)) = (&frame, decoder.checksum())
        {
            let n = (head.body_len as usize).min(bytes.len());
            checksum.add(&bytes[..n]);
            checksum.check()?;
            bytes = &bytes[n..];
            if checksum.left() > 0 {
                break;
            }
        }
        frames.push(frame);
    }
    Ok(frames)
}

#[test]
fn no_changed_bit_goes_through() {
    let right = [hex(ANSWER), hex(DATA), hex(HEARTBEAT)].concat();
    let whole = reads(&right).unwrap();
    assert_eq!(whole.len(), 3);
    for at in 0..right.len() {
        for bit in 0..8 {
            let mut bytes = right.clone();
            bytes[at] ^= 1 << bit;
            // A length that has grown waits for bytes that never come; nothing false goes through.
            if let Ok(frames) = reads(&bytes) {
                assert!(frames.len() < 3, "bit {bit} of byte {at}");
                assert!(
                    whole.starts_with(&frames),
                    "bit {bit} of byte {at}: {frames:?}"
                );
            }
        }
    }
    let right = hex(REPORT);
    for at in 0..right.len() {
        let mut bytes = right.clone();
        bytes[at] ^= 0x10;
        let mut decoder = SlaveFrameDecoder::new(false);
        decoder.agree(agreed());
        let got = decoder.push(&bytes);
        assert!(got.is_err(), "byte {at}: {got:?}");
    }
}

#[test]
fn the_request_travels_in_a_flag_that_is_off() {
    let sent = |sync_from_last_file, async_learner, asks| {
        let hello = SlaveHandshake {
            sync_from_last_file,
            async_learner,
            asks,
            ..hello()
        };
        let bytes = hello.encode();
        let got = SlaveFrameDecoder::new(true).push(&bytes).unwrap().frame;
        let heard = SlaveHandshake {
            asks: hello.asked(),
            ..hello
        };
        assert_eq!(got, Some(FrameFromSlave::Handshake(heard)));
        [
            u16::from_be_bytes([bytes[4], bytes[5]]),
            u16::from_be_bytes([bytes[6], bytes[7]]),
        ]
    };
    let all = Some(Capabilities::ALL);
    // Java's master takes a flag for on if it is 1, and for off otherwise.
    assert_eq!(sent(false, false, all), [0xec0f, 0]);
    assert_eq!(sent(true, false, all), [1, 0xec0f]);
    assert_eq!(sent(false, true, all), [0xec0f, 1]);
    assert_eq!(sent(true, true, all), [1, 1], "no room to ask");
    assert_eq!(sent(false, false, None), [0, 0]);
    assert_eq!(sent(false, false, Some(Capabilities::NONE)), [0xec00, 0]);
    let old = SlaveHandshake {
        identity: SlaveIdentity::Address("10.0.0.1:10912".to_owned()),
        ..hello()
    };
    assert_eq!(old.asked(), None);
    assert_eq!(old.encode()[4..8], [0; 4], "an old slave does not ask");
}

#[test]
fn bits_of_a_later_version_are_left_out() {
    let mut bytes = hex(HELLO);
    bytes[5] = 0xff;
    let got = SlaveFrameDecoder::new(false).push(&bytes).unwrap().frame;
    assert_eq!(got, Some(FrameFromSlave::Handshake(hello())));
    // A block that says more is read as far as it is understood.
    let mut longer = hex(ANSWER);
    let crc_at = longer.len() - 4;
    longer.truncate(crc_at);
    longer[44 + 3] = 0x24;
    longer.extend([1, 2, 3, 4]);
    longer.extend(crc32c::crc32c(&longer).to_be_bytes());
    assert_eq!(reads(&longer).unwrap().len(), 1);
    longer[44..48].copy_from_slice(&257u32.to_be_bytes());
    assert!(matches!(reads(&longer), Err(FrameError::TooLong { .. })));
    longer[44..48].copy_from_slice(&31u32.to_be_bytes());
    assert!(matches!(reads(&longer), Err(FrameError::TooLong { .. })));
}

#[test]
fn what_was_not_asked_for_is_refused_and_the_plain_answer_taken() {
    let answer = hex(ANSWER);
    let mut unasked = MasterFrameDecoder::new(HandshakeAnswerForm::Short);
    let refused = unasked.push(&answer).unwrap_err();
    assert!(matches!(refused, FrameError::Field { .. }), "{refused}");
    let one = Some(Capabilities::CHECKSUM);
    let mut less = MasterFrameDecoder::new(HandshakeAnswerForm::Short).asking(one);
    let refused = less.push(&answer).unwrap_err();
    assert!(matches!(refused, FrameError::Field { .. }), "{refused}");
    // A Java master answers as ever, and its frames are Java's.
    let plain = HandshakeAnswer::encode(4096, &entries(), HandshakeAnswerForm::Short).unwrap();
    let mut decoder = asking();
    let got = decoder.push(&plain).unwrap();
    assert_eq!(got.consumed, plain.len());
    assert_eq!(decoder.agreed(), Capabilities::NONE);
    assert_eq!(decoder.wanted(), 36);
    decoder.push(&header(3, 1024, 900).encode()).unwrap();
    assert_eq!(decoder.checksum(), None);
    // Also with no epoch at all, which it tells by -1.
    let empty = HandshakeAnswer::encode(0, &[], HandshakeAnswerForm::Short).unwrap();
    assert_eq!(empty[16..20], [0xff; 4]);
    asking().push(&empty).unwrap();
}

#[test]
fn large_bodies_need_both_sides() {
    let body = |agreed| {
        let extension = Extension {
            capabilities: agreed,
            ..extension()
        };
        let mut decoder = asking();
        let answer = HandshakeAnswer::encode_extended(0, &entries(), &extension).unwrap();
        decoder.push(&answer).unwrap();
        let mut head = header(3, 1024, 900).encode().to_vec();
        head[4..8].copy_from_slice(&(5u32 << 20).to_be_bytes());
        decoder.push(&head)
    };
    assert!(matches!(
        body(Capabilities::BOTH_OFFSETS),
        Err(FrameError::TooLong { .. })
    ));
    assert!(body(Capabilities::LARGE_BODIES).unwrap().frame.is_some());
}

#[test]
fn a_checksum_is_the_same_however_the_bytes_are_cut() {
    let bytes: Vec<u8> = (0..3 * SUMMED_AT_ONCE + 5)
        .map(|n| u8::try_from(n * 31 % 251).expect("below 251"))
        .collect();
    let whole = crc32c::crc32c(&bytes);
    assert_eq!(checksum_on(0, &bytes), whole);
    for at in [0, 1, SUMMED_AT_ONCE - 1, SUMMED_AT_ONCE, bytes.len()] {
        let (front, back) = bytes.split_at(at);
        assert_eq!(checksum_on(checksum_on(0, front), back), whole, "{at}");
    }
}

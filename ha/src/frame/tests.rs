//! The vectors, every split, every illegal field.

use epochlog_engine::EpochEntry;
use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect()
}

fn two_epochs() -> Vec<EpochEntry> {
    vec![
        EpochEntry { epoch: 1, start: 0 },
        EpochEntry {
            epoch: 2,
            start: 1024,
        },
    ]
}

fn broker(id: u64) -> SlaveHandshake {
    SlaveHandshake {
        sync_from_last_file: false,
        async_learner: false,
        identity: SlaveIdentity::BrokerId(id),
        asks: None,
    }
}

const ANSWER: &str = "00 00 00 01 00 00 00 18 00 00 00 00 00 00 10 00 00 00 00 02 00 00 00 01 \
    00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 04 00";
const DATA: &str = "00 00 00 02 00 00 00 03 00 00 00 00 00 00 04 00 00 00 00 02 00 00 00 00 \
    00 00 04 00 00 00 00 00 00 00 03 84 61 62 63";
const HEARTBEAT: &str = "00 00 00 02 00 00 00 00 00 00 00 00 00 00 10 00 00 00 00 02 00 00 00 00 \
    00 00 04 00 00 00 00 00 00 00 10 00";

#[test]
fn vectors_of_the_slave_encode_and_decode() {
    let bytes = hex("00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 02");
    assert_eq!(broker(2).encode(), bytes);
    let got = SlaveFrameDecoder::new(false).push(&bytes).unwrap();
    assert_eq!(
        got,
        Decoded {
            consumed: 16,
            frame: Some(FrameFromSlave::Handshake(broker(2)))
        }
    );

    let bytes = hex("00 00 00 02 00 00 00 00 00 00 04 00");
    assert_eq!(FrameFromSlave::encode_report(1024).to_vec(), bytes);
    let got = SlaveFrameDecoder::new(false).push(&bytes).unwrap();
    assert_eq!(got.frame, Some(FrameFromSlave::Report(1024)));
}

#[test]
fn vectors_of_the_master_encode_and_decode() {
    let answer = HandshakeAnswer {
        end: 4096,
        entries: two_epochs(),
        extension: None,
    };
    let bytes = hex(ANSWER);
    let short = HandshakeAnswerForm::Short;
    assert_eq!(
        HandshakeAnswer::encode(4096, &two_epochs(), short).unwrap(),
        bytes
    );

    let data = TransferHeader {
        body_len: 3,
        offset: Some(1024),
        epoch: 2,
        epoch_start: 1024,
        confirm: Some(900),
    };
    assert_eq!([&data.encode()[..], b"abc"].concat(), hex(DATA));
    let beat = TransferHeader {
        body_len: 0,
        offset: Some(4096),
        confirm: Some(4096),
        ..data
    };
    assert_eq!(beat.encode().to_vec(), hex(HEARTBEAT));

    let mut decoder = MasterFrameDecoder::new(short);
    let got = decoder.push(&bytes).unwrap();
    assert_eq!(got.frame, Some(FrameFromMaster::Handshake(answer)));
    let stream = [hex(DATA), hex(HEARTBEAT)].concat();
    let got = decoder.push(&stream).unwrap();
    assert_eq!(
        got,
        Decoded {
            consumed: 36,
            frame: Some(FrameFromMaster::Transfer(data))
        }
    );
    let got = decoder.push(&stream[39..]).unwrap();
    assert_eq!(got.frame, Some(FrameFromMaster::Transfer(beat)));
}

#[test]
fn the_long_answer_of_5_0_0_is_an_option() {
    let long = HandshakeAnswerForm::Long;
    let bytes = HandshakeAnswer::encode(4096, &two_epochs(), long).unwrap();
    assert_eq!(bytes.len(), 36 + 24);
    assert_eq!(bytes[20..36], [0; 16]);
    assert_eq!(bytes[..20], hex(ANSWER)[..20]);
    let got = MasterFrameDecoder::new(long).push(&bytes).unwrap();
    let expect = HandshakeAnswer {
        end: 4096,
        entries: two_epochs(),
        extension: None,
    };
    assert_eq!(got.frame, Some(FrameFromMaster::Handshake(expect)));
}

#[test]
fn the_address_handshake_of_5_1_0_is_an_option() {
    let old = SlaveHandshake {
        sync_from_last_file: true,
        async_learner: false,
        identity: SlaveIdentity::Address("10.0.0.1:10912".to_owned()),
        asks: None,
    };
    let bytes = old.encode();
    assert_eq!(bytes[..12], hex("00 00 00 01 00 01 00 00 00 00 00 0e")[..]);
    let got = SlaveFrameDecoder::new(true).push(&bytes).unwrap();
    assert_eq!(
        got,
        Decoded {
            consumed: 26,
            frame: Some(FrameFromSlave::Handshake(old))
        }
    );
    // With the option off the same bytes are a broker id of more than 32 bits.
    let got = SlaveFrameDecoder::new(false).push(&bytes).unwrap();
    assert_eq!(got.consumed, 16);
    // A broker id is still one with the option on.
    let got = SlaveFrameDecoder::new(true)
        .push(&broker(7).encode())
        .unwrap();
    assert_eq!(got.frame, Some(FrameFromSlave::Handshake(broker(7))));

    let mut long = hex("00 00 00 01 00 00 00 00 00 00 00 33");
    long.extend([b'a'; 51]);
    let refused = SlaveFrameDecoder::new(true).push(&long).unwrap_err();
    assert!(
        matches!(
            refused,
            FrameError::TooLong {
                len: 51,
                limit: 50,
                ..
            }
        ),
        "{refused}"
    );
    let text = [
        &hex("00 00 00 01 00 00 00 00 00 00 00 02")[..],
        &[0xff, 0xfe],
    ]
    .concat();
    assert_eq!(
        SlaveFrameDecoder::new(true).push(&text),
        Err(FrameError::AddressText)
    );
}

/// Feeds `stream` in the pieces `cuts` say; bodies are taken off as a driver would.
fn run_master(stream: &[u8], cuts: &[usize]) -> Result<Vec<FrameFromMaster>, FrameError> {
    let mut decoder = MasterFrameDecoder::new(HandshakeAnswerForm::Short);
    let (mut frames, mut body, mut from) = (Vec::new(), 0usize, 0usize);
    for to in cuts.iter().copied().chain([stream.len()]) {
        let mut piece = &stream[from..to];
        from = to;
        loop {
            let n = body.min(piece.len());
            piece = &piece[n..];
            body -= n;
            if body > 0 || piece.is_empty() {
                break;
            }
            let wanted = decoder.wanted();
            assert!(wanted > 0);
            let got = decoder.push(piece)?;
            piece = &piece[got.consumed..];
            if let Some(frame) = got.frame {
                if let FrameFromMaster::Transfer(header) = &frame {
                    body = header.body_len as usize;
                }
                frames.push(frame);
            } else {
                assert!(piece.is_empty());
            }
        }
    }
    Ok(frames)
}

#[test]
fn a19_frames_split_at_every_byte_equal_the_unsplit_run() {
    let body = vec![7u8; 1000];
    let header = TransferHeader {
        body_len: 1000,
        offset: Some(0),
        epoch: 1,
        epoch_start: 0,
        confirm: None,
    };
    let empty = HandshakeAnswer::encode(0, &[], HandshakeAnswerForm::Short).unwrap();
    let data = [&header.encode()[..], &body].concat();
    for answer in [hex(ANSWER), empty] {
        let stream = [answer, data.clone(), hex(HEARTBEAT), hex(DATA)].concat();
        let whole = run_master(&stream, &[]).unwrap();
        assert_eq!(whole.len(), 4);
        for cut in 0..=stream.len() {
            assert_eq!(run_master(&stream, &[cut]).unwrap(), whole, "cut at {cut}");
        }
        let singles: Vec<usize> = (0..stream.len()).collect();
        assert_eq!(run_master(&stream, &singles).unwrap(), whole);
    }

    let mut stream = broker(3).encode();
    stream.extend(FrameFromSlave::encode_report(0));
    stream.extend(FrameFromSlave::encode_report(1 << 40));
    for cut in 0..=stream.len() {
        let mut decoder = SlaveFrameDecoder::new(false);
        let mut frames = Vec::new();
        for mut piece in [&stream[..cut], &stream[cut..]] {
            while !piece.is_empty() {
                let got = decoder.push(piece).unwrap();
                piece = &piece[got.consumed..];
                frames.extend(got.frame);
            }
        }
        let expect = [
            FrameFromSlave::Handshake(broker(3)),
            FrameFromSlave::Report(0),
            FrameFromSlave::Report(1 << 40),
        ];
        assert_eq!(frames, expect, "cut at {cut}");
    }
}

#[test]
fn a19_a_table_of_more_than_a_thousand_epochs_passes() {
    for n in [0u32, 1, 1000, 1001, 5000] {
        let entries: Vec<_> = (0..n)
            .map(|e| EpochEntry {
                epoch: e,
                start: u64::from(e) * 10,
            })
            .collect();
        let bytes = HandshakeAnswer::encode(1 << 40, &entries, HandshakeAnswerForm::Short).unwrap();
        let got = MasterFrameDecoder::new(HandshakeAnswerForm::Short)
            .push(&bytes)
            .unwrap();
        let expect = HandshakeAnswer {
            end: 1 << 40,
            entries,
            extension: None,
        };
        assert_eq!(got.frame, Some(FrameFromMaster::Handshake(expect)));
    }
    let many = vec![EpochEntry { epoch: 0, start: 0 }; 349_526];
    let refused = HandshakeAnswer::encode(0, &many, HandshakeAnswerForm::Short).unwrap_err();
    assert!(matches!(refused, FrameError::TooLong { .. }), "{refused}");
}

#[test]
fn a20_a_state_word_that_is_not_due_is_refused_as_soon_as_it_is_there() {
    let mut decoder = MasterFrameDecoder::new(HandshakeAnswerForm::Short);
    let refused = decoder.push(&hex(DATA)[..4]).unwrap_err();
    assert!(
        matches!(refused, FrameError::State { word: 2, .. }),
        "{refused}"
    );

    let mut decoder = MasterFrameDecoder::new(HandshakeAnswerForm::Short);
    decoder.push(&hex(ANSWER)).unwrap();
    let refused = decoder.push(&hex(ANSWER)[..4]).unwrap_err();
    assert!(
        matches!(refused, FrameError::State { word: 1, .. }),
        "{refused}"
    );

    for word in [0u32, 3, 4, 5, 0xFFFF_FFFF, 0x4745_5420] {
        let refused = SlaveFrameDecoder::new(false)
            .push(&word.to_be_bytes())
            .unwrap_err();
        assert!(matches!(refused, FrameError::State { .. }), "{refused}");
    }
}

/// `bytes` with the big-endian `word` laid over them at `at`.
fn patched(bytes: &[u8], at: usize, word: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out[at..at + word.len()].copy_from_slice(word);
    out
}

#[test]
fn illegal_fields_of_a_master_are_refused_with_their_name() {
    let neg = |v: i64| v.to_be_bytes();
    let answer = hex(ANSWER);
    let cases: &[(Vec<u8>, &str)] = &[
        (
            patched(&answer, 4, &(-12i32).to_be_bytes()),
            "epoch table of -12 bytes",
        ),
        (patched(&answer, 4, &(4i32 << 20).to_be_bytes()), "limit is"),
        (patched(&answer, 4, &13i32.to_be_bytes()), "multiple of 12"),
        (patched(&answer, 8, &neg(-1)), "master's log end is -1"),
        (
            patched(&answer, 16, &(-2i32).to_be_bytes()),
            "master's last epoch is -2",
        ),
        (
            patched(&answer, 20, &(-1i32).to_be_bytes()),
            "epoch in the table is -1",
        ),
        (
            patched(&answer, 24, &neg(i64::MIN)),
            "epoch start in the table",
        ),
        (
            patched(&answer, 20, &2i32.to_be_bytes()),
            "does not ascend at entry 1",
        ),
        (
            patched(&answer, 24, &neg(2000)),
            "does not ascend at entry 1",
        ),
    ];
    for (bytes, expect) in cases {
        let refused = MasterFrameDecoder::new(HandshakeAnswerForm::Short)
            .push(bytes)
            .unwrap_err();
        assert!(refused.to_string().contains(expect), "{refused} / {expect}");
    }
}

#[test]
fn illegal_fields_of_a_transfer_frame_are_refused_with_their_name() {
    let neg = |v: i64| v.to_be_bytes();
    let answer = hex(ANSWER);
    let data = hex(DATA);
    let cases: &[(Vec<u8>, &str)] = &[
        (
            patched(&data, 4, &(-1i32).to_be_bytes()),
            "body of a transfer frame of -1 bytes",
        ),
        (
            patched(&data, 4, &MAX_BODY_LEN.wrapping_add(1).to_be_bytes()),
            "limit is 4194268",
        ),
        (
            patched(&data, 8, &neg(-1)),
            "offset of a transfer frame is -1",
        ),
        (
            patched(&data, 8, &neg(-2)),
            "offset of a transfer frame is -2",
        ),
        (
            patched(&data, 16, &(-1i32).to_be_bytes()),
            "epoch of a transfer frame is -1",
        ),
        (
            patched(&data, 20, &neg(-1)),
            "epoch start of a transfer frame is -1",
        ),
        (
            patched(&data, 28, &neg(-2)),
            "confirm offset of a transfer frame is -2",
        ),
    ];
    for (bytes, expect) in cases {
        let mut decoder = MasterFrameDecoder::new(HandshakeAnswerForm::Short);
        decoder.push(&answer).unwrap();
        let refused = decoder.push(bytes).unwrap_err();
        assert!(refused.to_string().contains(expect), "{refused} / {expect}");
    }
    // A heartbeat may say "nowhere"; equal starts are legal.
    let mut decoder = MasterFrameDecoder::new(HandshakeAnswerForm::Short);
    decoder.push(&patched(&answer, 24, &neg(1024))).unwrap();
    let beat = patched(&patched(&hex(HEARTBEAT), 8, &neg(-1)), 28, &neg(-1));
    match decoder.push(&beat).unwrap().frame {
        Some(FrameFromMaster::Transfer(header)) => {
            assert_eq!((header.offset, header.confirm), (None, None));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn illegal_fields_of_a_slave_are_refused_with_their_name() {
    let handshake = broker(2).encode();
    let report = FrameFromSlave::encode_report(5).to_vec();
    let cases: &[(Vec<u8>, &str)] = &[
        (patched(&handshake, 4, &[0, 2]), "isSyncFromLastFile is 2"),
        (
            patched(&handshake, 6, &[0xff, 0xff]),
            "isAsyncLearner is 65535",
        ),
        (
            patched(&handshake, 8, &(-1i64).to_be_bytes()),
            "slave's broker id is -1",
        ),
        (
            patched(&report, 4, &(-1i64).to_be_bytes()),
            "reported offset is -1",
        ),
        (
            patched(&report, 4, &i64::MIN.to_be_bytes()),
            "reported offset",
        ),
    ];
    for (bytes, expect) in cases {
        let refused = SlaveFrameDecoder::new(false).push(bytes).unwrap_err();
        assert!(refused.to_string().contains(expect), "{refused} / {expect}");
    }
    // A flag with capabilities of the extension counts as off, as it does for Java.
    let asked = patched(&handshake, 4, &[0xec, 0x03]);
    let got = SlaveFrameDecoder::new(false).push(&asked).unwrap();
    let expect = SlaveHandshake {
        asks: Some(Capabilities::CHECKSUM.or(Capabilities::BOTH_OFFSETS)),
        ..broker(2)
    };
    assert_eq!(got.frame, Some(FrameFromSlave::Handshake(expect)));
}

proptest! {
    /// Whatever comes, a decoder answers and holds no more than a frame's worth.
    #[test]
    fn e08_decoders_are_total(bytes in proptest::collection::vec(any::<u8>(), 0..200),
                              first in 0u32..4, accept in any::<bool>()) {
        let stream = [&first.to_be_bytes()[..], &bytes].concat();
        let mut slave = SlaveFrameDecoder::new(accept);
        let mut rest = &stream[..];
        while let Ok(got) = slave.push(rest) {
            rest = &rest[got.consumed..];
            if got.frame.is_none() {
                prop_assert!(rest.is_empty());
                break;
            }
        }
        let _ = run_master(&stream, &[stream.len() / 2]);
        let after = [hex(ANSWER), stream].concat();
        let _ = run_master(&after, &[after.len() / 2]);
    }

    #[test]
    fn headers_survive_the_wire(body_len in 0..=MAX_BODY_LEN, offset in 0..=MAX_OFFSET,
                                epoch in 0..=MAX_EPOCH, epoch_start in 0..=MAX_OFFSET,
                                confirm in proptest::option::of(0..=MAX_OFFSET)) {
        let header =
            TransferHeader { body_len, offset: Some(offset), epoch, epoch_start, confirm };
        let mut decoder = MasterFrameDecoder::new(HandshakeAnswerForm::Short);
        decoder.push(&hex(ANSWER)).unwrap();
        let got = decoder.push(&header.encode()).unwrap();
        prop_assert_eq!(got.frame, Some(FrameFromMaster::Transfer(header)));
    }
}

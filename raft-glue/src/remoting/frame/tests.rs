//! Golden frames in both codings, limits, and damaged input.

use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex"))
        .collect()
}

fn metadata_request(coding: Coding) -> RemotingCommand {
    RemotingCommand {
        opaque: 7,
        coding,
        ..RemotingCommand::request(1005)
    }
}

fn encoded(command: &RemotingCommand) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode(command, &mut out).expect("fits");
    out.to_vec()
}

fn decoded(bytes: &[u8]) -> Result<Option<RemotingCommand>, FrameError> {
    decode(&mut BytesMut::from(bytes))
}

#[test]
fn a_json_request_is_written_to_the_byte() {
    let header = concat!(
        r#"{"code":1005,"flag":0,"language":"RUST","opaque":7,"#,
        r#""serializeTypeCurrentRPC":"JSON","version":479}"#
    );
    let mut want = hex("00 00 00 66 00 00 00 62");
    want.extend_from_slice(header.as_bytes());
    let command = metadata_request(Coding::Json);
    assert_eq!(encoded(&command), want);
    assert_eq!(decoded(&want).expect("reads"), Some(command));
}

#[test]
fn a_binary_request_is_written_to_the_byte() {
    let want = hex(
        "00 00 00 19 01 00 00 15 03 ed 0c 01 df 00 00 00 07 00 00 00 00 00 00 00 00 00 00 00 00",
    );
    let command = metadata_request(Coding::RocketMq);
    assert_eq!(encoded(&command), want);
    assert_eq!(decoded(&want).expect("reads"), Some(command));
}

#[test]
fn a_binary_header_with_remark_fields_and_body() {
    let mut command = metadata_request(Coding::RocketMq)
        .with_field("a", "bc")
        .with_body(Bytes::from_static(b"xyz"));
    command.remark = Some("no".into());
    let want = hex(
        "00 00 00 27 01 00 00 20 03 ed 0c 01 df 00 00 00 07 00 00 00 00 00 00 00 02 6e 6f \
         00 00 00 09 00 01 61 00 00 00 02 62 63 78 79 7a",
    );
    assert_eq!(encoded(&command), want);
    assert_eq!(decoded(&want).expect("reads"), Some(command));
}

#[test]
fn a_code_that_does_not_fit_the_binary_header_goes_as_json() {
    let command = RemotingCommand {
        coding: Coding::RocketMq,
        ..RemotingCommand::request(200_050)
    };
    let read = decoded(&encoded(&command)).expect("reads").expect("whole");
    assert_eq!((read.code, read.coding), (200_050, Coding::Json));
}

#[test]
fn two_frames_in_one_buffer_come_out_in_order() {
    let mut buffer = BytesMut::new();
    let first = metadata_request(Coding::Json).with_body(Bytes::from_static(b"{}"));
    let second = metadata_request(Coding::RocketMq);
    encode(&first, &mut buffer).expect("fits");
    encode(&second, &mut buffer).expect("fits");
    assert_eq!(decode(&mut buffer).expect("reads"), Some(first));
    assert_eq!(decode(&mut buffer).expect("reads"), Some(second));
    assert_eq!(decode(&mut buffer).expect("reads"), None);
}

#[test]
fn unquoted_scalars_and_null_in_a_json_header_are_taken() {
    let header = br#"{"code":1,"extFields":{"a":5,"b":true,"c":null,"d":"x"},"unknown":[{}]}"#;
    let mut frame = Vec::new();
    frame.extend_from_slice(
        &u32::try_from(header.len() + 4)
            .expect("small")
            .to_be_bytes(),
    );
    frame.extend_from_slice(&u32::try_from(header.len()).expect("small").to_be_bytes());
    frame.extend_from_slice(header);
    let read = decoded(&frame).expect("reads").expect("whole");
    let want = [("a", "5"), ("b", "true"), ("d", "x")];
    let want: ExtFields = want
        .iter()
        .map(|(k, v)| ((*k).into(), (*v).into()))
        .collect();
    assert_eq!(read.ext_fields, want);
}

#[test]
fn limits_are_checked_before_the_bytes_are_there() {
    let long = decoded(&hex("00 ff ff fd")).expect_err("one byte too long");
    assert!(matches!(long, FrameError::TooLong { len } if len == MAX_FRAME_LEN as u64 + 1));
    assert!(
        decoded(&hex("00 ff ff fc"))
            .expect("within the limit")
            .is_none()
    );
    let negative = decoded(&hex("ff ff ff ff")).expect_err("negative in Java");
    assert!(matches!(negative, FrameError::TooLong { .. }));
    let tls = decoded(&hex("16 03 01 02")).expect_err("TLS");
    assert!(tls.to_string().contains("TLS"), "{tls}");
    let header = decoded(&hex("00 00 00 05 00 00 00 02 7b")).expect_err("header beyond frame");
    assert!(matches!(header, FrameError::Short { .. }));
    let coding = decoded(&hex("00 00 00 04 07 00 00 00")).expect_err("unknown coding");
    assert!(matches!(coding, FrameError::UnknownCoding { coding: 7 }));
    let empty = decoded(&hex("00 00 00 00")).expect_err("no header word");
    assert!(matches!(empty, FrameError::Short { .. }));
}

#[test]
fn too_many_fields_are_refused_in_both_codings() {
    let mut command = metadata_request(Coding::Json);
    for at in 0..=MAX_EXT_FIELDS {
        command.ext_fields.insert(at.to_string(), "v".into());
    }
    let mut out = BytesMut::new();
    assert!(matches!(
        encode(&command, &mut out),
        Err(FrameError::TooManyFields)
    ));
    assert!(out.is_empty());

    let header = serde_json::to_vec(&JsonHeaderOut(&command)).expect("serializes");
    assert!(json_header(&header).is_err());
    let mut binary = BytesMut::new();
    write_binary_header(&command, 1005, &mut binary);
    assert!(matches!(
        binary_header(binary.freeze()),
        Err(FrameError::TooManyFields)
    ));
}

#[test]
fn a_body_over_the_limit_is_refused_and_leaves_no_trace() {
    let body = vec![0; MAX_FRAME_LEN - 50];
    let command = metadata_request(Coding::Json).with_body(body);
    let mut out = BytesMut::from(&b"before"[..]);
    assert!(matches!(
        encode(&command, &mut out),
        Err(FrameError::TooLong { .. })
    ));
    assert_eq!(&out[..], b"before");
}

fn any_command() -> impl Strategy<Value = RemotingCommand> {
    let fields = proptest::collection::btree_map("[a-zA-Z]{1,12}", ".{1,24}", 0..6);
    let body = proptest::collection::vec(any::<u8>(), 0..64);
    let head = (
        any::<i16>(),
        0..14_u8,
        0..i32::from(i16::MAX),
        any::<i32>(),
        0..4,
    );
    (
        head,
        proptest::option::of(".{1,20}"),
        fields,
        body,
        any::<bool>(),
    )
        .prop_map(
            |((code, language, version, opaque, flag), remark, ext_fields, body, json)| {
                RemotingCommand {
                    code: i32::from(code),
                    language: Language::from_ordinal(language),
                    version,
                    opaque,
                    flag,
                    remark,
                    ext_fields,
                    body: body.into(),
                    coding: if json { Coding::Json } else { Coding::RocketMq },
                    send_by_ms: None,
                }
            },
        )
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(command in any_command()) {
        prop_assert_eq!(decoded(&encoded(&command)).expect("reads"), Some(command));
    }

    #[test]
    fn every_prefix_waits_for_more(command in any_command()) {
        let bytes = encoded(&command);
        for end in 0..bytes.len() {
            prop_assert!(decoded(&bytes[..end]).expect("a prefix is no error").is_none());
        }
    }

    #[test]
    fn every_flipped_byte_ends_defined(command in any_command(), bit in 0..8_u8) {
        let bytes = encoded(&command);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            if let Ok(Some(read)) = decoded(&damaged) {
                prop_assert!(read.ext_fields.len() <= MAX_EXT_FIELDS);
                prop_assert!(read.body.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn any_bytes_end_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
        let mut buffer = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = decode(&mut buffer) {}
    }

    #[test]
    fn a_binary_header_of_any_bytes_ends_defined(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut frame = BytesMut::new();
        frame.put_u32(u32::try_from(bytes.len() + 4).expect("small"));
        frame.put_u32(1 << 24 | u32::try_from(bytes.len()).expect("small"));
        frame.put_slice(&bytes);
        if let Ok(Some(read)) = decode(&mut frame) {
            prop_assert_eq!(read.coding, Coding::RocketMq);
        }
    }
}

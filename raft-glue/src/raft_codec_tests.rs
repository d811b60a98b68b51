use proptest::prelude::*;

use super::*;

fn entry(term: u64, index: u64, data: &[u8]) -> eraftpb::Entry {
    eraftpb::Entry {
        term,
        index,
        data: Bytes::copy_from_slice(data),
        ..eraftpb::Entry::default()
    }
}

fn append() -> eraftpb::Message {
    let mut message = eraftpb::Message::default();
    message.set_msg_type(eraftpb::MessageType::MsgAppend);
    (message.from, message.to, message.term) = (1, 2, 5);
    (message.index, message.log_term, message.commit) = (10, 4, 9);
    message.set_entries(vec![entry(4, 11, b"a"), entry(5, 12, b"")].into());
    message
}

fn snapshot() -> eraftpb::Message {
    let mut message = append();
    message.set_msg_type(eraftpb::MessageType::MsgSnapshot);
    message.set_entries(Vec::new().into());
    let body = SnapshotBody {
        members: BTreeMap::from([(
            1,
            Member {
                name: "n0".into(),
                address: "h:1".into(),
            },
        )]),
        rows: vec![(
            Blob(Bytes::from_static(b"k")),
            Blob(Bytes::from_static(b"v")),
        )],
    };
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (7, 3);
    metadata.mut_conf_state().voters = vec![1, 2];
    message.mut_snapshot().data = encode(&body).unwrap().into();
    message
}

fn there_and_back(message: &eraftpb::Message) -> Result<eraftpb::Message, CodecError> {
    let bytes = encode_message("g", 77, message).unwrap().unwrap();
    let back = decode_message(&bytes)?;
    assert_eq!((back.group.as_str(), back.store), ("g", 77));
    Ok(back.message)
}

#[test]
fn messages_read_back_as_written() {
    assert_eq!(there_and_back(&append()).unwrap(), append());
    assert_eq!(there_and_back(&snapshot()).unwrap(), snapshot());
    for (_, kind) in KINDS
        .iter()
        .filter(|(kind, _)| !matches!(kind, Kind::Snapshot))
    {
        let mut message = append();
        message.set_msg_type(*kind);
        message.reject = true;
        (message.reject_hint, message.commit_term, message.priority) = (3, 2, -1);
        message.context = Bytes::from_static(b"ctx");
        assert_eq!(there_and_back(&message).unwrap(), message);
    }
}

#[test]
fn proposals_and_reads_are_not_sent_to_peers() {
    for kind in [
        eraftpb::MessageType::MsgPropose,
        eraftpb::MessageType::MsgReadIndex,
        eraftpb::MessageType::MsgReadIndexResp,
        eraftpb::MessageType::MsgTransferLeader,
        eraftpb::MessageType::MsgHup,
    ] {
        let mut message = append();
        message.set_msg_type(kind);
        assert_eq!(encode_message("g", 1, &message).unwrap(), None, "{kind:?}");
    }
}

#[test]
fn a_member_change_travels_in_our_coding_only() {
    let member = Member {
        name: "n3".to_owned(),
        address: "h:4".to_owned(),
    };
    let change = MemberChange {
        steps: vec![
            MemberStep::AddLearner {
                id: 4,
                member: member.clone(),
            },
            MemberStep::AddVoter { id: 5, member },
            MemberStep::Remove { id: 1 },
        ],
    };
    let mut message = append();
    let mut changed = entry(4, 11, b"protobuf of the leader");
    changed.set_entry_type(eraftpb::EntryType::EntryConfChangeV2);
    changed.context = encode(&change).unwrap().into();
    message.set_entries(vec![changed].into());
    let back = there_and_back(&message).unwrap();
    let entry = &back.entries[0];
    assert_eq!(
        entry.get_entry_type(),
        eraftpb::EntryType::EntryConfChangeV2
    );
    assert!(entry.data.is_empty());
    assert_eq!(decode::<MemberChange>(&entry.context).unwrap(), change);
    assert_eq!(change.to_raft().get_changes().len(), 3);

    message.mut_entries()[0].context = Bytes::from_static(b"\x01\xff\xff");
    assert!(there_and_back(&message).is_err());
}

#[test]
fn what_would_break_raft_is_refused() {
    let refused = |what: &str, change: &dyn Fn(&mut eraftpb::Message), base: eraftpb::Message| {
        let mut message = base;
        change(&mut message);
        assert!(there_and_back(&message).is_err(), "{what}");
    };
    refused("from nobody", &|m| m.from = 0, append());
    refused("term 0", &|m| m.term = 0, append());
    refused("a term that overflows", &|m| m.term = u64::MAX, append());
    refused("a gap", &|m| m.mut_entries()[1].index = 13, append());
    refused("the end of numbers", &|m| m.index = u64::MAX, append());
    refused(
        "terms that fall",
        &|m| m.mut_entries()[1].term = 3,
        append(),
    );
    refused(
        "an entry of the future",
        &|m| m.mut_entries()[1].term = 6,
        append(),
    );
    refused(
        "no snapshot",
        &|m| m.set_msg_type(eraftpb::MessageType::MsgSnapshot),
        append(),
    );
    refused(
        "index 0",
        &|m| m.mut_snapshot().mut_metadata().index = 0,
        snapshot(),
    );
    refused(
        "not a body",
        &|m| m.mut_snapshot().data = Bytes::from_static(b"x"),
        snapshot(),
    );
    let conf = |m: &mut eraftpb::Message, voters: &[u64], learners: &[u64]| {
        let state = m.mut_snapshot().mut_metadata().mut_conf_state();
        state.voters = voters.to_vec();
        state.learners = learners.to_vec();
    };
    refused("no voters", &|m| conf(m, &[], &[]), snapshot());
    refused("both", &|m| conf(m, &[1], &[1]), snapshot());
    refused("id 0", &|m| conf(m, &[0, 1], &[]), snapshot());
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_message(&bytes);
        let _ = decode::<EntryRecord>(&bytes);
        let _ = decode::<SnapshotBody>(&bytes);
    }

    #[test]
    fn a_flipped_or_cut_frame_decodes_or_is_refused(at in 0..200usize, bit in 0..8u32) {
        let mut bytes = encode_message("g", 1, &snapshot()).unwrap().unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let _ = decode_message(&bytes);
        prop_assert!(decode_message(&bytes[..at]).is_err());
    }
}

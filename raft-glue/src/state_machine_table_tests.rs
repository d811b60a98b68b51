//! Every command against every kind of state, with the exact code of each pair (spec C.2, C.3).

use std::collections::{BTreeMap, BTreeSet};

use super::tests::{
    SET, alive, alter, apply_id, clean, elect, group_of_three, ok, register, report,
};
use super::*;
use crate::command::Report;

/// The columns: a set nobody knows; registered and never had a master; master 1 serves epoch 1 with
/// the set {1, 2} in set epoch 2; master 2 is elected in epoch 2 and does not serve yet, the set {1, 2}
/// stood before it; no master in epoch 2, the set is still {1, 2}.
const STATES: [&str; 5] = ["unknown", "new", "serving", "elected", "masterless"];

fn states() -> [ControllerState; 5] {
    let mut new = ControllerState::new();
    for id in 1..=3 {
        ok(&mut new, &apply_id(id, &format!("h{id}:1;x{id}")));
    }
    let mut elected = group_of_three();
    let away = Command::ElectMaster(elect(None, alive(&[2, 3])));
    ok(&mut elected, &away);
    let mut masterless = group_of_three();
    masterless.apply(&Command::ElectMaster(elect(None, alive(&[3]))));
    [
        ControllerState::new(),
        new,
        group_of_three(),
        elected,
        masterless,
    ]
}

fn update(id: u64, address: &str) -> Command {
    Command::UpdateAddress(UpdateAddress {
        broker: SET.to_owned(),
        id,
        address: address.to_owned(),
    })
}

fn review(master_epoch: u32, set_epoch: u32, id: u64, life: u64, unclean: bool) -> Command {
    let now = Report {
        incarnation: Some(life),
        unclean,
        ..report(1, 5)
    };
    Command::ReviewMembers(ReviewMembers {
        broker: SET.to_owned(),
        master_epoch,
        sync_state_set_epoch: set_epoch,
        alive: Reports::from([(id, now)]),
    })
}

fn confirm(id: u64, master_epoch: u32, life: u64, unclean: bool) -> Command {
    Command::ConfirmMaster(ConfirmMaster {
        broker: SET.to_owned(),
        id,
        master_epoch,
        incarnation: Some(life),
        unclean,
    })
}

/// What is asked, and for each state the code, with `+` where the state changes.
type Row = (&'static str, Command, &'static str);

fn other_cluster(mut command: Command) -> Command {
    match &mut command {
        Command::ApplyBrokerId(c) => c.cluster = "other".to_owned(),
        Command::RegisterBroker(c) => c.cluster = "other".to_owned(),
        _ => unreachable!(),
    }
    command
}

/// An operator wishes for this one.
fn wish(id: u64, ids: &[u64]) -> Command {
    Command::ElectMaster(ElectMaster {
        designate: true,
        ..elect(Some(id), alive(ids))
    })
}

fn ids() -> Vec<Row> {
    let enter = |id, address: &str| Command::RegisterBroker(register(id, address, &[1, 2, 3]));
    let java = RegisterBroker {
        incarnation: None,
        ..register(2, "h2:1", &[])
    };
    let long = "x".repeat(TEXT_LIMIT + 1);
    vec![
        ("id 1 again", apply_id(1, "h1:1;x1"), "0+ 0 0 0 0"),
        (
            "id 1 by another",
            apply_id(1, "h1:1;y"),
            "0+ 2014 2014 2014 2014",
        ),
        ("id 2 again", apply_id(2, "h2:1;x2"), "2014 0 0 0 0"),
        ("a new id", apply_id(4, "h4:1;x4"), "2014 0+ 0+ 0+ 0+"),
        ("id 0", apply_id(0, "h:1;x"), "2014 2014 2014 2014 2014"),
        (
            "no next id",
            apply_id(BROKER_ID_MAX + 1, "h:1;x"),
            "2014 2014 2014 2014 2014",
        ),
        ("no code", apply_id(1, ""), "2014 2014 2014 2014 2014"),
        (
            "a long code",
            apply_id(1, &long),
            "2014 2014 2014 2014 2014",
        ),
        (
            "id in another cluster",
            other_cluster(apply_id(4, "h:1;x")),
            "2014 2014 2014 2014 2014",
        ),
        ("register", enter(2, "h2:1"), "2010 0 0 0 0"),
        ("register elsewhere", enter(2, "new:9"), "2010 0+ 0+ 0+ 0+"),
        (
            "register a Java broker",
            Command::RegisterBroker(java),
            "2010 0+ 0+ 0+ 0+",
        ),
        (
            "register a stranger",
            enter(9, "h9:1"),
            "2010 2010 2010 2010 2010",
        ),
        (
            "register in another cluster",
            other_cluster(enter(2, "h2:1")),
            "2010 2010 2010 2010 2010",
        ),
        ("register nowhere", enter(2, ""), "2005 2005 2005 2005 2005"),
        (
            "register at a long address",
            enter(2, &long),
            "2005 2005 2005 2005 2005",
        ),
        ("the same address", update(2, "h2:1"), "2010 0 0 0 0"),
        ("another address", update(2, "new:9"), "2010 0+ 0+ 0+ 0+"),
        (
            "an address of a stranger",
            update(9, "h9:1"),
            "2010 2010 2010 2010 2010",
        ),
        ("no address", update(2, ""), "2005 2005 2005 2005 2005"),
    ]
}

fn elections() -> Vec<Row> {
    let by = |asker, ids: &[u64]| Command::ElectMaster(elect(asker, alive(ids)));
    let unclean = ElectMaster {
        allow_unclean: true,
        ..elect(None, alive(&[3]))
    };
    let expecting = ElectMaster {
        expected_master_epoch: Some(1),
        ..elect(None, alive(&[2]))
    };
    vec![
        (
            "elect, all alive",
            by(None, &[1, 2, 3]),
            "2010 0+ 2011 2011 0+",
        ),
        (
            "elect, nobody alive",
            by(None, &[]),
            "2010 2004 2004+ 2004+ 2004",
        ),
        (
            "elect, only 3 alive",
            by(None, &[3]),
            "2010 0+ 2004+ 2004+ 2004",
        ),
        ("elect, only 2 alive", by(None, &[2]), "2010 0+ 0+ 2011 0+"),
        (
            "3 asks, all alive",
            by(Some(3), &[1, 2, 3]),
            "2010 0+ 2011 2011 0+",
        ),
        ("3 asks, alone", by(Some(3), &[3]), "2010 0+ 2012 2012 2012"),
        (
            "3 asks, nobody alive",
            by(Some(3), &[]),
            "2010 2012 2012 2012 2012",
        ),
        (
            "a stranger asks",
            by(Some(9), &[1, 9]),
            "2010 2010 2010 2010 2010",
        ),
        (
            "3 is wished, not in the set",
            wish(3, &[1, 2, 3]),
            "2010 0+ 2012 2012 2012",
        ),
        ("2 is wished", wish(2, &[1, 2, 3]), "2010 0+ 0+ 2011 0+"),
        ("1 is wished", wish(1, &[1, 2, 3]), "2010 0+ 2011 0+ 0+"),
        (
            "1 is wished and dead",
            wish(1, &[2, 3]),
            "2010 2012 2012 2012 2012",
        ),
        (
            "unclean allowed, only 3",
            Command::ElectMaster(unclean),
            "2010 0+ 0+ 0+ 0+",
        ),
        (
            "only in epoch 1",
            Command::ElectMaster(expecting),
            "2010 2011 0+ 2011 2011",
        ),
    ]
}

fn sets() -> Vec<Row> {
    let row = |what, command, codes| (what, Command::AlterSyncStateSet(command), codes);
    let all = [1, 2, 3];
    let seen_before = AlterSyncStateSet {
        seen_in: Some(BTreeMap::from([(3, 9)])),
        ..alter(1, 1, 2, &all, &all)
    };
    vec![
        row("grow", alter(1, 1, 2, &all, &all), "2013 2002 0+ 2002 2002"),
        row(
            "shrink",
            alter(1, 1, 2, &[1], &all),
            "2013 2002 0+ 2002 2002",
        ),
        row(
            "the same set",
            alter(1, 1, 2, &[1, 2], &all),
            "2013 2002 2013 2002 2013",
        ),
        row(
            "the last one again",
            alter(1, 1, 1, &[1, 2], &all),
            "2013 2002 0 2002 2013",
        ),
        row(
            "by another",
            alter(3, 1, 2, &all, &all),
            "2013 2002 2002 2002 2002",
        ),
        row(
            "in an old epoch",
            alter(1, 0, 2, &all, &all),
            "2013 2002 2000 2002 2002",
        ),
        row(
            "from an old set",
            alter(1, 1, 1, &all, &all),
            "2013 2002 2001 2002 2002",
        ),
        row(
            "with a stranger",
            alter(1, 1, 2, &[1, 9], &[1, 9]),
            "2013 2002 2003 2002 2002",
        ),
        row(
            "with a dead one",
            alter(1, 1, 2, &[1, 3], &[1]),
            "2013 2002 2006 2002 2002",
        ),
        row(
            "by a dead master",
            alter(1, 1, 2, &[1], &[2]),
            "2013 2002 2006 2002 2002",
        ),
        row(
            "without the master",
            alter(1, 1, 2, &[2], &all),
            "2013 2002 2013 2013 2002",
        ),
        row(
            "seen in another life",
            seen_before,
            "2013 2002 2006 2002 2002",
        ),
        row(
            "grow under the next",
            alter(2, 2, 3, &[1, 2], &all),
            "2013 2002 2013 0+ 2013",
        ),
    ]
}

fn others() -> Vec<Row> {
    let row = |what, command, codes| (what, Command::CleanBrokerData(command), codes);
    vec![
        row("clean all", clean(None, false, &[]), "2009 0+ 2009 2009 0+"),
        row(
            "clean all, living too",
            clean(None, true, &[1, 2, 3]),
            "2009 0+ 0+ 0+ 0+",
        ),
        row(
            "clean a living one",
            clean(Some(&[3]), false, &[3]),
            "2009 2009 2009 2009 2009",
        ),
        row(
            "clean a dead one",
            clean(Some(&[3]), false, &[1]),
            "2009 0+ 0+ 0+ 0+",
        ),
        row(
            "clean a stranger",
            clean(Some(&[9]), false, &[1]),
            "2009 0 0 0 0",
        ),
        row(
            "clean each one",
            clean(Some(&[1, 2, 3]), false, &[]),
            "2009 0+ 0+ 0+ 0+",
        ),
        (
            "2 came back whole",
            review(1, 2, 2, 2, false),
            "2010 0 0+ 0 0",
        ),
        (
            "2 came back short",
            review(1, 2, 2, 2, true),
            "2010 0 0+ 0 0",
        ),
        ("2 never left", review(1, 2, 2, 1, true), "2010 0 0 0 0"),
        (
            "1 came back whole",
            review(2, 3, 1, 2, false),
            "2010 0 0 0+ 0",
        ),
        (
            "1 serves epoch 1",
            confirm(1, 1, 1, true),
            "2010 2002 0 2002 2002",
        ),
        (
            "1 serves, one life on",
            confirm(1, 1, 2, false),
            "2010 2002 0+ 2002 2002",
        ),
        (
            "1 serves, and lost bytes",
            confirm(1, 1, 2, true),
            "2010 2002 2002 2002 2002",
        ),
        (
            "2 serves epoch 2",
            confirm(2, 2, 1, true),
            "2010 2002 2002 0+ 2002",
        ),
        (
            "2 serves, and lost bytes",
            confirm(2, 2, 2, true),
            "2010 2002 2002 2002 2002",
        ),
    ]
}

/// A new command has no number here, and then no row.
const KINDS: usize = 8;

fn kind(command: &Command) -> usize {
    match command {
        Command::ApplyBrokerId(_) => 0,
        Command::RegisterBroker(_) => 1,
        Command::UpdateAddress(_) => 2,
        Command::ElectMaster(_) => 3,
        Command::AlterSyncStateSet(_) => 4,
        Command::CleanBrokerData(_) => 5,
        Command::ReviewMembers(_) => 6,
        Command::ConfirmMaster(_) => 7,
    }
}

/// Codes that only the endpoint gives: `tests/endpoint.rs` and `tests/group.rs` ask for them.
fn is_of_the_endpoint(code: Code) -> bool {
    match code {
        Code::SystemError
        | Code::SystemBusy
        | Code::RequestCodeNotSupported
        | Code::NoPermission
        | Code::NotLeader => true,
        Code::Success
        | Code::FencedMasterEpoch
        | Code::FencedSyncStateSetEpoch
        | Code::InvalidMaster
        | Code::InvalidReplicas
        | Code::MasterNotAvailable
        | Code::InvalidRequest
        | Code::BrokerNotAlive
        | Code::BrokerMetadataNotExist
        | Code::InvalidCleanBrokerMetadata
        | Code::BrokerNeedToBeRegistered
        | Code::MasterStillExist
        | Code::ElectMasterFailed
        | Code::AlterSyncStateSetFailed
        | Code::BrokerIdInvalid => false,
    }
}

/// The codes the state gives by itself, reads included.
const CODES: usize = 15;

#[test]
fn b09_b10_every_command_has_its_code_in_every_state() {
    let mut kinds = BTreeSet::new();
    let mut codes = BTreeSet::new();
    let mut wrong = Vec::new();
    let rows = [ids(), elections(), sets(), others()].concat();
    for (what, command, expected) in &rows {
        kinds.insert(kind(command));
        let expected: Vec<&str> = expected.split(' ').collect();
        assert_eq!(expected.len(), STATES.len(), "{what}");
        for ((name, mut state), expected) in STATES.iter().zip(states()).zip(expected) {
            let before = state.clone();
            let answer = state.apply(command);
            assert_eq!(answer.changed, state != before, "{what}, {name}");
            assert!(!is_of_the_endpoint(answer.code), "{what}, {name}");
            codes.insert(answer.code.value());
            let mark = if answer.changed { "+" } else { "" };
            let got = format!("{}{mark}", answer.code.value());
            if got != expected {
                wrong.push(format!("{what}, {name}: {got}, not {expected}"));
            }
            // Told twice, it changes nothing more: but a Java broker's registrations are counted.
            let then = state.clone();
            state.apply(command);
            let counts = matches!(command, Command::RegisterBroker(c) if c.incarnation.is_none());
            assert!(counts || state == then, "{what}, {name}: again");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(kinds.len(), KINDS, "a command without a row");
    for (state, known) in states().iter().zip([false, true, true, true, true]) {
        let answer = state.replica_info(SET);
        codes.insert(answer.code.value());
        assert_eq!(answer.code == Code::Success, known);
        assert_eq!(state.next_broker_id(SET), if known { 4 } else { 1 });
    }
    assert_eq!(codes.len(), CODES, "a code that no row gives: {codes:?}");
}

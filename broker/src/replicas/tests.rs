//! Tables of outcomes and the steps they lead to.

use super::*;

const NOW: u64 = 1000;
const POLL: u64 = 5000;

fn decision(epoch: u32, master: Option<u64>, set_epoch: u32, members: &[u64]) -> Decision {
    Decision {
        epoch,
        master: master.map(|id| (id, format!("10.0.0.{id}:10911"))),
        members: members.iter().copied().collect(),
        set_epoch,
    }
}

fn ha(id: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, id], 10912))
}

struct Broker {
    replicas: Replicas,
    now: u64,
}

impl Broker {
    fn new(stored: Stored, max_epoch: u32) -> Self {
        Self {
            replicas: Replicas::new(stored, "10.0.0.2:10911", max_epoch, POLL),
            now: NOW,
        }
    }

    /// A broker with id 2 that is registered with this decision known.
    fn registered(max_epoch: u32, known: Option<Decision>) -> Self {
        let mut broker = Self::new(Stored::Identity(2), max_epoch);
        broker.expect(&Step::Register(2), Outcome::Decided(known));
        broker
    }

    fn step(&self) -> Step {
        self.replicas.next(self.now)
    }

    fn expect(&mut self, want: &Step, outcome: Outcome) {
        assert_eq!(&self.step(), want);
        self.replicas.done(want, outcome, self.now, self.now);
    }

    fn fail(&mut self, want: &Step, failure: Failure) {
        self.expect(want, Outcome::Failed(failure));
    }

    /// Waits as long as the broker wants to.
    fn wait(&mut self) {
        match self.step() {
            Step::Wait(until) => {
                assert!(until > self.now);
                self.now = until;
            }
            other => panic!("{other:?} instead of a pause"),
        }
    }
}

fn master(epoch: u32, set_epoch: u32, members: &[u64]) -> Step {
    Step::BecomeMaster {
        epoch,
        set_epoch,
        members: members.iter().copied().collect(),
    }
}

fn slave(epoch: u32, master_id: u8) -> Step {
    Step::BecomeSlave {
        epoch,
        master_id: u64::from(master_id),
        ha_address: ha(master_id),
    }
}

#[test]
fn a_new_broker_gets_an_id_registers_and_is_elected() {
    let mut broker = Broker::new(Stored::Nothing, 0);
    let claim = Claim {
        id: 2,
        check_code: "10.0.0.2:10911;1000".into(),
    };
    broker.expect(&Step::AskNextId, Outcome::NextId(2));
    assert_eq!(broker.replicas.id(), None);
    broker.expect(&Step::SaveClaim(claim.clone()), Outcome::Done);
    broker.expect(&Step::Apply(claim), Outcome::Done);
    broker.expect(&Step::SaveIdentity(2), Outcome::Done);
    broker.expect(&Step::Register(2), Outcome::Decided(None));
    assert_eq!(broker.replicas.role(), None);
    broker.expect(
        &Step::Elect(2),
        Outcome::Decided(Some(decision(1, Some(2), 1, &[2]))),
    );
    assert_eq!(
        broker.replicas.role(),
        None,
        "a decision alone unfences nothing"
    );
    broker.expect(&master(1, 1, &[2]), Outcome::Done);
    assert_eq!(broker.replicas.role(), Some(&Role::Master { epoch: 1 }));
    assert_eq!(broker.step(), Step::Wait(NOW + POLL));
}

#[test]
fn e49_a_claim_that_is_not_answered_is_sent_again_with_the_same_code() {
    let claim = Claim {
        id: 3,
        check_code: "10.0.0.9:1;7".into(),
    };
    let mut broker = Broker::new(Stored::Claim(claim.clone()), 0);
    for _ in 0..3 {
        broker.fail(&Step::Apply(claim.clone()), Failure::Unavailable);
        broker.wait();
    }
    broker.fail(
        &Step::Apply(claim.clone()),
        Failure::Code(code::SYSTEM_ERROR),
    );
    broker.wait();
    broker.expect(&Step::Apply(claim), Outcome::Done);
    assert_eq!(broker.step(), Step::SaveIdentity(3));
}

#[test]
fn b11_a_claim_that_went_to_another_broker_is_dropped_and_the_next_id_is_asked_for() {
    let claim = Claim {
        id: 3,
        check_code: "10.0.0.2:10911;7".into(),
    };
    let mut broker = Broker::new(Stored::Claim(claim.clone()), 0);
    broker.fail(
        &Step::Apply(claim),
        Failure::Code(code::CONTROLLER_BROKER_ID_INVALID),
    );
    broker.wait();
    broker.expect(&Step::DropClaim, Outcome::Done);
    broker.expect(&Step::AskNextId, Outcome::NextId(4));
    let claim = Claim {
        id: 4,
        check_code: "10.0.0.2:10911;1050".into(),
    };
    assert_eq!(broker.step(), Step::SaveClaim(claim));
}

#[test]
fn e50_a_controller_without_memory_is_told_the_known_id_again() {
    for (step, failure) in [
        (
            Step::Register(2),
            code::CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ),
        (
            Step::Elect(2),
            code::CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ),
        (Step::Poll, code::CONTROLLER_BROKER_METADATA_NOT_EXIST),
    ] {
        let mut broker = match step {
            Step::Register(_) => Broker::new(Stored::Identity(2), 4),
            Step::Elect(_) => Broker::registered(4, None),
            _ => {
                let mut broker = Broker::registered(4, Some(decision(4, Some(2), 1, &[2])));
                broker.expect(&master(4, 1, &[2]), Outcome::Done);
                broker.wait();
                broker
            }
        };
        broker.fail(&step, Failure::Code(failure));
        let role = broker.replicas.role().cloned();
        broker.wait();
        // Until the broker with id 1 has made the set again, the id is refused, and kept.
        let Step::Apply(claim) = broker.step() else {
            panic!("{:?}", broker.step())
        };
        assert_eq!(claim.id, 2);
        let refused = Failure::Code(code::CONTROLLER_BROKER_ID_INVALID);
        broker.fail(&Step::Apply(claim.clone()), refused);
        broker.wait();
        broker.expect(&Step::Apply(claim), Outcome::Done);
        broker.expect(&Step::SaveIdentity(2), Outcome::Done);
        assert_eq!(broker.step(), Step::Register(2));
        assert_eq!(
            broker.replicas.role(),
            role.as_ref(),
            "the role stays meanwhile"
        );
    }
}

#[test]
fn a_slave_asks_its_master_where_to_follow() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(1), 5, &[1])));
    let ask = Step::AskHaAddress("10.0.0.1:10911".into());
    broker.fail(&ask, Failure::Unavailable);
    broker.wait();
    broker.expect(&ask, Outcome::HaAddress(ha(1)));
    broker.fail(&slave(3, 1), Failure::Unavailable);
    broker.wait();
    broker.expect(&ask, Outcome::HaAddress(ha(1)));
    broker.expect(&slave(3, 1), Outcome::Done);
    assert_eq!(
        broker.replicas.role(),
        Some(&Role::Slave {
            epoch: 3,
            master_id: 1
        })
    );
}

#[test]
fn a_slave_is_promoted_and_a_master_is_fenced_before_it_follows() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(1), 5, &[1, 2])));
    broker.expect(
        &Step::AskHaAddress("10.0.0.1:10911".into()),
        Outcome::HaAddress(ha(1)),
    );
    broker.expect(&slave(3, 1), Outcome::Done);
    assert!(broker.replicas.news(decision(4, Some(2), 6, &[2])));
    broker.expect(&master(4, 6, &[2]), Outcome::Done);
    assert!(broker.replicas.news(decision(6, Some(1), 7, &[1])));
    broker.expect(&Step::Fence, Outcome::Done);
    assert_eq!(broker.replicas.role(), None);
    broker.expect(
        &Step::AskHaAddress("10.0.0.1:10911".into()),
        Outcome::HaAddress(ha(1)),
    );
    broker.expect(&slave(6, 1), Outcome::Done);
}

#[test]
fn a_newer_epoch_of_the_same_master_is_a_role_to_take_too() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(2), 1, &[2])));
    broker.expect(&master(3, 1, &[2]), Outcome::Done);
    assert!(broker.replicas.news(decision(4, Some(2), 2, &[2])));
    broker.expect(&master(4, 2, &[2]), Outcome::Done);
}

#[test]
fn e48_decisions_older_than_the_stores_promise_change_nothing() {
    let mut broker = Broker::registered(7, Some(decision(6, Some(2), 9, &[2])));
    assert_eq!(broker.replicas.decided(), None);
    // The controller is behind: it is asked for an election, which takes up from what we report.
    broker.expect(
        &Step::Elect(2),
        Outcome::Decided(Some(decision(6, Some(2), 9, &[2]))),
    );
    broker.wait();
    broker.expect(
        &Step::Elect(2),
        Outcome::Decided(Some(decision(8, Some(2), 1, &[2]))),
    );
    broker.expect(&master(8, 1, &[2]), Outcome::Done);
    assert!(!broker.replicas.news(decision(7, Some(1), 9, &[1])));
    assert!(!broker.replicas.news(decision(0, None, 0, &[])));
    assert_eq!(broker.replicas.role(), Some(&Role::Master { epoch: 8 }));
    // The promise itself may be granted again.
    let mut again = Broker::registered(7, Some(decision(7, Some(2), 9, &[2])));
    again.expect(&master(7, 9, &[2]), Outcome::Done);
}

#[test]
fn within_an_epoch_only_a_newer_set_of_the_same_master_counts() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(2), 5, &[2])));
    broker.expect(&master(3, 5, &[2]), Outcome::Done);
    assert!(!broker.replicas.news(decision(3, Some(2), 5, &[1, 2])));
    assert!(!broker.replicas.news(decision(3, Some(2), 4, &[1, 2])));
    assert!(!broker.replicas.news(decision(3, Some(1), 6, &[1])));
    assert!(broker.replicas.news(decision(3, Some(2), 6, &[1, 2])));
    let members = BTreeSet::from([1, 2]);
    broker.expect(
        &Step::AdoptSet {
            members,
            set_epoch: 6,
        },
        Outcome::Done,
    );
    assert_eq!(broker.step(), Step::Wait(NOW + POLL));
}

#[test]
fn b02_an_election_without_winner_fences_and_is_asked_for_again() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(2), 5, &[1, 2])));
    broker.expect(&master(3, 5, &[1, 2]), Outcome::Done);
    assert!(broker.replicas.news(decision(4, None, 5, &[1, 2])));
    broker.expect(&Step::Fence, Outcome::Done);
    assert_eq!(broker.replicas.role(), None);
    for _ in 0..4 {
        broker.fail(
            &Step::Elect(2),
            Failure::Code(code::CONTROLLER_ELECT_MASTER_FAILED),
        );
        broker.wait();
    }
    broker.expect(
        &Step::Elect(2),
        Outcome::Decided(Some(decision(5, Some(2), 6, &[2]))),
    );
    assert_eq!(broker.step(), master(5, 6, &[2]));
}

#[test]
fn a_log_that_cannot_vouch_for_an_epoch_waits_fenced_for_a_newer_one() {
    let mut broker = Broker::registered(3, Some(decision(3, Some(2), 5, &[2])));
    broker.fail(&master(3, 5, &[2]), Failure::NeedsNewerEpoch);
    broker.wait();
    // A controller that does not know of it keeps naming the same epoch.
    let same = Some(decision(3, Some(2), 5, &[2]));
    broker.expect(&Step::Elect(2), Outcome::Decided(same));
    assert_eq!(broker.replicas.role(), None);
    broker.wait();
    broker.expect(
        &Step::Elect(2),
        Outcome::Decided(Some(decision(4, Some(2), 6, &[2]))),
    );
    broker.expect(&master(4, 6, &[2]), Outcome::Done);
    assert_eq!(broker.replicas.role(), Some(&Role::Master { epoch: 4 }));
}

#[test]
fn a17_no_role_is_in_force_before_it_is_taken_in_this_life() {
    let mut broker = Broker::new(Stored::Identity(2), 9);
    for _ in 0..5 {
        assert_eq!(broker.replicas.role(), None);
        broker.fail(&Step::Register(2), Failure::Unavailable);
        broker.wait();
    }
}

#[test]
fn polls_go_on_while_the_controllers_are_away_and_the_role_stays() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(2), 5, &[2])));
    broker.expect(&master(3, 5, &[2]), Outcome::Done);
    for _ in 0..3 {
        while broker.step() != Step::Poll {
            broker.wait();
        }
        broker.fail(&Step::Poll, Failure::Unavailable);
        assert_eq!(broker.replicas.role(), Some(&Role::Master { epoch: 3 }));
    }
    while broker.step() != Step::Poll {
        broker.wait();
    }
    broker.expect(
        &Step::Poll,
        Outcome::Decided(Some(decision(3, Some(2), 5, &[2]))),
    );
    broker.replicas.poll_soon();
    assert_eq!(broker.step(), Step::Poll);
}

#[test]
fn pauses_grow_and_news_ends_them() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(1), 5, &[1])));
    let ask = Step::AskHaAddress("10.0.0.1:10911".into());
    let mut pauses = Vec::new();
    for _ in 0..7 {
        broker.fail(&ask, Failure::Unavailable);
        let before = broker.now;
        broker.wait();
        pauses.push(broker.now - before);
    }
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000]);
    broker.expect(
        &Step::Poll,
        Outcome::Decided(Some(decision(3, Some(1), 5, &[1]))),
    );
    broker.fail(&ask, Failure::Unavailable);
    assert!(broker.replicas.news(decision(4, Some(2), 6, &[2])));
    assert_eq!(broker.step(), master(4, 6, &[2]));
}

#[test]
fn only_questions_are_given_up_for_news() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(1), 5, &[1])));
    let ask = Step::AskHaAddress("10.0.0.1:10911".into());
    assert!(!broker.replicas.is_outdated(&ask));
    assert!(broker.replicas.news(decision(4, Some(3), 6, &[3])));
    assert!(broker.replicas.is_outdated(&ask));
    assert!(broker.replicas.is_outdated(&Step::Poll));
    assert!(!broker.replicas.is_outdated(&slave(3, 1)));
    assert!(!broker.replicas.is_outdated(&Step::SaveIdentity(2)));
    assert!(!broker.replicas.is_outdated(&master(3, 5, &[2])));
}

#[test]
fn a_role_that_cannot_be_taken_does_not_stop_the_polls() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(1), 5, &[1])));
    let ask = Step::AskHaAddress("10.0.0.1:10911".into());
    let mut polls = 0;
    while broker.now < NOW + 4 * POLL {
        match broker.step() {
            Step::Poll => {
                polls += 1;
                let same = decision(3, Some(1), 5, &[1]);
                broker.expect(&Step::Poll, Outcome::Decided(Some(same)));
            }
            Step::Wait(_) => broker.wait(),
            _ => broker.fail(&ask, Failure::Unavailable),
        }
    }
    assert!(polls >= 3, "{polls}");
}

#[test]
fn b11_a_master_that_moved_within_its_epoch_is_followed_to_its_new_address() {
    let mut broker = Broker::registered(0, Some(decision(3, Some(1), 5, &[1])));
    broker.expect(
        &Step::AskHaAddress("10.0.0.1:10911".into()),
        Outcome::HaAddress(ha(1)),
    );
    broker.expect(&slave(3, 1), Outcome::Done);
    let mut moved = decision(3, Some(1), 5, &[1]);
    moved.master = Some((1, "10.0.0.9:10911".into()));
    assert!(broker.replicas.news(moved));
    broker.expect(
        &Step::AskHaAddress("10.0.0.9:10911".into()),
        Outcome::HaAddress(ha(9)),
    );
    let follow = Step::BecomeSlave {
        epoch: 3,
        master_id: 1,
        ha_address: ha(9),
    };
    broker.expect(&follow, Outcome::Done);
    assert_eq!(
        broker.replicas.role(),
        Some(&Role::Slave {
            epoch: 3,
            master_id: 1
        })
    );
}

#[test]
fn a_role_that_fails_again_and_again_is_tried_less_and_less_often() {
    let known = decision(2, Some(1), 1, &[1]);
    let mut broker = Broker::registered(0, Some(known.clone()));
    let ask = Step::AskHaAddress("10.0.0.1:10911".into());
    let mut pauses = Vec::new();
    for _ in 0..6 {
        broker.expect(&ask, Outcome::HaAddress(ha(1)));
        broker.fail(&slave(2, 1), Failure::Unavailable);
        let before = broker.now;
        while broker.step() != ask {
            match broker.step() {
                Step::Poll => broker.expect(&Step::Poll, Outcome::Decided(Some(known.clone()))),
                _ => broker.wait(),
            }
        }
        pauses.push(broker.now - before);
    }
    assert!(pauses.is_sorted() && pauses[5] >= 1_000, "{pauses:?}");
}

#[test]
fn a_fence_that_fails_is_tried_again_after_a_pause() {
    let mut broker = Broker::registered(0, Some(decision(1, Some(2), 1, &[2])));
    broker.expect(&master(1, 1, &[2]), Outcome::Done);
    broker.replicas.news(decision(2, None, 2, &[]));
    broker.fail(&Step::Fence, Failure::Unavailable);
    broker.wait();
    broker.expect(&Step::Fence, Outcome::Done);
    assert_eq!(broker.replicas.role(), None);
}

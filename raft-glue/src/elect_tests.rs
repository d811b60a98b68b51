use super::*;

const OPEN: Incarnation = Incarnation::Opened(1);

fn report(epoch: i32, max_offset: i64) -> Report {
    Report {
        epoch,
        max_epoch: epoch,
        max_offset,
        priority: i32::MAX,
        incarnation: Some(1),
        unclean: true,
    }
}

struct Case {
    in_sync: BTreeMap<u64, Incarnation>,
    registered: BTreeMap<u64, u64>,
    alive: Reports,
    old_master: Option<u64>,
    designated: Option<u64>,
    allow_unclean: bool,
}

impl Case {
    fn new(in_sync: &[u64], alive: &[(u64, i32, i64)]) -> Self {
        Self {
            in_sync: in_sync.iter().map(|&id| (id, OPEN)).collect(),
            registered: (1..=9).map(|id| (id, 0)).collect(),
            alive: alive
                .iter()
                .map(|&(id, epoch, end)| (id, report(epoch, end)))
                .collect(),
            old_master: Some(1),
            designated: None,
            allow_unclean: false,
        }
    }

    fn choose(&self) -> Choice {
        Ballot {
            in_sync: &self.in_sync,
            registered: &self.registered,
            alive: &self.alive,
            old_master: self.old_master,
            designated: self.designated,
            allow_unclean: self.allow_unclean,
        }
        .choose()
    }
}

#[test]
fn b17_in_sync_first_then_epoch_then_offset_never_the_dead() {
    let mut case = Case::new(&[1, 2, 3], &[(2, 5, 700), (3, 5, 800), (4, 4, 9999)]);
    assert_eq!(case.choose(), Choice::Elect(3));

    case.in_sync = BTreeMap::from([(1, OPEN)]);
    assert_eq!(
        case.choose(),
        Choice::Nobody,
        "1 is dead and unclean elections are off"
    );
    case.allow_unclean = true;
    assert_eq!(
        case.choose(),
        Choice::Elect(3),
        "epoch 5 before the longer log of epoch 4"
    );
}

#[test]
fn b17_ties_go_to_the_lower_priority_number_then_to_the_lower_id() {
    let mut case = Case::new(&[2, 3, 4], &[(2, 5, 700), (3, 5, 700), (4, 5, 700)]);
    assert_eq!(case.choose(), Choice::Elect(2));
    case.alive.get_mut(&4).unwrap().priority = 1;
    assert_eq!(case.choose(), Choice::Elect(4));
    case.alive.get_mut(&3).unwrap().max_offset = 701;
    assert_eq!(
        case.choose(),
        Choice::Elect(3),
        "the offset comes before the priority"
    );
}

#[test]
fn e41_offsets_more_than_two_gib_apart_compare_as_they_should() {
    let case = Case::new(&[2, 3], &[(2, 5, 5 << 30), (3, 5, 1 << 30)]);
    assert_eq!(case.choose(), Choice::Elect(2));
    let case = Case::new(&[2, 3], &[(2, 5, i64::MAX), (3, 5, i64::MIN)]);
    assert_eq!(case.choose(), Choice::Elect(2));
}

#[test]
fn b03_a_live_master_stays_unless_another_is_designated() {
    let mut case = Case::new(&[1, 2], &[(1, 5, 10), (2, 5, 900)]);
    assert_eq!(case.choose(), Choice::Keep(1));
    case.designated = Some(1);
    assert_eq!(case.choose(), Choice::Keep(1));
    case.designated = Some(2);
    assert_eq!(case.choose(), Choice::Elect(2));
    case.designated = Some(3);
    assert_eq!(case.choose(), Choice::Nobody, "3 is not in the set");
    case.alive.insert(3, report(1, 1));
    case.allow_unclean = true;
    assert_eq!(
        case.choose(),
        Choice::Elect(3),
        "designated and unclean allowed"
    );
}

#[test]
fn e16_a_member_in_a_new_life_is_passed_over() {
    let mut case = Case::new(&[1, 2, 3], &[(2, 5, 700), (3, 5, 800)]);
    case.alive.get_mut(&3).unwrap().incarnation = Some(2);
    assert_eq!(
        case.choose(),
        Choice::Elect(2),
        "3 may have lost what it acknowledged"
    );
    case.alive.get_mut(&3).unwrap().unclean = false;
    assert_eq!(
        case.choose(),
        Choice::Elect(3),
        "a clean open vouches for the life before"
    );
    case.alive.get_mut(&3).unwrap().incarnation = Some(3);
    assert_eq!(case.choose(), Choice::Elect(2), "but not for two lives");
}

#[test]
fn e16_when_nobody_can_vouch_all_members_must_be_there_and_the_longest_wins() {
    let mut case = Case::new(&[1, 2], &[(2, 5, 700)]);
    case.alive.get_mut(&2).unwrap().incarnation = Some(2);
    assert_eq!(case.choose(), Choice::Nobody, "1 may hold more");
    let mut back = report(5, 900);
    back.incarnation = Some(2);
    case.alive.insert(1, back);
    assert_eq!(
        case.choose(),
        Choice::Elect(1),
        "a new epoch, although it is the old master"
    );
}

#[test]
fn a_java_member_that_registered_again_is_in_a_new_life() {
    let mut case = Case::new(&[1, 2], &[(2, 5, 700)]);
    case.in_sync.insert(2, Incarnation::Registered(4));
    case.alive.get_mut(&2).unwrap().incarnation = None;
    case.registered.insert(2, 4);
    assert_eq!(case.choose(), Choice::Elect(2));
    case.registered.insert(2, 5);
    assert_eq!(case.choose(), Choice::Nobody);
}

#[test]
fn nobody_is_chosen_who_is_not_registered() {
    let mut case = Case::new(&[2], &[(2, 5, 700)]);
    case.registered.remove(&2);
    case.allow_unclean = true;
    assert_eq!(case.choose(), Choice::Nobody);
}

#[test]
fn the_first_election_takes_the_asker_unless_another_holds_more() {
    let registered = BTreeMap::from([(1, 1), (2, 1)]);
    let empty = Reports::from([(1, report(0, 0)), (2, report(-1, 0))]);
    assert_eq!(
        choose_first(&registered, &empty, Some(2), false),
        Choice::Elect(2)
    );
    assert_eq!(
        choose_first(&registered, &empty, Some(1), false),
        Choice::Elect(1)
    );

    let history = Reports::from([(1, report(3, 500)), (2, report(4, 100))]);
    assert_eq!(
        choose_first(&registered, &history, Some(1), false),
        Choice::Elect(2)
    );
    assert_eq!(
        choose_first(&registered, &history, Some(1), true),
        Choice::Elect(1)
    );
    assert_eq!(
        choose_first(&registered, &history, None, false),
        Choice::Elect(2)
    );
}

#[test]
fn e44_the_first_election_takes_nobody_unregistered_or_dead() {
    let registered = BTreeMap::from([(1, 1)]);
    let alive = Reports::from([(2, report(0, 0))]);
    assert_eq!(
        choose_first(&registered, &alive, Some(2), false),
        Choice::Nobody
    );
    assert_eq!(
        choose_first(&registered, &Reports::new(), Some(1), false),
        Choice::Nobody
    );
    assert_eq!(
        choose_first(&registered, &alive, Some(1), true),
        Choice::Nobody
    );
}

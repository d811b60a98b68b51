use super::*;

const SEGMENT: u64 = 1024;
const DAY_MS: i64 = 24 * 3_600_000;
const NOW: i64 = 100 * DAY_MS;

/// Segments from `base` on with the given ages in days.
fn aged(base: Offset, days: &[i64]) -> Vec<Candidate> {
    let candidate = |(place, days): (usize, &i64)| Candidate {
        base: base + place as u64 * SEGMENT,
        limit: base + (place as u64 + 1) * SEGMENT,
        written_ms: NOW - days * DAY_MS,
    };
    days.iter().enumerate().map(candidate).collect()
}

fn used(percent: u64) -> DiskUse {
    DiskUse {
        used: percent * 1000,
        usable: (100 - percent) * 1000,
    }
}

struct Case {
    policy: RetentionPolicy,
    tick: RetentionTick,
    candidates: Vec<Candidate>,
    safe: Offset,
    pinned: Option<Offset>,
    freed: u64,
}

impl Case {
    fn new(days: &[i64]) -> Self {
        Self {
            policy: RetentionPolicy::default(),
            tick: RetentionTick {
                now_ms: NOW,
                due: true,
                disk: used(50),
                slaves_need: None,
            },
            candidates: aged(0, days),
            safe: Offset::MAX,
            pinned: None,
            freed: 0,
        }
    }

    fn decide(&self) -> Decision {
        decide(&Situation {
            policy: &self.policy,
            tick: self.tick,
            candidates: &self.candidates,
            end: self.candidates.last().map_or(0, |last| last.limit) + 100,
            safe: self.safe,
            pinned: self.pinned,
            freed: self.freed,
        })
    }

    fn count(&self) -> usize {
        self.decide().count
    }
}

#[test]
fn c08_only_a_prefix_goes_whatever_is_old_behind_a_young_segment() {
    assert_eq!(Case::new(&[4, 1, 4, 4]).count(), 1);
    assert_eq!(Case::new(&[1, 4, 4]).count(), 0);
    assert_eq!(Case::new(&[4, 4, 4]).count(), 3);
    assert_eq!(Case::new(&[]).count(), 0);
}

#[test]
fn expired_segments_wait_for_their_hour_unless_the_disk_is_filling() {
    let mut case = Case::new(&[4, 4, 1]);
    case.tick.due = false;
    assert_eq!(case.count(), 0);
    case.tick.disk = used(75);
    assert_eq!(case.count(), 0, "75 is not more than 75");
    case.tick.disk = used(76);
    assert_eq!(case.count(), 2);
    case.policy.reserved_ms = None;
    assert_eq!(case.count(), 0);
}

#[test]
fn exactly_the_reserved_time_is_not_more_than_it_and_a_clock_that_went_back_expires_nothing() {
    let mut case = Case::new(&[3]);
    assert_eq!(case.count(), 0);
    case.tick.now_ms += 1;
    assert_eq!(case.count(), 1);
    case.tick.now_ms = i64::MIN;
    assert_eq!(case.count(), 0);
}

#[test]
fn by_size_segments_go_at_any_hour_until_the_log_is_short_enough() {
    let mut case = Case::new(&[0; 4]);
    case.tick.due = false;
    for (most, count) in [
        (0, 4),
        (100, 4),
        (1123, 4),
        (1124, 3),
        (2147, 3),
        (2148, 2),
        (4196, 0),
        (9999, 0),
    ] {
        case.policy.max_log_bytes = Some(most);
        assert_eq!(case.count(), count, "{most}");
    }
}

#[test]
fn a_call_takes_no_more_than_a_batch() {
    let mut case = Case::new(&[9; 25]);
    assert_eq!(case.count(), 10);
    case.policy.batch_max = 3;
    assert_eq!(case.count(), 3);
}

#[test]
fn nothing_goes_that_is_not_safe_however_full_the_disk_is() {
    let mut case = Case::new(&[9; 4]);
    case.safe = 2 * SEGMENT + 1;
    case.tick.disk = used(99);
    let held_back = Some(HeldBack::Unsafe(2 * SEGMENT + 1));
    assert_eq!(
        case.decide(),
        Decision {
            count: 2,
            held_back
        }
    );
}

#[test]
fn what_a_reader_or_a_slave_needs_stays_until_the_disk_is_full() {
    for of_slave in [false, true] {
        let mut case = Case::new(&[9; 4]);
        let offset = SEGMENT + 5;
        if of_slave {
            (case.tick.slaves_need, case.pinned) = (Some(offset), Some(3 * SEGMENT));
        } else {
            (case.pinned, case.tick.slaves_need) = (Some(offset), Some(3 * SEGMENT));
        }
        let held_back = Some(HeldBack::Needed(offset));
        for percent in [50, 80, 86, 90] {
            case.tick.disk = used(percent);
            assert_eq!(
                case.decide(),
                Decision {
                    count: 1,
                    held_back
                },
                "{percent}"
            );
        }
        case.tick.disk = used(91);
        assert_eq!(case.count(), 4);
    }
    // One that needs exactly what follows a segment does not need the segment.
    let mut case = Case::new(&[9; 4]);
    case.pinned = Some(2 * SEGMENT);
    assert_eq!(case.count(), 2);
}

#[test]
fn by_force_as_many_go_as_bring_the_disk_below_the_mark() {
    let mut case = Case::new(&[0; 9]);
    case.tick.due = false;
    case.tick.disk = used(85);
    assert_eq!(case.count(), 0);
    // 3000 bytes above the mark: three segments.
    case.tick.disk = used(88);
    assert_eq!(case.count(), 3);
    case.freed = 1000;
    assert_eq!(case.count(), 2);
    case.freed = 3000;
    assert_eq!(case.count(), 0);
}

#[test]
fn percent_is_what_df_shows() {
    let percent = |used, usable| DiskUse { used, usable }.percent();
    assert_eq!(percent(0, 0), 0);
    assert_eq!(percent(0, 10), 0);
    assert_eq!(percent(1, 999), 1);
    assert_eq!(percent(750, 250), 75);
    assert_eq!(percent(751, 249), 76);
    assert_eq!(percent(u64::MAX, 0), 100);
}

fn saved(days: i64, bytes: u64) -> Saved {
    Saved {
        path: format!("{days}").into(),
        since_ms: NOW - days * DAY_MS,
        bytes,
    }
}

#[test]
fn copies_of_cut_bytes_go_by_age_and_from_the_oldest_on_by_size() {
    let policy = RetentionPolicy {
        saved_max_bytes: Some(100),
        ..RetentionPolicy::default()
    };
    let gone = |level, saved: Vec<Saved>| decide_saved(&policy, level, NOW, saved);
    let all = vec![saved(1, 40), saved(9, 10), saved(3, 50), saved(2, 30)];
    assert_eq!(
        gone(DiskLevel::Clean, all.clone()),
        [saved(9, 10), saved(3, 50)]
    );
    assert_eq!(gone(DiskLevel::Forced, all.clone()), all);
    assert_eq!(gone(DiskLevel::Normal, vec![saved(1, 500)]), []);
    assert_eq!(
        gone(DiskLevel::Normal, vec![saved(8, 5)]),
        [saved(8, 5)],
        "the newest goes by age"
    );
    assert_eq!(gone(DiskLevel::Normal, Vec::new()), []);
}

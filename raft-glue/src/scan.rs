//! The leader's eye on the broker sets: at a steady pace, and at once when a connection closes or a
//! broker comes back, it looks at every set and proposes what the set needs.
//!
//! Invariant: what is proposed follows from the present state alone, so a proposal that failed is
//! made again at the next look.

use std::sync::Arc;
use std::time::Duration;

use crate::command::{Answer, Command, ConfirmMaster, ReviewMembers, UpdateAddress};
use crate::decider::{Decider, ElectionMark, Refusal};
use crate::liveness::Verdict;

/// Runs until dropped.
pub(crate) async fn run(decider: Arc<Decider>) {
    let mut metadata = decider.ledger.watch();
    // When the earliest lease that an election waits for is over.
    let mut next_ms = u64::MAX;
    loop {
        let interval = {
            let settings = decider.settings.lock();
            settings
                .scan_not_active_broker_interval_ms
                .min(settings.scan_inactive_master_interval_ms)
        };
        let interval = interval.min(next_ms.saturating_sub(decider.now_ms()).max(1));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(interval)) => {}
            () = decider.look.notified() => {}
            changed = metadata.changed() => if changed.is_err() { return },
        }
        metadata.mark_unchanged();
        let term = decider.liveness(|liveness, now| {
            liveness.tick(now);
            decider.note_leadership(liveness, now)
        });
        next_ms = u64::MAX;
        if term.is_some() {
            settle(&decider);
            next_ms = look(&decider).await;
        }
    }
}

/// Learns the fate of elections that ended without an outcome: once a later command is applied,
/// they are too, or never will be.
fn settle(decider: &Arc<Decider>) {
    for (broker, count) in decider.liveness(|liveness, _| liveness.unsettled()) {
        // It changes nothing: no set has ever had these epochs.
        let command = Command::ReviewMembers(ReviewMembers {
            broker: broker.clone(),
            master_epoch: u32::MAX,
            sync_state_set_epoch: u32::MAX,
            alive: std::collections::BTreeMap::new(),
        });
        let decider = Arc::clone(decider);
        tokio::spawn(async move {
            if decider.propose(&command).await.is_ok() {
                decider.liveness(|liveness, _| liveness.settle(&broker, count));
            }
        });
    }
}

/// Proposes what is wanted; returns when to look again at the latest.
async fn look(decider: &Arc<Decider>) -> u64 {
    let Wanted { commands, next_ms } = wanted(decider);
    // All are begun before the first is waited for: a set does not wait for another.
    let mut begun = Vec::with_capacity(commands.len());
    for (command, mark) in commands {
        match decider.begin(&command, mark.as_ref()) {
            Ok(pending) => begun.push((command, mark, pending)),
            Err(refusal) => {
                drop(mark.map(ElectionMark::settled));
                report(&command, &Err(refusal));
            }
        }
    }
    for (command, mark, pending) in begun {
        let outcome = decider.end(pending).await;
        if outcome.is_ok() {
            drop(mark.map(ElectionMark::settled));
        }
        if let (Command::ElectMaster(_), Ok(answer)) = (&command, &outcome) {
            decider.elected(answer);
        }
        report(&command, &outcome);
    }
    next_ms
}

/// What the sets need now: commands, elections with their marks.
struct Wanted {
    commands: Vec<(Command, Option<ElectionMark>)>,
    /// When a lease that an election waits for is over.
    next_ms: u64,
}

fn wanted(decider: &Arc<Decider>) -> Wanted {
    let allow_unclean = decider.settings.lock().enable_elect_unclean_master;
    let mut elections = Vec::new();
    let mut wanted = Vec::new();
    let mut next_ms = u64::MAX;
    decider.state(|state| {
        decider.liveness(|liveness, now| {
            for (broker, group) in state.groups() {
                match liveness.verdict(now, broker, group, allow_unclean) {
                    Verdict::Elect => {
                        // In one step with the verdict: no heartbeat comes between.
                        liveness.begin_election(broker);
                        let term = liveness.leads_in();
                        elections.push((broker.to_owned(), group.master_epoch, term));
                    }
                    Verdict::Healthy => {
                        let alive = liveness.restarted(now, broker, group);
                        if !alive.is_empty() {
                            wanted.push(Command::ReviewMembers(ReviewMembers {
                                broker: broker.to_owned(),
                                master_epoch: group.master_epoch,
                                sync_state_set_epoch: group.sync_state_set_epoch,
                                alive,
                            }));
                        }
                    }
                    Verdict::Leased(over_ms) => next_ms = next_ms.min(over_ms),
                    Verdict::Wait | Verdict::Stuck => {}
                }
                if let Some((id, report)) = liveness.unconfirmed(now, broker, group) {
                    wanted.push(Command::ConfirmMaster(ConfirmMaster {
                        broker: broker.to_owned(),
                        id,
                        master_epoch: group.master_epoch,
                        incarnation: report.incarnation,
                        unclean: report.unclean,
                    }));
                }
                for (id, address) in liveness.moved(now, broker, group) {
                    let broker = broker.to_owned();
                    wanted.push(Command::UpdateAddress(UpdateAddress {
                        broker,
                        id,
                        address,
                    }));
                }
            }
        });
    });
    let elections = elections.into_iter().map(|(broker, epoch, term)| {
        let mark = decider.marked(&broker, term);
        let command = decider.election(&broker, None, false, Some(epoch));
        (command, Some(mark))
    });
    let others = wanted.into_iter().map(|command| (command, None));
    Wanted {
        commands: elections.chain(others).collect(),
        next_ms,
    }
}

fn report(command: &Command, outcome: &Result<Answer, Refusal>) {
    let broker = command.broker();
    match outcome {
        Ok(answer) if answer.changed => tracing::info!(%broker, ?command, "decided"),
        Ok(answer) => {
            tracing::debug!(%broker, code = answer.code.value(), "nothing to decide");
        }
        Err(refusal) => {
            tracing::debug!(%broker, remark = %refusal.remark, "not decided, tried again later");
        }
    }
}

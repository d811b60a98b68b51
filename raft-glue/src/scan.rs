//! The leader's eye on the broker sets: at a steady pace, and at once when a connection closes or a
//! broker comes back, it looks at every set and proposes what the set needs.
//!
//! Invariant: what is proposed follows from the present state alone, so a proposal that failed is
//! made again at the next look.

use std::sync::Arc;
use std::time::Duration;

use crate::command::{Answer, Command, ReviewMembers, UpdateAddress};
use crate::decider::{Decider, Refusal};
use crate::liveness::Verdict;

/// Runs until dropped.
pub(crate) async fn run(decider: Arc<Decider>) {
    let mut metadata = decider.ledger.watch();
    loop {
        let interval = {
            let settings = decider.settings.lock();
            settings
                .scan_not_active_broker_interval_ms
                .min(settings.scan_inactive_master_interval_ms)
        };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(interval)) => {}
            () = decider.look.notified() => {}
            changed = metadata.changed() => if changed.is_err() { return },
        }
        let is_leader = metadata.borrow_and_update().is_ready;
        decider.liveness(|liveness, now| {
            liveness.set_leader(now, is_leader);
            liveness.tick(now);
        });
        if is_leader {
            look(&decider).await;
        }
    }
}

async fn look(decider: &Arc<Decider>) {
    let wanted = wanted(decider);
    // All are begun before the first is waited for: a set does not wait for another.
    let mut begun = Vec::with_capacity(wanted.len());
    for command in wanted {
        match decider.begin(&command) {
            Ok(pending) => begun.push((command, pending)),
            Err(refusal) => report(&command, &Err(refusal)),
        }
    }
    for (command, pending) in begun {
        let outcome = decider.end(pending).await;
        if let (Command::ElectMaster(_), Ok(answer)) = (&command, &outcome) {
            decider.elected(answer);
        }
        report(&command, &outcome);
    }
}

/// What the sets need now.
fn wanted(decider: &Arc<Decider>) -> Vec<Command> {
    let allow_unclean = decider.settings.lock().enable_elect_unclean_master;
    let mut elections = Vec::new();
    let mut wanted = Vec::new();
    decider.state(|state| {
        decider.liveness(|liveness, now| {
            for (broker, group) in state.groups() {
                match liveness.verdict(now, broker, group, allow_unclean) {
                    Verdict::Elect => elections.push((broker.to_owned(), group.master_epoch)),
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
                    Verdict::Wait | Verdict::Stuck => {}
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
    let elections = elections
        .into_iter()
        .map(|(broker, epoch)| decider.election(&broker, None, false, Some(epoch)));
    elections.chain(wanted).collect()
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

//! One run of the demo: the group while messages flow, and what is done to it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_raft_glue::remoting::{Client, ClientConfig};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

use super::input::Outgoing;
use super::report::Counts;
use super::traffic::{Master, Traffic};
use super::{Args, DemoError, describe, io, say};
use crate::group::Group;
use crate::observe::{Late, MasterView, Observer};

/// How long a returning replica may take to be in sync again.
const REJOIN_LIMIT: Duration = Duration::from_secs(20);
/// The input is spread over about this long, so that the failure happens while messages flow.
const TRAFFIC_SPAN: Duration = Duration::from_secs(6);
/// Longest pause between two messages.
const MAX_GAP: Duration = Duration::from_millis(50);
/// How often the group is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How often the progress is drawn anew.
const SHOW: Duration = Duration::from_millis(250);

/// What the run left behind for the judgement.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) acked: Vec<String>,
    pub(super) counts: Counts,
    pub(super) last: MasterView,
}

/// One run: the group, and what was done to it.
#[derive(Debug)]
pub(super) struct Run<'a> {
    group: &'a mut Group,
    observer: &'a Observer,
    dir: &'a Path,
    bar: ProgressBar,
}

/// The state of a run while messages flow.
#[derive(Debug)]
struct Flow {
    traffic: Arc<Traffic>,
    to_traffic: watch::Sender<Option<Master>>,
    master: MasterView,
    killed: Option<Killed>,
    failovers: usize,
}

#[derive(Debug)]
struct Killed {
    broker: usize,
    at: Instant,
    epoch: u32,
    restarted: bool,
}

impl<'a> Run<'a> {
    pub(super) fn new(group: &'a mut Group, observer: &'a Observer, dir: &'a Path) -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            group,
            observer,
            dir,
            bar,
        }
    }

    /// Waits until every replica is in sync under a master of an epoch above `above`.
    pub(super) async fn gather(
        &mut self,
        above: u32,
        limit: Duration,
    ) -> Result<MasterView, DemoError> {
        let members = self.group.brokers.len();
        let gathered = self.observer.wait_in_sync(members, above, limit).await;
        self.check_running()?;
        gathered.map_err(|late| self.late(late))
    }

    fn late(&self, late: Late) -> DemoError {
        DemoError::Late {
            late,
            dir: self.dir.to_owned(),
        }
    }

    /// An error if a process has ended by itself.
    fn check_running(&mut self) -> Result<(), DemoError> {
        let brokers = self
            .group
            .brokers
            .iter_mut()
            .map(|broker| &mut broker.process);
        for process in brokers.chain(&mut self.group.controllers) {
            if let Some(status) = process.ended().map_err(io("look at a process"))? {
                let (name, log) = (process.name().to_owned(), process.log().to_owned());
                return Err(DemoError::Ended { name, status, log });
            }
        }
        Ok(())
    }

    pub(super) async fn drive(
        mut self,
        first: MasterView,
        messages: Vec<Outgoing>,
        args: &Args,
    ) -> Result<Finished, DemoError> {
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX).max(1);
        self.bar.set_length(u64::from(count));
        let (to_traffic, from_run) = watch::channel(Some(target_of(&first)));
        let client = Client::new(ClientConfig::default());
        let gap = (TRAFFIC_SPAN / count).min(MAX_GAP);
        let traffic = Traffic::new(client, messages, from_run, gap);
        let sender = Arc::clone(&traffic);
        let in_flight = usize::from(args.in_flight);
        let sending = tokio::spawn(async move { sender.run(in_flight).await });
        let mut flow = Flow {
            traffic,
            to_traffic,
            master: first,
            killed: None,
            failovers: 0,
        };
        let mut next_status = Instant::now();
        while !sending.is_finished() || flow.is_replica_missing() {
            self.look(&mut flow, !args.no_kill_master).await?;
            if Instant::now() >= next_status {
                self.show(&flow).await;
                next_status = Instant::now() + SHOW;
            }
            if let Some(failure) = flow.traffic.tally().failure {
                return Err(DemoError::Traffic(failure));
            }
            tokio::time::sleep(LOOK).await;
        }
        let last = self.gather(0, REJOIN_LIMIT).await?;
        let addresses = self
            .group
            .brokers
            .iter()
            .map(|broker| broker.address.as_str());
        let addresses: Vec<_> = addresses.collect();
        let level = self.observer.wait_level(&addresses, REJOIN_LIMIT).await;
        level.map_err(|late| self.late(late))?;
        self.bar.finish_and_clear();
        say(&format!(
            "{} replicas in sync at the end; {}",
            last.in_sync.len(),
            describe(&last)
        ));
        Ok(flow.finish(last))
    }

    /// Kills, follows and restarts as the progress asks for.
    async fn look(&mut self, flow: &mut Flow, kill: bool) -> Result<(), DemoError> {
        self.check_running()?;
        let (acked, _) = flow.traffic.progress();
        if kill && flow.killed.is_none() && acked * 3 >= flow.traffic.len() {
            self.kill_master(flow)?;
        }
        if let Ok(Some(seen)) = self.observer.master().await
            && seen.epoch >= flow.master.epoch
        {
            if seen.epoch > flow.master.epoch {
                self.bar.println(describe(&seen));
            }
            flow.follow(seen);
        }
        let back_at = flow.traffic.len() * 2 / 3;
        if let Some(killed) = &mut flow.killed
            && !killed.restarted
            && flow.master.epoch > killed.epoch
            && acked >= back_at
        {
            let broker = &mut self.group.brokers[killed.broker];
            broker.process.start().map_err(io("start a broker again"))?;
            killed.restarted = true;
            let name = broker.process.name();
            self.bar
                .println(format!("started {name} again while messages flow"));
        }
        Ok(())
    }

    fn kill_master(&mut self, flow: &mut Flow) -> Result<(), DemoError> {
        let Some(broker) = self.group.broker_at(&flow.master.address) else {
            return Ok(());
        };
        let epoch = flow.master.epoch;
        flow.traffic.master_killed(epoch);
        let at = Instant::now();
        self.group.brokers[broker]
            .process
            .kill()
            .map_err(io("kill the master"))?;
        self.bar
            .println(format!("SIGKILL: {}", describe(&flow.master)));
        flow.killed = Some(Killed {
            broker,
            at,
            epoch,
            restarted: false,
        });
        Ok(())
    }

    /// Messages so far, and how far each replica is behind.
    async fn show(&self, flow: &Flow) {
        let mut ends = Vec::new();
        for broker in &self.group.brokers {
            let status = self.observer.status(&broker.address).await;
            ends.push(status.map(|status| status.end));
        }
        let head = ends.iter().flatten().max().copied().unwrap_or_default();
        let lags = ends.iter().enumerate().map(|(at, end)| match end {
            Some(end) => format!("{}:{}", at + 1, head - end),
            None => format!("{}:down", at + 1),
        });
        let lags = lags.collect::<Vec<_>>().join(" ");
        let (acked, bytes) = flow.traffic.progress();
        self.bar.set_position(acked as u64);
        self.bar.set_message(format!(
            "{} KiB  epoch {}  bytes behind {lags}",
            bytes / 1024,
            flow.master.epoch
        ));
    }
}

impl Flow {
    /// Whether the killed master still has to be started again.
    fn is_replica_missing(&self) -> bool {
        self.killed.as_ref().is_some_and(|killed| !killed.restarted)
    }

    fn follow(&mut self, seen: MasterView) {
        if seen.epoch > self.master.epoch {
            self.failovers += 1;
        }
        let target = Some(target_of(&seen));
        self.to_traffic.send_if_modified(|known| {
            let changed = *known != target;
            known.clone_from(&target);
            changed
        });
        self.master = seen;
    }

    fn finish(self, last: MasterView) -> Finished {
        let tally = self.traffic.tally();
        let after_kill = self.killed.as_ref().zip(tally.first_after_failover);
        let failover_ms = after_kill.map(|(killed, first)| {
            let span = first.saturating_duration_since(killed.at);
            crate::clock::ms(span)
        });
        let counts = Counts {
            acked: tally.acked.len(),
            unknown: tally.unknown,
            failovers: self.failovers,
            failover_ms,
            truncated_bytes: 0,
        };
        Finished {
            acked: tally.acked,
            counts,
            last,
        }
    }
}

fn target_of(master: &MasterView) -> Master {
    Master {
        id: master.id,
        epoch: master.epoch,
        address: master.address.clone(),
    }
}

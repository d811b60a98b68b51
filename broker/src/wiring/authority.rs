//! The authority to acknowledge: from the controllers' answers to the replication service.
//!
//! Invariants: authority and role change under one lock, so the service never holds more than the
//! lease gives; a role that ended gives its epoch back for good in this process; without an answer
//! there is no authority.
//!
//! Controllers of this project grant a lease with the answer to a heartbeat. Java controllers
//! answer without its fields: then a 1004 answered by their leader that names this broker stands in
//! for it while the line to them is whole. That proves less (an isolated leader answers from
//! memory, and a closed line elects at once): with them only AllInSync with `minInSyncReplicas` of
//! at least 2 is safe.

use epochlog_ha::HaService;
use epochlog_raft_glue::lease::{Asked, LeaseHolder, LeaseNews, LeaseRefusal};
use epochlog_raft_glue::remoting::BrokerHeartbeatResponse;
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use crate::conf::BrokerConf;

/// What the controllers are, as far as their answers tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    /// They grant leases.
    Ours,
    /// They know of none.
    Java,
}

#[derive(Debug)]
struct State {
    lease: LeaseHolder,
    kind: Kind,
    /// The reason given last for granting nothing, so that it is told once.
    refused: Option<String>,
    handing_over: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Authority {
    state: Mutex<State>,
    /// How long after the last look at the authority an answer may leave, in ms.
    ack_ms: u64,
}

/// What a heartbeat is to carry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToSend {
    pub(crate) news: LeaseNews,
    pub(crate) asked: Option<Asked>,
}

impl Authority {
    /// None yet.
    #[must_use]
    pub fn new(conf: &BrokerConf) -> Self {
        let times = conf.lease_times();
        Self {
            state: Mutex::new(State {
                lease: LeaseHolder::new(times),
                kind: Kind::Unknown,
                refused: None,
                handing_over: false,
            }),
            ack_ms: times.ack_ms,
        }
    }

    /// Takes authority from a service that just started or is about to change its role: the newest
    /// answers count no more. False: this epoch was given back in this process.
    pub(crate) fn before_role(&self, ha: &HaService, epoch: u32) -> bool {
        let mut state = self.state.lock();
        told_end(&state);
        state.lease.drop_authority();
        ha.set_authority(Some(0));
        let news = state.lease.news();
        !matches!(news, LeaseNews::GivenBack { epoch: back } if epoch != 0 && epoch <= back)
    }

    /// The role as master of `epoch` is taken: from now on heartbeats ask.
    pub(crate) fn begin(&self, epoch: u32) {
        self.state.lock().lease.begin(epoch);
    }

    /// The role as master is over: no authority from now on, for good in its epoch.
    pub(crate) fn end(&self, ha: Option<&HaService>) {
        let mut state = self.state.lock();
        told_end(&state);
        state.lease.end();
        if let Some(ha) = ha {
            ha.set_authority(Some(0));
        }
    }

    /// Begins a hand-over; false: one is under way.
    pub(crate) fn try_hand_over(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().handing_over, true)
    }

    /// A hand-over is over, one way or the other.
    pub(crate) fn hand_over_ended(&self) {
        self.state.lock().handing_over = false;
    }

    /// Lays authority down while a hand-over is decided.
    pub(crate) fn pause(&self, ha: &HaService) {
        let mut state = self.state.lock();
        told_end(&state);
        state.lease.pause();
        ha.set_authority(Some(0));
    }

    /// The hand-over came to nothing.
    pub(crate) fn resume(&self) {
        self.state.lock().lease.resume();
    }

    /// What a heartbeat that is sent now carries.
    pub(crate) fn to_send(&self) -> ToSend {
        let state = self.state.lock();
        ToSend {
            news: state.lease.news(),
            asked: state.lease.ask(HaService::now_ms()),
        }
    }

    /// Takes the answer to a heartbeat. Returns whether it granted something.
    pub(crate) fn answered(
        &self,
        ha: Option<&HaService>,
        asked: Option<Asked>,
        answer: &BrokerHeartbeatResponse,
    ) -> bool {
        let mut state = self.state.lock();
        let Some(granted_ms) = answer.lease_mills else {
            if state.kind == Kind::Unknown {
                info!("the controllers grant no leases, as Java's do");
                state.kind = Kind::Java;
            }
            return false;
        };
        state.kind = Kind::Ours;
        let Some(asked) = asked else {
            return false;
        };
        let granted = u64::try_from(granted_ms) == Ok(state.lease.times().lease_ms)
            && answer
                .lease_epoch
                .and_then(|epoch| u32::try_from(epoch).ok())
                == Some(asked.epoch);
        if granted {
            state.refused = None;
            give(&mut state, ha, asked);
        } else if answer.lease_why != state.refused {
            // Followers refuse as a matter of course, and most other reasons pass by themselves.
            let why = answer.lease_why.as_deref().unwrap_or("no reason given");
            if answer.lease_code == Some(LeaseRefusal::Times.value()) {
                warn!(
                    why,
                    "a controller grants no authority: correct the lease settings"
                );
                state.refused.clone_from(&answer.lease_why);
            } else {
                debug!(why, "a controller grants no authority");
            }
        }
        granted
    }

    /// Whether the controllers are Java's and a 1004 must stand in for the lease.
    pub(crate) fn by_polling(&self) -> Option<Asked> {
        let state = self.state.lock();
        (state.kind == Kind::Java)
            .then(|| state.lease.ask(HaService::now_ms()))
            .flatten()
    }

    /// A Java controller's leader named this broker as master of the epoch asked about.
    pub(crate) fn named(&self, ha: &HaService, asked: Asked) {
        let mut state = self.state.lock();
        if state.kind == Kind::Java {
            give(&mut state, Some(ha), asked);
        }
    }

    /// The line to a Java controller broke: it may have elected another.
    pub(crate) fn line_broke(&self, ha: Option<&HaService>) {
        let mut state = self.state.lock();
        if state.kind == Kind::Java && state.lease.until_ms() > 0 {
            warn!("the line to the controllers broke: no authority until they name this broker");
            state.lease.drop_authority();
            if let Some(ha) = ha {
                ha.set_authority(Some(0));
            }
        }
    }

    /// Whether the controllers grant leases.
    pub(crate) fn is_ours(&self) -> bool {
        self.state.lock().kind == Kind::Ours
    }

    /// Until when an acknowledgement that is ready now may be handed to the system, in ms of
    /// CLOCK_BOOTTIME; none: this broker has no authority.
    pub(crate) fn send_by_ms(&self, ha: &HaService) -> Option<u64> {
        let now_ms = HaService::now_ms();
        let until_ms = ha.authority_until_ms().unwrap_or(u64::MAX);
        (now_ms < until_ms).then(|| now_ms.saturating_add(self.ack_ms))
    }
}

/// Authority is about to end before its time.
fn told_end(state: &State) {
    if state.lease.until_ms() > 0 {
        let (epoch, at_ms) = (state.lease.serving().unwrap_or(0), HaService::now_ms());
        info!(epoch, at_ms, "authority ends");
    }
}

fn give(state: &mut State, ha: Option<&HaService>, asked: Asked) {
    let before_ms = state.lease.until_ms();
    let until_ms = state.lease.granted(asked);
    let Some(ha) = ha else {
        return;
    };
    if until_ms > before_ms {
        // The intervals of two masters must not meet; a test reads them here. A gap before
        // `from_ms` was without authority.
        let from_ms = HaService::now_ms();
        if from_ms >= before_ms {
            info!(epoch = asked.epoch, from_ms, until_ms, "authority begins");
        } else {
            debug!(epoch = asked.epoch, from_ms, until_ms, "authority goes on");
        }
        ha.set_authority(Some(until_ms));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::conf::Reader;

    fn authority() -> Authority {
        let text = "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9878\nbrokerName=b\n";
        let reader = Reader::parse(Path::new("broker.conf"), text).expect("parses");
        Authority::new(&BrokerConf::read(reader).expect("reads"))
    }

    fn answer(lease_mills: Option<i64>, epoch: i32) -> BrokerHeartbeatResponse {
        BrokerHeartbeatResponse {
            lease_mills,
            lease_epoch: Some(epoch),
            ..BrokerHeartbeatResponse::default()
        }
    }

    fn until_ms(authority: &Authority) -> u64 {
        authority.state.lock().lease.until_ms()
    }

    #[test]
    fn only_the_full_lease_in_the_epoch_asked_for_is_authority() {
        let cases = [
            (Some(1200), 3, true),
            (Some(1199), 3, false),
            (Some(0), 3, false),
            (Some(1200), 2, false),
            (None, 3, false),
        ];
        for (lease_mills, epoch, granted) in cases {
            let authority = authority();
            authority.begin(3);
            let asked = authority.to_send().asked;
            let got = authority.answered(None, asked, &answer(lease_mills, epoch));
            assert_eq!(got, granted, "{lease_mills:?} {epoch}");
            assert_eq!(until_ms(&authority) > 0, granted, "{lease_mills:?} {epoch}");
        }
    }

    #[test]
    fn a_refusal_for_the_settings_is_remembered_and_what_passes_by_itself_is_not() {
        let refusals = [
            (Some(LeaseRefusal::Times), true),
            (Some(LeaseRefusal::NotLeader), false),
            (Some(LeaseRefusal::NotDecided), false),
            // A controller of an older version.
            (None, false),
        ];
        for (code, kept) in refusals {
            let authority = authority();
            authority.begin(3);
            let refusal = BrokerHeartbeatResponse {
                lease_why: Some("needs a controller that waits longer".to_owned()),
                lease_code: code.map(LeaseRefusal::value),
                ..answer(Some(0), 3)
            };
            let asked = authority.to_send().asked;
            assert!(!authority.answered(None, asked, &refusal));
            let told = authority.state.lock().refused.clone();
            assert_eq!(told.is_some(), kept, "{code:?}");
        }
    }

    #[test]
    fn a_java_controller_counts_only_where_none_of_ours_ever_answered() {
        let authority = authority();
        authority.begin(3);
        assert!(authority.by_polling().is_none(), "nobody answered yet");
        authority.answered(None, authority.to_send().asked, &answer(None, 3));
        let asked = authority.by_polling().expect("Java's");
        authority.state.lock().lease.granted(asked);
        authority.line_broke(None);
        assert_eq!(until_ms(&authority), 0, "the line is part of the proof");
        authority.answered(None, authority.to_send().asked, &answer(Some(0), 3));
        assert!(authority.by_polling().is_none() && authority.is_ours());
        authority.answered(None, authority.to_send().asked, &answer(Some(1200), 3));
        authority.line_broke(None);
        assert!(until_ms(&authority) > 0, "a lease does not hang on a line");
    }

    #[test]
    fn a_heartbeat_is_sent_four_times_in_a_lease() {
        let text = "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9878\nbrokerName=b\n\
                    brokerHeartbeatInterval=1000\n";
        let reader = Reader::parse(Path::new("broker.conf"), text).expect("parses");
        let conf = BrokerConf::read(reader).expect("reads");
        assert_eq!(conf.lease_times().heartbeat_ms, 300);
    }
}

//! How far the copy is, and the line that says so.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use epochlog_engine::Offset;
use epochlog_ha::ClientInfo;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

use super::ReplicaError;

/// The newest of what is known. Pure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Progress {
    /// `READY` (no connection), `HANDSHAKE` or `TRANSFER`.
    state: &'static str,
    min_offset: Offset,
    /// End of the copy: whole, checked records.
    end_offset: Offset,
    /// The newest end the master told of.
    master_end: Offset,
    /// Bytes the copy is behind that.
    lag: u64,
    bytes_per_second: u64,
    /// Bytes the last handshake cut.
    cut_bytes: u64,
    /// Why the last connection ended.
    last_close: Option<String>,
}

impl Progress {
    /// Nothing but the end of the master's log is known.
    pub(super) fn new(master_end: Offset) -> Self {
        Self {
            state: "READY",
            min_offset: 0,
            end_offset: 0,
            master_end,
            lag: master_end,
            bytes_per_second: 0,
            cut_bytes: 0,
            last_close: None,
        }
    }

    pub(super) fn take(&mut self, client: &ClientInfo, min_offset: Offset) {
        self.state = client.state;
        self.min_offset = min_offset;
        self.end_offset = client.max_offset;
        if let Some(told) = client.master_max_offset {
            self.master_end = told;
        }
        self.lag = self.master_end.saturating_sub(self.end_offset);
        self.bytes_per_second = client.transferred_byte_in_second;
        self.cut_bytes = client.last_join.as_ref().map_or(0, |join| join.cut_bytes);
        self.last_close.clone_from(&client.last_close);
    }

    /// Whether the copy holds all that the master told of on this connection, and the master has
    /// been told so.
    pub(super) fn is_level(&self) -> bool {
        self.state == "TRANSFER" && self.lag == 0
    }

    fn line(&self) -> String {
        let lag = HumanBytes(self.lag);
        let speed = HumanBytes(self.bytes_per_second);
        let why = match (&self.last_close, self.state) {
            (Some(why), "READY") => format!(", no connection: {why}"),
            _ => String::new(),
        };
        format!(
            "{}: [{}, {}), behind {lag}, {speed}/s{why}",
            self.state, self.min_offset, self.end_offset
        )
    }
}

/// Since when the copy has not grown, for one that somebody waits for. Pure.
#[derive(Debug)]
pub(super) struct Growth {
    give_up: Option<Duration>,
    end: Offset,
    since: Instant,
    looked: Instant,
    why: Option<String>,
}

impl Growth {
    /// `give_up`: none waits for ever.
    pub(super) fn new(give_up: Option<Duration>, end: Offset, now: Instant) -> Self {
        Self {
            give_up,
            end,
            since: now,
            looked: now,
            why: None,
        }
    }

    /// The copy ends at `end`, and its last connection ended for the reason `why` if it has ended.
    pub(super) fn look(&mut self, end: Offset, why: Option<&str>, now: Instant) {
        self.looked = now;
        if end > self.end {
            self.since = now;
            self.why = None;
        }
        self.end = end;
        // A connection that was just made does not take back why the one before ended.
        if let Some(why) = why {
            self.why = Some(why.to_owned());
        }
    }

    /// # Errors
    /// [`ReplicaError::Stalled`] if the copy of `master` has not grown for too long.
    pub(super) fn check(&self, master: SocketAddr) -> Result<(), ReplicaError> {
        let still = self.looked.duration_since(self.since);
        match self.give_up {
            Some(give_up) if still >= give_up => Err(ReplicaError::Stalled {
                master,
                end: self.end,
                seconds: still.as_secs(),
                why: match &self.why {
                    Some(why) => why.clone(),
                    None => "nothing comes, and no connection has ended".to_owned(),
                },
            }),
            _ => Ok(()),
        }
    }
}

/// A bar on a terminal, lines elsewhere, JSON where asked for.
pub(super) enum Shown {
    Bar(ProgressBar),
    Lines,
    Json,
}

impl Shown {
    pub(super) fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines;
        }
        let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}  {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self::Bar(ProgressBar::new(0).with_style(style))
    }

    /// `last`: nothing follows.
    pub(super) fn show(&self, progress: &Progress, last: bool) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(progress.master_end.saturating_sub(progress.min_offset));
                let held = progress.end_offset.saturating_sub(progress.min_offset);
                bar.set_position(held);
                bar.set_message(progress.line());
                if last {
                    bar.finish();
                }
            }
            Self::Lines => println!("{}", progress.line()),
            Self::Json => {
                let line = serde_json::to_string(progress);
                println!("{}", line.expect("numbers and strings always serialize"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(state: &'static str, end: Offset, told: Option<Offset>) -> ClientInfo {
        ClientInfo {
            master_addr: ([127, 0, 0, 1], 10912).into(),
            state,
            transferred_byte_in_second: 5,
            max_offset: end,
            master_max_offset: told,
            reported_offset: None,
            last_read_age_ms: None,
            last_write_age_ms: None,
            is_activated: state == "TRANSFER",
            last_join: None,
            last_close: Some("reset".to_owned()),
            needs_operator: false,
        }
    }

    #[test]
    fn a_copy_is_level_only_on_a_connection_and_at_the_newest_end_told() {
        let mut progress = Progress::new(100);
        assert!(!progress.is_level());
        progress.take(&client("READY", 100, None), 0);
        assert!(!progress.is_level(), "no connection");
        progress.take(&client("TRANSFER", 99, Some(100)), 0);
        assert_eq!((progress.is_level(), progress.lag), (false, 1));
        progress.take(&client("TRANSFER", 100, Some(100)), 0);
        assert!(progress.is_level());
        progress.take(&client("TRANSFER", 100, Some(140)), 0);
        assert_eq!((progress.is_level(), progress.lag), (false, 40));
        // A master that came back shorter: what was known of its end before does not count.
        progress.take(&client("TRANSFER", 90, Some(90)), 10);
        assert!(progress.is_level());
    }

    #[test]
    fn a_copy_that_does_not_grow_is_given_up_with_the_last_reason() {
        let master = SocketAddr::from(([127, 0, 0, 1], 10912));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut growth = Growth::new(Some(Duration::from_secs(10)), 100, begin);
        growth.look(100, Some("bad crc"), at(9));
        assert!(growth.check(master).is_ok());
        growth.look(101, None, at(9));
        growth.look(101, None, at(18));
        assert!(growth.check(master).is_ok(), "it has grown meanwhile");
        growth.look(101, Some("bad crc at 101"), at(18));
        // A cut is no growth, and a new connection no reason.
        growth.look(60, None, at(19));
        let error = growth.check(master).expect_err("ten seconds").to_string();
        assert!(
            error.contains("beyond 60 for 10 s: bad crc at 101"),
            "{error}"
        );
        growth.look(61, None, at(30));
        assert!(growth.check(master).is_ok());
        let mut patient = Growth::new(None, 0, begin);
        patient.look(0, None, at(1 << 20));
        assert!(patient.check(master).is_ok(), "nobody waits for it");
    }

    #[test]
    fn the_line_says_why_there_is_no_connection() {
        let mut progress = Progress::new(100);
        progress.take(&client("READY", 40, None), 0);
        let line = progress.line();
        assert!(
            line.contains("behind 60 B") && line.ends_with("no connection: reset"),
            "{line}"
        );
        progress.take(&client("TRANSFER", 40, Some(100)), 0);
        assert!(!progress.line().contains("reset"));
    }
}

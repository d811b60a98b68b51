//! How far the copy is, and the line that says so.

use std::io::IsTerminal;

use epochlog_engine::Offset;
use epochlog_ha::ClientInfo;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

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

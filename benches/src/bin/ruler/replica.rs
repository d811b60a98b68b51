//! One process of either side: lines in, JSON lines out, CPU time from `/proc`.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::plan::Side;

/// Longer than any command takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(300);
/// What a replica is given to wait for another, in ms.
pub(crate) const PATIENCE_MS: u64 = 240_000;

/// A running replica; killed when it is dropped.
pub(crate) struct Replica {
    child: Child,
    /// None once it was told to end.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
    /// What it said first.
    hello: Value,
}

impl Replica {
    /// Starts replica `id` of `side` with its store in `dir`, and waits until it is up.
    ///
    /// # Errors
    /// If the program does not start or does not say that it is up.
    pub(crate) fn start(
        side: &Side,
        id: u64,
        dir: &Path,
        segment_size: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let name = format!("{} replica {id}", side.name);
        let mut child = Command::new(&side.program)
            .args(["bench", "--dir"])
            .arg(dir)
            .args(["--id", &id.to_string()])
            .args(["--segment-size", &segment_size.to_string()])
            .args(&side.more_args)
            .envs(side.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", side.program.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the pipes of a child are there once".into());
        };
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let mut replica = Self {
            child,
            input: Some(input),
            lines,
            name,
            hello: Value::Null,
        };
        replica.hello = replica.answer("its start")?;
        Ok(replica)
    }

    /// What it is: name and release.
    pub(crate) fn what(&self) -> String {
        self.hello["what"].as_str().unwrap_or("?").to_owned()
    }

    /// Where slaves reach it.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) fn ha_addr(&mut self) -> Result<String, Box<dyn Error>> {
        let status = self.ask("status")?;
        Ok(format!("127.0.0.1:{}", integer(&status, "ha_port")?))
    }

    /// Sends a line and waits for its answer.
    ///
    /// # Errors
    /// If there is none, or it says that the command failed.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Value, Box<dyn Error>> {
        let sent = match &mut self.input {
            Some(input) => writeln!(input, "{line}"),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| format!("{}: {error}", self.name))?;
        self.answer(line)
    }

    fn answer(&mut self, asked: &str) -> Result<Value, Box<dyn Error>> {
        let name = &self.name;
        let line = self
            .lines
            .recv_timeout(PATIENCE)
            .map_err(|_| format!("{name}: no answer to {asked:?}, see its standard error"))?;
        let answer: Value = serde_json::from_str(&line)
            .map_err(|error| format!("{name}: {asked:?} was answered {line:?}: {error}"))?;
        match answer["ok"].as_bool() {
            Some(true) => Ok(answer),
            _ => Err(format!("{name}: {asked:?} was answered {line}").into()),
        }
    }

    /// CPU seconds of all its threads since its start, to 10 ms.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn cpu_s(&self) -> Result<f64, Box<dyn Error>> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let ticks = ticks(&stat).ok_or_else(|| format!("{path}: no CPU times in {stat:?}"))?;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Ends it as SIGKILL would: what it wrote stays in the page cache.
    pub(crate) fn halt(mut self) {
        // It may be gone already. The pipe is closed too: a script around the program may read it.
        let _ = self.input.take().map(|mut input| writeln!(input, "halt"));
        let _ = self.child.wait();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time of `/proc/PID/stat`, in clock ticks. The program's name stands in brackets
/// and may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// A number of an answer.
pub(crate) fn number(answer: &Value, key: &str) -> Result<f64, String> {
    let value = answer[key].as_f64();
    value.ok_or_else(|| format!("no number {key} in {answer}"))
}

/// A whole number of an answer.
pub(crate) fn integer(answer: &Value, key: &str) -> Result<u64, String> {
    let value = answer[key].as_u64();
    value.ok_or_else(|| format!("no whole number {key} in {answer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "42 (a) 7 (b)) S 1 42 42 0 -1 4194304 9 8 7 6 120 34 5 6 20 0 1 0 100 0 0";
        assert_eq!(ticks(stat), Some(154));
        assert_eq!(ticks("42 (cut) S 1 42"), None);
        assert_eq!(ticks(""), None);
    }
}

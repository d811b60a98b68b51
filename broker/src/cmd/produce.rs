//! `epochlog produce`: sends messages to a broker and tells what was acknowledged.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use crate::producer::{Producer, SendError};

/// Longest line that is sent as a message; RocketMQ's default maxMessageSize.
const MAX_LINE_LEN: u64 = 4 * 1024 * 1024;

/// Send messages to a broker.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The master's listen address
    #[arg(long, value_name = "HOST:PORT")]
    addr: String,
    /// Topic to send to
    #[arg(long)]
    topic: String,
    /// Send the lines of this file, one message each; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "size"])]
    file: Option<PathBuf>,
    /// Without --file: how many messages to make
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Without --file: bytes of each body
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    size: u32,
    /// Most messages on the way at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: u32,
    /// How long one message may take, in ms
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: u64,
}

/// What happened to the messages.
#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    acked: u64,
    acked_bytes: u64,
    latencies_us: Vec<u32>,
    /// By what the broker said; the text is one example.
    failures: BTreeMap<String, (u64, String)>,
}

/// Runs the command. Exit code 1 if a message was not acknowledged.
///
/// # Errors
/// The input cannot be read, or the runtime cannot start.
pub fn run(args: &Args) -> std::io::Result<ExitCode> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    let bodies = bodies(args)?;
    let begin = Instant::now();
    let tally = runtime.block_on(send_all(args, bodies))?;
    print(&tally, begin.elapsed());
    let all = tally.acked == tally.sent;
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

type Bodies = Box<dyn Iterator<Item = std::io::Result<Bytes>> + Send>;

fn bodies(args: &Args) -> std::io::Result<Bodies> {
    let Some(path) = &args.file else {
        let body = Bytes::from(vec![b'x'; args.size as usize]);
        return Ok(Box::new((0..args.count).map(move |_| Ok(body.clone()))));
    };
    if path.as_os_str() == "-" {
        return Ok(Box::new(Lines(BufReader::new(std::io::stdin()))));
    }
    let file = File::open(path).map_err(|error| {
        std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })?;
    Ok(Box::new(Lines(BufReader::new(file))))
}

/// Lines without their ends; empty ones are skipped, since a message needs a body.
struct Lines<R>(R);

impl<R: BufRead> Iterator for Lines<R> {
    type Item = std::io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = Vec::new();
            let mut limited = std::io::Read::take(&mut self.0, MAX_LINE_LEN + 1);
            match limited.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(read) if read as u64 > MAX_LINE_LEN => {
                    let text = format!("a line is longer than {MAX_LINE_LEN} bytes");
                    return Some(Err(std::io::Error::other(text)));
                }
                Ok(_) => {
                    while matches!(line.last(), Some(b'\n' | b'\r')) {
                        line.pop();
                    }
                    if !line.is_empty() {
                        return Some(Ok(line.into()));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Bodies read ahead of the sender.
const READ_AHEAD: usize = 256;

async fn send_all(args: &Args, bodies: Bodies) -> std::io::Result<Tally> {
    let in_flight = args.in_flight as usize;
    let producer = Producer::new(
        &args.topic,
        in_flight,
        Duration::from_millis(args.timeout_ms),
    );
    let tally = Arc::new(Mutex::new(Tally::default()));
    let permits = Arc::new(Semaphore::new(in_flight));
    let address: Arc<str> = args.addr.as_str().into();
    // Reading may wait for a terminal or a pipe, so it has a thread of its own.
    let (read, mut bodies_read) = mpsc::channel(READ_AHEAD);
    std::thread::spawn(move || {
        for body in bodies {
            if read.blocking_send(body).is_err() {
                return;
            }
        }
    });
    while let Some(body) = bodies_read.recv().await {
        let body = body?;
        let permit = Arc::clone(&permits)
            .acquire_owned()
            .await
            .map_err(std::io::Error::other)?;
        let (producer, tally) = (producer.clone(), Arc::clone(&tally));
        let address = Arc::clone(&address);
        tokio::spawn(async move {
            let begin = Instant::now();
            let len = body.len() as u64;
            let result = producer.send(&address, body, "").await;
            tally.lock().take(result.err(), len, begin.elapsed());
            drop(permit);
        });
    }
    // Every permit back means that every message came to an end.
    let _ = permits.acquire_many(args.in_flight).await;
    let tally = std::mem::take(&mut *tally.lock());
    Ok(tally)
}

impl Tally {
    fn take(&mut self, error: Option<SendError>, len: u64, took: Duration) {
        self.sent += 1;
        let Some(error) = error else {
            self.acked += 1;
            self.acked_bytes += len;
            self.latencies_us
                .push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
            return;
        };
        let kind = match error.code() {
            Some(code) => format!("code {code}"),
            None => "no answer".to_owned(),
        };
        let entry = self
            .failures
            .entry(kind)
            .or_insert_with(|| (0, error.to_string()));
        entry.0 += 1;
    }
}

fn print(tally: &Tally, took: Duration) {
    let seconds = took.as_secs_f64().max(1e-6);
    let mut latencies = tally.latencies_us.clone();
    latencies.sort_unstable();
    println!(
        "{} of {} messages acknowledged in {:.2} s: {:.0} messages/s, {:.2} MiB/s",
        tally.acked,
        tally.sent,
        seconds,
        whole(tally.acked) / seconds,
        whole(tally.acked_bytes) / seconds / f64::from(1 << 20),
    );
    if let (Some(p50), Some(p99)) = (percentile(&latencies, 50), percentile(&latencies, 99)) {
        println!("latency p50 {} ms, p99 {} ms", in_ms(p50), in_ms(p99));
    }
    for (kind, (count, example)) in &tally.failures {
        println!("{count} not acknowledged, {kind}: {example}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn whole(count: u64) -> f64 {
    count as f64
}

fn in_ms(us: u32) -> String {
    format!("{:.3}", f64::from(us) / 1000.0)
}

fn percentile(sorted: &[u32], percent: usize) -> Option<u32> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_ends_and_empty_ones_are_skipped() {
        let lines = Lines(&b"a\r\n\n b \nc"[..]).map(|line| line.expect("reads"));
        assert_eq!(lines.collect::<Vec<_>>(), ["a", " b ", "c"]);
        let long = vec![b'x'; 4 * 1024 * 1024 + 1];
        assert!(Lines(&long[..]).next().expect("an error").is_err());
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7], 99), Some(7));
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!(
            (percentile(&hundred, 50), percentile(&hundred, 99)),
            (Some(50), Some(99))
        );
    }

    #[test]
    fn failures_are_counted_by_code() {
        let mut tally = Tally::default();
        let refused = |code| {
            Some(SendError::Refused {
                code,
                remark: "no".into(),
            })
        };
        tally.take(refused(14), 1, Duration::ZERO);
        tally.take(refused(14), 1, Duration::ZERO);
        tally.take(
            Some(SendError::NoAnswer { why: "gone".into() }),
            1,
            Duration::ZERO,
        );
        tally.take(None, 5, Duration::from_micros(3));
        assert_eq!((tally.sent, tally.acked, tally.acked_bytes), (4, 1, 5));
        let counts: Vec<_> = tally
            .failures
            .iter()
            .map(|(kind, (n, _))| (kind.as_str(), *n))
            .collect();
        assert_eq!(counts, [("code 14", 2), ("no answer", 1)]);
    }
}

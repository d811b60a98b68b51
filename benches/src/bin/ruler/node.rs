//! Our side of the ruler: a store and its replication in one process, timed. Each line read from
//! standard input gives one line of JSON; `"ok":false` carries the reason. The same lines as of
//! `rocketmq-peer bench`. CPU time is read from outside.

mod writes;

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use epochlog_engine::{Store, StoreConfig};
use epochlog_ha::{AckPolicy, HaConfig, HaService, SyncStateSet};
use serde_json::{Value, json};

use crate::messages::Messages;

/// How a command ends: with the fields of its answer.
pub(crate) type Answer = Result<Value, Box<dyn Error>>;

const LOOK: Duration = Duration::from_millis(1);
/// What is not dispatched after so long without progress is waiting for something else.
const STALL: Duration = Duration::from_millis(200);
const PROPOSALS: Duration = Duration::from_millis(50);
/// Nothing listens there.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

#[derive(clap::Args)]
pub(crate) struct NodeArgs {
    /// The store folder
    #[arg(long)]
    dir: PathBuf,
    /// Id of this replica
    #[arg(long)]
    id: u64,
    /// Bytes of each segment
    #[arg(long, default_value_t = 1 << 30)]
    segment_size: u64,
}

struct Node {
    store: Arc<Store>,
    config: HaConfig,
    service: Arc<HaService>,
    policy: AckPolicy,
    /// Epoch of the term, 0 before the first.
    epoch: u32,
    messages: Messages,
}

/// Serves standard input to its end.
///
/// # Errors
/// If the store or the service does not open, or nobody reads the answers.
pub(crate) fn run(args: NodeArgs) -> Result<(), Box<dyn Error>> {
    let mut store = StoreConfig::new(args.dir);
    store.segment_size = args.segment_size;
    let store = Arc::new(Store::open(store)?);
    let config = HaConfig::on_loopback(args.id);
    let service = serve(&store, &config)?;
    let mut node = Node {
        store,
        config,
        service,
        policy: AckPolicy::Local,
        epoch: 0,
        messages: Messages::new(),
    };
    let mut hello = node.status();
    hello["what"] = json!(concat!("epochlog ", env!("CARGO_PKG_VERSION")));
    say(hello)?;
    for line in stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.first() {
            // As a SIGKILL would end it: nothing is closed.
            Some(&"halt") => std::process::exit(0),
            Some(&"stop") => break,
            _ => {}
        }
        let answer = node.execute(&words);
        say(answer.unwrap_or_else(|error| json!({"ok": false, "why": error.to_string()})))?;
    }
    node.service.shutdown();
    node.store.close()?;
    say(json!({"ok": true}))
}

fn say(answer: Value) -> Result<(), Box<dyn Error>> {
    writeln!(stdout(), "{answer}")?;
    Ok(stdout().flush()?)
}

/// The service, and the part of a controller that says yes to everything.
fn serve(store: &Arc<Store>, config: &HaConfig) -> Result<Arc<HaService>, Box<dyn Error>> {
    let service = Arc::new(HaService::start(Arc::clone(store), config.clone())?);
    let weak: Weak<HaService> = Arc::downgrade(&service);
    thread::spawn(move || {
        while let Some(service) = weak.upgrade() {
            if let Some(mut set) = service.next_proposal() {
                set.epoch += 1;
                service.set_sync_state_set(set);
            }
            drop(service);
            thread::sleep(PROPOSALS);
        }
    });
    Ok(service)
}

fn word<T: std::str::FromStr<Err: Error + 'static>>(
    words: &[&str],
    at: usize,
) -> Result<T, Box<dyn Error>> {
    let word = words
        .get(at)
        .ok_or_else(|| format!("{} lacks its argument {at}", words[0]))?;
    Ok(word.parse()?)
}

impl Node {
    fn execute(&mut self, words: &[&str]) -> Answer {
        match words.first().copied().unwrap_or_default() {
            "master" => {
                self.epoch = word(words, 1)?;
                let set = SyncStateSet::new([self.config.broker_id], 1);
                self.service.become_master(self.epoch, set)?;
            }
            "leave" => {
                self.service.become_slave(word(words, 1)?, 1, NOBODY)?;
            }
            "catch-up" => return self.catch_up(words),
            "set" => {
                let ids: Result<Vec<u64>, _> = word::<String>(words, 1)?
                    .split(',')
                    .map(str::parse)
                    .collect();
                let epoch = self.service.runtime_info().sync_state_set;
                let epoch = epoch.map_or(1, |set| set.epoch + 1);
                self.service
                    .set_sync_state_set(SyncStateSet::new(ids?, epoch));
            }
            "frames" => self.frames(word(words, 1)?)?,
            "acks" => {
                self.policy = match words.get(1) {
                    Some(&"all") => AckPolicy::AllInSync,
                    Some(&"one") => AckPolicy::Local,
                    other => return Err(format!("acks are one or all, not {other:?}").into()),
                };
            }
            "warm" => return self.warm(word(words, 1)?, word(words, 2)?),
            "append" => return self.append(word(words, 1)?, word(words, 2)?),
            "puts" => return self.puts(word(words, 1)?, word(words, 2)?),
            "wait" => self.wait(word(words, 1)?, word(words, 2)?)?,
            "settle" => self.settle(word(words, 1)?)?,
            "status" => {}
            other => return Err(format!("unknown command {other:?}").into()),
        }
        Ok(self.status())
    }

    /// The time from the last look before the first byte until all of the log up to an offset is here.
    fn catch_up(&self, words: &[&str]) -> Answer {
        let addr: SocketAddr = word(words, 3)?;
        let to: u64 = word(words, 4)?;
        let deadline = Instant::now() + Duration::from_millis(word(words, 5)?);
        let start = self.store.end_offset();
        self.service
            .become_slave(word(words, 1)?, word(words, 2)?, addr)?;
        let mut began = Instant::now();
        while self.store.end_offset() <= start {
            began = Instant::now();
            pause(deadline, || "nothing came from the master".to_owned())?;
        }
        while self.store.end_offset() < to {
            pause(deadline, || self.late(to))?;
        }
        Ok(self.timed(began, start))
    }

    fn late(&self, to: u64) -> String {
        format!("the log ends at {}, not at {to}", self.store.end_offset())
    }

    fn wait(&self, to: u64, patience_ms: u64) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + Duration::from_millis(patience_ms);
        while self.store.end_offset() < to {
            pause(deadline, || self.late(to))?;
        }
        Ok(())
    }

    /// Until the consume queues have everything, or get nothing more for a while: a slave learns late
    /// what is confirmed.
    fn settle(&self, patience_ms: u64) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + Duration::from_millis(patience_ms);
        let mut behind = self.behind();
        let mut changed = Instant::now();
        while behind > 0 && changed.elapsed() < STALL {
            pause(deadline, || {
                format!("the consume queues are still {behind} bytes behind")
            })?;
            let now = self.behind();
            if now != behind {
                changed = Instant::now();
            }
            behind = now;
        }
        Ok(())
    }

    fn behind(&self) -> u64 {
        let dispatched = self.store.dispatched_offset();
        self.store.end_offset().saturating_sub(dispatched)
    }

    /// Frames of at most so many bytes, also to slaves that are far behind. The service begins anew,
    /// on another port.
    fn frames(&mut self, bytes: u32) -> Result<(), Box<dyn Error>> {
        self.config.transfer_batch_size = bytes;
        self.config.extended_batch_size = bytes;
        self.service.shutdown();
        self.service = serve(&self.store, &self.config)?;
        if self.epoch > 0 {
            let set = SyncStateSet::new([self.config.broker_id], 1);
            self.service.become_master(self.epoch, set)?;
        }
        Ok(())
    }

    fn timed(&self, began: Instant, from: u64) -> Value {
        let wall = began.elapsed();
        let end = self.store.end_offset();
        json!({"ok": true, "wall_s": wall.as_secs_f64(), "bytes": end - from, "end": end})
    }

    fn status(&self) -> Value {
        let set = self.service.runtime_info().sync_state_set;
        json!({
            "ok": true,
            "ha_port": self.service.listen_addr().port(),
            "end": self.store.end_offset(),
            "confirm": self.store.confirm_offset(),
            "behind": self.behind(),
            "sync_state_set": set.map(|set| set.members),
        })
    }
}

fn pause(deadline: Instant, late: impl FnOnce() -> String) -> Result<(), String> {
    if Instant::now() > deadline {
        return Err(late());
    }
    thread::sleep(LOOK);
    Ok(())
}

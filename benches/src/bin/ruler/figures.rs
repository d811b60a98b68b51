//! The measurements, step by step, the same for both sides.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::check::Digest;
use crate::plan::{DEFAULT_FRAMES, IN_FLIGHT, Plan, Side};
use crate::replica::{PATIENCE_MS, Replica, integer, number};

const EPOCH: u32 = 1;
const GIGA: f64 = 1e9;

/// One measured figure of one side.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// The same on both sides.
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// Wall time, in seconds.
    pub(crate) wall_s: f64,
    /// CPU seconds of each process, the master first; until its consume queues had all that was
    /// confirmed. Empty for a second figure of the same run.
    pub(crate) cpu_s: Vec<f64>,
    /// Bytes of log.
    pub(crate) bytes: u64,
}

impl Figure {
    /// As one JSON line.
    pub(crate) fn line(&self, side: &str, run: usize) -> Value {
        json!({
            "side": side, "run": run, "figure": self.name, "value": self.value, "unit": self.unit,
            "wall_s": self.wall_s, "cpu_s": self.cpu_s, "bytes": self.bytes,
        })
    }

    /// CPU seconds of all processes for a GB (10^9 bytes) of log.
    pub(crate) fn cpu_s_per_gb(&self) -> Option<f64> {
        let all: f64 = self.cpu_s.iter().sum();
        (!self.cpu_s.is_empty()).then(|| all * GIGA / self.bytes as f64)
    }

    fn rate(name: &str, wall_s: f64, cpu_s: Vec<f64>, bytes: u64) -> Self {
        Self {
            name: name.to_owned(),
            value: bytes as f64 / wall_s / GIGA,
            unit: "GB/s",
            wall_s,
            cpu_s,
            bytes,
        }
    }
}

/// What one side came to in one run.
pub(crate) struct Measured {
    /// What it says it is.
    pub(crate) what: String,
    pub(crate) figures: Vec<Figure>,
    /// Of every log it has written; the store times are left out.
    pub(crate) logs: Vec<Digest>,
}

/// Measures `side` with stores below `dir`.
///
/// # Errors
/// If a replica fails, or master and slave do not hold the same bytes in the end.
pub(crate) fn measure(side: &Side, plan: &Plan, dir: &Path) -> Result<Measured, Box<dyn Error>> {
    let mut figures = Vec::new();
    let (what, alone) = appending(side, plan, &dir.join("alone"), &mut figures)?;
    let replicated = replicating(side, plan, dir, &mut figures)?;
    Ok(Measured {
        what,
        figures,
        logs: vec![alone, replicated],
    })
}

/// Both replicas' CPU time from its making to [`Cpu::spent`].
struct Cpu(Vec<f64>);

impl Cpu {
    fn now(replicas: &[&mut Replica]) -> Result<Self, Box<dyn Error>> {
        let each: Result<_, _> = replicas.iter().map(|it| it.cpu_s()).collect();
        Ok(Self(each?))
    }

    /// What was spent by each, once the consume queues have what is confirmed.
    fn spent(self, replicas: &mut [&mut Replica]) -> Result<Vec<f64>, Box<dyn Error>> {
        for replica in replicas.iter_mut() {
            replica.ask(&format!("settle {PATIENCE_MS}"))?;
        }
        let now = Self::now(replicas)?.0;
        Ok(now
            .iter()
            .zip(self.0)
            .map(|(now, then)| now - then)
            .collect())
    }
}

fn append(
    master: &mut Replica,
    name: &str,
    count: usize,
    batch: usize,
) -> Result<Figure, Box<dyn Error>> {
    let cpu = Cpu::now(&[master])?;
    let answer = master.ask(&format!("append {count} {batch}"))?;
    let cpu = cpu.spent(&mut [master])?;
    let wall_s = number(&answer, "wall_s")?;
    Ok(Figure::rate(name, wall_s, cpu, integer(&answer, "bytes")?))
}

/// One replica alone, as master.
fn appending(
    side: &Side,
    plan: &Plan,
    dir: &Path,
    figures: &mut Vec<Figure>,
) -> Result<(String, Digest), Box<dyn Error>> {
    let mut master = Replica::start(side, 1, dir, plan.segment_size)?;
    let what = master.what();
    master.ask(&format!("master {EPOCH}"))?;
    master.ask(&format!("warm {} {}", side.warm_ms, plan.warm_messages))?;
    // Both ways once more at full speed: the compilers have seen each of them then.
    for batch in [1, plan.batch] {
        append(&mut master, "warm-up", plan.warm_messages / 2, batch)?;
    }
    let one = append(&mut master, "append, one by one", plan.messages, 1)?;
    figures.push(one);
    let name = format!("append, batches of {}", plan.batch);
    figures.push(append(&mut master, &name, plan.messages, plan.batch)?);
    let end = integer(&master.ask("status")?, "end")?;
    master.halt();
    Ok((what, Digest::of_log(dir, plan.segment_size, end)?))
}

/// A master and its slave.
struct Pair {
    master: Replica,
    slave: Replica,
}

impl Pair {
    /// The time in which the slave takes `count` messages that were written while it was away.
    fn catch_up(&mut self, name: &str, count: usize) -> Result<Figure, Box<dyn Error>> {
        self.master.ask("set 1")?;
        self.slave.ask(&format!("leave {EPOCH}"))?;
        let written = self.master.ask(&format!("append {count} 1"))?;
        self.rejoin(name, integer(&written, "end")?)
    }

    fn rejoin(&mut self, name: &str, end: u64) -> Result<Figure, Box<dyn Error>> {
        self.master.ask(&format!("settle {PATIENCE_MS}"))?;
        let addr = self.master.ha_addr()?;
        let (master, slave) = (&mut self.master, &mut self.slave);
        let cpu = Cpu::now(&[master, slave])?;
        let line = format!("catch-up {EPOCH} 1 {addr} {end} {PATIENCE_MS}");
        let answer = slave.ask(&line)?;
        let cpu = cpu.spent(&mut [master, slave])?;
        let wall_s = number(&answer, "wall_s")?;
        Ok(Figure::rate(name, wall_s, cpu, integer(&answer, "bytes")?))
    }

    /// The time from the first write until the slave has the last of `count`, none waiting for acks.
    fn live(&mut self, name: &str, count: usize) -> Result<Figure, Box<dyn Error>> {
        let (master, slave) = (&mut self.master, &mut self.slave);
        let cpu = Cpu::now(&[master, slave])?;
        let began = Instant::now();
        let written = master.ask(&format!("append {count} 1"))?;
        let end = integer(&written, "end")?;
        slave.ask(&format!("wait {end} {PATIENCE_MS}"))?;
        let wall_s = began.elapsed().as_secs_f64();
        let cpu = cpu.spent(&mut [master, slave])?;
        Ok(Figure::rate(name, wall_s, cpu, integer(&written, "bytes")?))
    }

    fn puts(&mut self, count: usize, in_flight: usize) -> Result<Vec<Figure>, Box<dyn Error>> {
        let (master, slave) = (&mut self.master, &mut self.slave);
        let cpu = Cpu::now(&[master, slave])?;
        let answer = master.ask(&format!("puts {count} {in_flight}"))?;
        let cpu = cpu.spent(&mut [master, slave])?;
        let name = format!("synchronous puts, {in_flight} in flight");
        let (wall_s, bytes) = (number(&answer, "wall_s")?, integer(&answer, "bytes")?);
        let figure = |name: String, value, unit, cpu_s| Figure {
            name,
            value,
            unit,
            wall_s,
            cpu_s,
            bytes,
        };
        let rate = figure(name.clone(), count as f64 / wall_s, "puts/s", cpu);
        let mut figures = vec![rate];
        for (key, what) in [("p50_us", "p50"), ("p99_us", "p99")] {
            if let Some(value) = answer[key].as_f64() {
                figures.push(figure(format!("{name}, {what}"), value, "µs", Vec::new()));
            }
        }
        Ok(figures)
    }

    /// Puts that both members of the SyncStateSet must have.
    fn synchronous(&mut self, plan: &Plan) -> Result<Vec<Figure>, Box<dyn Error>> {
        self.master.ask("set 1,2")?;
        self.master.ask("acks all")?;
        let status = self.master.ask("status")?;
        if status["sync_state_set"] != json!([1, 2]) {
            return Err(format!("puts would not wait for the slave: {status}").into());
        }
        let each = [(plan.puts_one, 1), (plan.puts_many, IN_FLIGHT)];
        for (count, in_flight) in each {
            self.puts(count, in_flight)?;
        }
        let mut figures = Vec::new();
        for (count, in_flight) in each {
            figures.extend(self.puts(count, in_flight)?);
        }
        self.master.ask("acks one")?;
        Ok(figures)
    }
}

fn replicating(
    side: &Side,
    plan: &Plan,
    dir: &Path,
    figures: &mut Vec<Figure>,
) -> Result<Digest, Box<dyn Error>> {
    let dirs = [dir.join("master"), dir.join("slave")];
    let mut pair = Pair {
        master: Replica::start(side, 1, &dirs[0], plan.segment_size)?,
        slave: Replica::start(side, 2, &dirs[1], plan.segment_size)?,
    };
    pair.master.ask(&format!("master {EPOCH}"))?;
    pair.master.ask(&format!("frames {DEFAULT_FRAMES}"))?;
    pair.catch_up("warm-up", 1024)?;
    let line = format!("warm {} {}", side.warm_ms, plan.warm_messages);
    let end = integer(&pair.master.ask(&line)?, "end")?;
    pair.slave.ask(&format!("wait {end} {PATIENCE_MS}"))?;
    for (frames, called) in [
        (DEFAULT_FRAMES, "frames of 32 KiB"),
        (side.best_frames, "best frames"),
    ] {
        pair.master.ask(&format!("frames {frames}"))?;
        pair.catch_up("warm-up", plan.warm_messages / 2)?;
        figures.push(pair.catch_up(&format!("catch-up, {called}"), plan.messages)?);
        figures.push(pair.live(&format!("live, {called}"), plan.messages)?);
        if frames == DEFAULT_FRAMES {
            figures.extend(pair.synchronous(plan)?);
        }
    }
    let end = integer(&pair.master.ask("status")?, "end")?;
    let of_slave = integer(&pair.slave.ask("status")?, "end")?;
    pair.master.halt();
    pair.slave.halt();
    if end != of_slave {
        return Err(format!("the master ends at {end}, the slave at {of_slave}").into());
    }
    let [master, slave] = dirs.map(|dir| Digest::of_log(&dir, plan.segment_size, end));
    let (master, slave) = (master?, slave?);
    if master != slave {
        return Err(format!("master and slave differ: {master:?}, {slave:?}").into());
    }
    Ok(master)
}

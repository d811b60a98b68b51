//! The test binary as its own child, and what it finds there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use epochlog_engine::{Store, StoreConfig};

use crate::common;

const FOLDER: &str = "EPOCHLOG_FAULT_FOLDER";
const PART: &str = "EPOCHLOG_FAULT_PART";

/// In the child: its folder, and which part of the story it is to tell.
pub(crate) fn role() -> Option<(PathBuf, String)> {
    let part = std::env::var(PART).unwrap_or_default();
    Some((std::env::var_os(FOLDER)?.into(), part))
}

/// How a child is started.
#[derive(Clone, Copy)]
pub(crate) enum Walls {
    None,
    /// In mount and user namespaces of its own, with a file system in memory of that many MiB.
    Memory {
        mib: u32,
    },
    /// In a mount namespace of its own, with ext4 on a file of that many MiB; the folder has it as
    /// `disk`. For root alone.
    Ext4 {
        mib: u32,
    },
}

/// Runs the test `name` of this binary in a child and answers how it ended; `None` if the machine does
/// not grant the walls.
pub(crate) fn run(name: &str, part: &str, dir: &Path, walls: Walls) -> Option<Output> {
    let script = match walls {
        Walls::None => "exec \"$@\"".to_owned(),
        Walls::Memory { mib } => {
            format!("mount -t tmpfs -o size={mib}m tmpfs \"${FOLDER}\" && exec \"$@\"")
        }
        Walls::Ext4 { mib } => format!(
            "cd \"${FOLDER}\" && mkdir -p disk && {{ [ -e image ] || {{ truncate -s {mib}M image \
             && mkfs.ext4 -q image; }}; }} && mount -o loop,errors=remount-ro image disk && exec \"$@\""
        ),
    };
    let mut command = match walls {
        Walls::None => Command::new("sh"),
        Walls::Memory { .. } => namespace("-rm")?,
        Walls::Ext4 { .. } => namespace("-m").filter(|_| loop_mounts())?,
    };
    let output = command
        .args(["-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(FOLDER, dir)
        .env(PART, part)
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    println!("{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

/// As [`run`], for a child that must come to its end.
pub(crate) fn succeed(name: &str, part: &str, dir: &Path, walls: Walls) -> bool {
    let Some(output) = run(name, part, dir, walls) else {
        println!("{name} is left out: this machine grants no such mount");
        return false;
    };
    let told = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(told && output.status.success(), "{name} {part}: {output:?}");
    true
}

fn namespace(kind: &str) -> Option<Command> {
    let granted = Command::new("unshare")
        .args([kind, "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    let mut command = Command::new("unshare");
    command.args([kind, "sh"]);
    granted.then_some(command)
}

/// Whether files can be mounted as disks here.
fn loop_mounts() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let script = "cd \"$0\" && truncate -s 8M image && mkfs.ext4 -q image && mkdir disk && \
                      mount -o loop image disk && umount disk";
        Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .arg(dir.path())
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

/// Runs a shell command in the child.
pub(crate) fn shell(script: &str, dir: &Path) {
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(dir)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

/// A store with segments of 1 MiB that does in the background what a broker's does.
pub(crate) fn config(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir);
    config.segment_size = 1 << 20;
    config.prefault_ahead_bytes = 256 << 10;
    config.flush_interval_ms = 3_600_000;
    config.queue_file_size = 20_000;
    config
}

/// Writes down that everything below `end` was acknowledged, where no fault reaches.
pub(crate) fn acknowledge(ledger: &Path, store: &Store, end: u64) {
    let bytes = &common::image(store)[..usize::try_from(end).unwrap()];
    fs::write(ledger, bytes).unwrap();
}

/// Opens the store, without faults, and holds it against the ledger.
pub(crate) fn nothing_acknowledged_is_lost(ledger: &Path, dir: &Path) -> Store {
    let acknowledged = fs::read(ledger).unwrap();
    assert!(!acknowledged.is_empty(), "the story acknowledged nothing");
    let store = Store::open(config(dir)).unwrap();
    let image = common::image(&store);
    assert!(
        image.starts_with(&acknowledged),
        "acknowledged bytes are gone"
    );
    let ends = common::starts(&store);
    assert!(!ends.is_empty());
    store
}

/// Files below `dir/commitlog`.
pub(crate) fn segments(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join("commitlog")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

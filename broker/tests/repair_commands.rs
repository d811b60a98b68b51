//! `epochlog verify` and `epochlog repair`: what they answer, and that a refusal leads to the repair.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use epochlog_engine::{EPOCH_FILE_NAME, Message, Store, StoreConfig};

fn epochlog(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epochlog"));
    command.args(arguments).output().expect("starts")
}

fn out(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn open(dir: &Path) -> Result<Store, epochlog_engine::Error> {
    let mut config = StoreConfig::new(dir);
    config.segment_size = 4096;
    config.prefault_ahead_bytes = 0;
    Store::open(config)
}

/// Ten messages in a closed store.
fn closed(dir: &Path) {
    let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 10911));
    let store = open(dir).expect("opens");
    store.promote(2).expect("promoted");
    for _ in 0..10 {
        let message = Message::new("T", &[b'x'; 700], host, 1);
        store.append(&message).expect("appended");
    }
    store.close().expect("closed");
}

#[test]
fn verify_and_repair_answer_with_their_exit_codes() {
    let dir = tempfile::tempdir().expect("temp dir");
    closed(dir.path());
    let path = dir.path().to_string_lossy().into_owned();
    let code = |arguments: &[&str], expected: i32| {
        let output = epochlog(arguments);
        let text = out(&output);
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{arguments:?}: {text}"
        );
        text
    };
    assert!(code(&["verify", &path], 0).starts_with("10 messages in [0, "));
    assert!(code(&["repair", "tail", &path], 1).contains("nothing was changed"));

    let segment = dir.path().join("commitlog/00000000000000000000");
    let file = std::fs::File::options()
        .write(true)
        .open(segment)
        .expect("opens");
    file.write_all_at(b"#", 2000).expect("writes");
    let told = code(&["verify", &path], 1);
    assert!(
        told.contains(&format!("`epochlog repair tail {path}`")),
        "{told}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&code(&["verify", &path, "--json"], 1)).expect("JSON");
    assert_eq!(json["ok"], false);
    let problem = &json["problems"][0];
    assert_eq!(problem["kind"], "Damage");
    assert!(
        problem["offset"].as_u64().is_some_and(|at| at <= 2000),
        "{json}"
    );
    let told = code(&["repair", "tail", &path, "--dry-run"], 0);
    assert!(
        told.contains("1. checkpoint") && told.contains("2. state file"),
        "{told}"
    );
    assert!(told.contains("nothing was changed"), "{told}");
    code(&["verify", &path], 1);
    assert!(code(&["repair", "tail", &path], 0).ends_with("done\n"));
    assert!(code(&["verify", &path], 0).contains("ok"));

    let epochs = dir.path().join(EPOCH_FILE_NAME);
    std::fs::write(&epochs, "junk").expect("writes");
    std::fs::remove_file(dir.path().join(format!("{EPOCH_FILE_NAME}.bak"))).expect("removes");
    assert!(code(&["verify", &path], 1).contains(&format!("`epochlog repair epoch {path}`")));
    assert!(code(&["repair", "epoch", &path], 1).contains("--entries"));
    code(&["repair", "epoch", &path, "--entries", "2"], 2);
    code(&["repair", "epoch", &path, "--entries", "2:0"], 0);
    drop(open(dir.path()).expect("opens"));

    code(&["repair", "resync", &path, "--discard"], 0);
    assert!(code(&["verify", &path], 0).starts_with("0 messages in [0, 0)"));
    code(&["verify", "no/such/folder"], 1);
    code(&["repair", "resync", "no/such/folder"], 1);
    assert_eq!(open(dir.path()).expect("opens").end_offset(), 0);
}

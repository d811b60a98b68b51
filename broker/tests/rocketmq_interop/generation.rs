//! How the release on the other side names replicas, and how long its master's answer is.

use epochlog_ha::{HaConfig, HandshakeAnswerForm};

/// The release that runs on the other side: 5.5.1 unless asked for another.
pub(crate) fn release() -> String {
    std::env::var("ROCKETMQ_VERSION").unwrap_or_else(|_| "5.5.1".to_owned())
}

/// 5.0.x and 5.1.0 name replicas by address, later ones by id.
pub(crate) fn names_by_address() -> bool {
    let release = release();
    release.starts_with("5.0.") || release == "5.1.0"
}

/// Topics beyond 127 bytes, in records of the second layout, came with 5.1.0.
pub(crate) fn has_second_layout() -> bool {
    !release().starts_with("5.0.")
}

/// What rocketmq-peer calls the replica of this id where addresses are names.
fn address_of(id: u64) -> String {
    format!("127.0.0.1:{id}")
}

/// Makes our replica `id` speak as that release does.
pub(crate) fn set(config: &mut HaConfig, id: u64) {
    if names_by_address() {
        config.slave_address = address_of(id).parse().ok();
        config.accept_address_handshake = true;
        config.address_ids = (1..=9).map(|id| (address_of(id), id)).collect();
    }
    if release().starts_with("5.0.") {
        config.answer_form = HandshakeAnswerForm::Long;
    }
}

/// The same for `epochlog replica`.
pub(crate) fn replica_options() -> [&'static str; 2] {
    match (names_by_address(), release().starts_with("5.0.")) {
        (true, true) => ["--handshake", "address-5.0.0"],
        (true, false) => ["--handshake", "address"],
        (false, _) => ["--handshake", "id"],
    }
}

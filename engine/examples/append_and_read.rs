//! Opens a store, appends a message, reads it back:
//! `cargo run -p epochlog-engine --example append_and_read`.
use epochlog_engine::{Error, Message, Store, StoreConfig};

fn main() -> Result<(), Error> {
    let store = Store::open(StoreConfig::new(
        std::env::temp_dir().join("epochlog-example"),
    ))?;
    store.promote(store.promises().max_epoch.map_or(1, |newest| newest + 1))?;
    let host = ([127, 0, 0, 1], 10911).into();
    let appended = store.append(&Message::new("greetings", b"hello, log", host, 0))?;
    store.flush()?;
    for view in store.records(appended.offset..appended.end) {
        println!("{:?} at {}", view?.record(), appended.offset);
    }
    store.close()
}

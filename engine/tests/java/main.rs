//! What RocketMQ wrote, kept under `fixtures/`, read with this crate: epoch files, records, whole stores.

mod epoch_files;
mod fixtures;
mod queues;
mod records;
mod stores;

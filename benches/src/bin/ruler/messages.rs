//! The messages both sides write, the same as in `fixtures/rocketmq-peer` (BenchMessages.java), byte
//! for byte: the n-th has the body and the key n % 64. They are made beforehand and written again and
//! again, so that no write pays for its message.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use epochlog_engine::Message;

const BODIES: usize = 64;
const BODY_LEN: usize = 1024;
const QUEUES: usize = 4;
const MOST_IN_A_BATCH: usize = 1024;
const BORN_MS: i64 = 1_700_000_000_000;
const HOST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10911);

/// Bodies and properties; the messages borrow them.
pub(crate) struct Messages {
    parts: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Messages {
    pub(crate) fn new() -> Self {
        let parts = (0..BODIES).map(|n| {
            let bytes = (0..=250u8).cycle().skip(n * 37 % 251);
            let properties = format!("KEYS\x01order-{n}\x02TAGS\x01a\x02");
            (bytes.take(BODY_LEN).collect(), properties.into_bytes())
        });
        Self {
            parts: parts.collect(),
        }
    }

    /// The n-th message of a run of single ones, for queue n % 4.
    pub(crate) fn single(&self, n: usize) -> Message<'_> {
        self.message(n, n % QUEUES)
    }

    /// As many batches of `size` messages as differ; the b-th batch of a run is the one at b modulo
    /// their number. All of a batch is for one queue, as a Java client sends it.
    ///
    /// # Errors
    /// If `size` is no power of two from 2 to 1024.
    pub(crate) fn batches(&self, size: usize) -> Result<Vec<Vec<Message<'_>>>, String> {
        if !size.is_power_of_two() || !(2..=MOST_IN_A_BATCH).contains(&size) {
            return Err(format!(
                "a batch has 2 to {MOST_IN_A_BATCH} messages, a power of two, not {size}"
            ));
        }
        let batch = |b: usize| {
            let first = b * size;
            (first..first + size)
                .map(|n| self.message(n, b % QUEUES))
                .collect()
        };
        Ok((0..QUEUES.max(BODIES / size)).map(batch).collect())
    }

    fn message(&self, n: usize, queue: usize) -> Message<'_> {
        let (body, properties) = &self.parts[n % BODIES];
        Message {
            queue_id: i32::try_from(queue).unwrap_or_default(),
            properties,
            ..Message::new("bench", body, HOST, BORN_MS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_the_ones_the_java_side_makes() {
        let messages = Messages::new();
        for n in [0usize, 1, 9, 63, 64, 130] {
            let message = messages.single(n);
            for (at, byte) in message.body.iter().enumerate() {
                assert_eq!(
                    usize::from(*byte),
                    (n % BODIES * 37 + at) % 251,
                    "{n}, {at}"
                );
            }
            assert_eq!(message.body.len(), 1024);
            let key = format!("KEYS\x01order-{}\x02TAGS\x01a\x02", n % 64);
            assert_eq!(message.properties, key.as_bytes());
            assert_eq!(message.queue_id, i32::try_from(n % 4).unwrap());
        }
    }

    #[test]
    fn batches_in_their_order_are_the_singles_in_theirs() {
        let messages = Messages::new();
        for size in [2, 16, 64, 256] {
            let batches = messages.batches(size).unwrap();
            let run = (0..1024 / size).flat_map(|b| &batches[b % batches.len()]);
            for (n, message) in run.enumerate() {
                assert_eq!(message.body, messages.single(n).body, "{size}, {n}");
            }
            for (b, batch) in batches.iter().enumerate() {
                let queue = i32::try_from(b % 4).unwrap();
                assert!(batch.iter().all(|message| message.queue_id == queue));
            }
        }
        for wrong in [0, 1, 3, 2048] {
            assert!(messages.batches(wrong).is_err(), "{wrong}");
        }
    }
}

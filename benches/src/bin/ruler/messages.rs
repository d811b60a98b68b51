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

    /// Batches of `size` messages.
    ///
    /// # Errors
    /// If `size` is no power of two from 2 to 1024.
    pub(crate) fn batches(&self, size: usize) -> Result<Batches<'_>, String> {
        if !size.is_power_of_two() || !(2..=MOST_IN_A_BATCH).contains(&size) {
            return Err(format!(
                "a batch has 2 to {MOST_IN_A_BATCH} messages, a power of two, not {size}"
            ));
        }
        let differ = (BODIES / size).max(1);
        let batch = |b: usize, queue| {
            let first = b * size;
            (first..first + size)
                .map(|n| self.message(n, queue))
                .collect()
        };
        let of_queue = |queue| (0..differ).map(|b| batch(b, queue)).collect();
        Ok(Batches {
            size,
            of_queues: (0..QUEUES).map(of_queue).collect(),
        })
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

/// For each queue as many batches as differ.
pub(crate) struct Batches<'a> {
    size: usize,
    of_queues: Vec<Vec<Vec<Message<'a>>>>,
}

impl<'a> Batches<'a> {
    /// The b-th of a run. All of it is for one queue, as a Java client sends it; a queue gets 1024 in a
    /// row, whatever the size of a batch.
    pub(crate) fn nth(&self, b: usize) -> &[Message<'a>] {
        let batches = &self.of_queues[b * self.size / MOST_IN_A_BATCH % QUEUES];
        &batches[b % batches.len()]
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
    fn a_run_of_batches_is_the_same_messages_whatever_their_size() {
        let messages = Messages::new();
        for size in [2, 16, 64, 256, 1024] {
            let batches = messages.batches(size).unwrap();
            for b in 0..3 * 4096 / size {
                let batch = batches.nth(b);
                assert_eq!(batch.len(), size);
                for (n, message) in (b * size..).zip(batch) {
                    let queue = i32::try_from(n / 1024 % 4).unwrap();
                    let expected = Message {
                        queue_id: queue,
                        ..messages.single(n)
                    };
                    assert_eq!(*message, expected, "{size}, {n}");
                }
            }
        }
        for wrong in [0, 1, 3, 2048] {
            assert!(messages.batches(wrong).is_err(), "{wrong}");
        }
    }
}

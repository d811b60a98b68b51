//! The next index of every queue, counted over the whole log.
//!
//! A message's queue offset is its index in the queue (topic, queue id). The table is filled by a
//! scan, moved on by every record that is appended or received, and taken back by a truncation. Its
//! lookups do not allocate for a queue it knows.

use std::collections::HashMap;

use crate::record::Record;

/// A name, and its queues with the next offset of each, by queue id.
type Topic = (Box<str>, Vec<(i32, i64)>);

#[derive(Default)]
pub(crate) struct QueueOffsets {
    /// Where a topic stands in `queues`. Clients choose the names, so the hash has a key of its own in
    /// each process; it takes half the time of the standard one.
    topics: HashMap<Box<str>, usize, ahash::RandomState>,
    /// Few queues per topic: a sorted list beats a second hash.
    queues: Vec<Topic>,
    /// The place of the topic asked for last; the next message is often of the same one, and
    /// comparing two names is cheaper than any such hash.
    last: usize,
}

impl QueueOffsets {
    /// The next offset of the queue, to be read and moved.
    pub(crate) fn next(&mut self, topic: &str, queue_id: i32) -> &mut i64 {
        let known = self.queues.get(self.last);
        if known.is_none_or(|(name, _)| **name != *topic) {
            self.last = match self.topics.get(topic) {
                Some(place) => *place,
                None => {
                    self.topics.insert(topic.into(), self.queues.len());
                    self.queues.push((topic.into(), Vec::new()));
                    self.queues.len() - 1
                }
            };
        }
        let queues = &mut self.queues[self.last].1;
        let place = match queues.binary_search_by_key(&queue_id, |(id, _)| *id) {
            Ok(place) => place,
            Err(place) => {
                queues.insert(place, (queue_id, 0));
                place
            }
        };
        &mut queues[place].1
    }

    /// A record has been put behind all that came before.
    pub(crate) fn put(&mut self, record: &Record<'_>) {
        if record.takes_queue_offset() {
            let messages = messages(record);
            let next = self.next(record.topic(), record.queue_id());
            *next = record.queue_offset().saturating_add(messages).max(*next);
        }
    }

    /// A record is about to be cut together with all behind it; called in log order.
    pub(crate) fn cut(&mut self, record: &Record<'_>) {
        if record.takes_queue_offset() {
            let next = self.next(record.topic(), record.queue_id());
            *next = record.queue_offset().min(*next);
        }
    }
}

/// Messages in a record: an inner batch takes a queue offset for each.
fn messages(record: &Record<'_>) -> i64 {
    if !record.is_inner_batch() {
        return 1;
    }
    let count = record.property("INNER_NUM");
    let count = count.and_then(|count| count.parse::<i16>().ok());
    count.map_or(1, |count| i64::from(count.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_counts_for_itself() {
        let mut offsets = QueueOffsets::default();
        for (topic, queue_id, expected) in [
            ("a", 0, 0),
            ("a", 1, 0),
            ("a", 0, 1),
            ("b", 0, 0),
            ("a", -1, 0),
            ("a", 0, 2),
        ] {
            let next = offsets.next(topic, queue_id);
            assert_eq!(*next, expected, "{topic}/{queue_id}");
            *next += 1;
        }
    }
}

//! The segments of a log walked side by side, by a thread for each core.
//!
//! A segment's records say themselves where they lie, so no walk needs what another one found. What each
//! found is put together in the log's order afterwards: the outcome is that of one walk from front to back.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

use crate::error::Error;
use crate::folder::SegmentFile;
use crate::position::Offset;
use crate::record::CheckOptions;
use crate::segment::to_len;
use crate::walk::{Item, Stop, walk};

use super::pieces::Pieces;

/// More threads than this read no disk faster.
const MOST_THREADS: usize = 8;

/// What a walk through one segment found.
#[derive(Debug)]
pub(super) struct Walked {
    /// Behind the last whole record or filler.
    pub(super) end: Offset,
    pub(super) stop: Stop,
    pub(super) messages: u64,
    /// Of the first and the last record, in ms since 1970.
    pub(super) store_ms: Option<(i64, i64)>,
}

impl Walked {
    /// Whether the log does not go on in the next segment.
    pub(super) fn is_the_end(&self) -> bool {
        !matches!(self.stop, Stop::Done | Stop::Asked)
    }
}

/// What all threads know.
struct Shared<'a> {
    files: &'a [SegmentFile],
    /// The next file that nobody has taken.
    next: AtomicUsize,
    /// The first file in which the log ends, or that cannot be read, as far as is known.
    last: AtomicUsize,
    /// Bytes walked.
    done: AtomicU64,
}

/// Walks the segments from the first to the one in which the log ends, or which cannot be read; tells now and
/// then how many bytes were walked. The outcomes are in the order of the files and lack none before the last.
pub(super) fn walk_all(
    files: &[SegmentFile],
    progress: &mut dyn FnMut(u64),
) -> Vec<Result<Walked, Error>> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    walk_with(files, cores.min(MOST_THREADS), progress)
}

fn walk_with(
    files: &[SegmentFile],
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Vec<Result<Walked, Error>> {
    let shared = Shared {
        files,
        next: AtomicUsize::new(0),
        last: AtomicUsize::new(usize::MAX),
        done: AtomicU64::new(0),
    };
    let mut found = thread::scope(|scope| {
        let more = 1..threads.min(files.len());
        let others: Vec<_> = more
            // Where there is no room for a thread, fewer do the same.
            .map_while(|_| {
                let work = || shared.work(&mut |_| {});
                thread::Builder::new().spawn_scoped(scope, work).ok()
            })
            .collect();
        let mut found = shared.work(progress);
        for other in others {
            found.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        found
    });
    found.sort_unstable_by_key(|(at, _)| *at);
    let last = shared.last.into_inner();
    let wanted = found.into_iter().filter(|(at, _)| *at <= last);
    wanted.map(|(_, walked)| walked).collect()
}

impl Shared<'_> {
    /// Takes one file after the other.
    fn work(&self, progress: &mut dyn FnMut(u64)) -> Vec<(usize, Result<Walked, Error>)> {
        let mut found = Vec::new();
        let mut buffer = Vec::new();
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = self.files.get(at).filter(|_| !self.is_behind(at)) else {
                return found;
            };
            let walked = self.walk(at, file, &mut buffer, progress);
            if !matches!(&walked, Ok(it) if !it.is_the_end()) {
                self.last.fetch_min(at, Ordering::Relaxed);
            }
            found.push((at, walked));
        }
    }

    /// Whether the log is known to end in a file before this one.
    fn is_behind(&self, at: usize) -> bool {
        at > self.last.load(Ordering::Relaxed)
    }

    fn walk(
        &self,
        at: usize,
        file: &SegmentFile,
        buffer: &mut Vec<u8>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Walked, Error> {
        let limit = file.base + file.len;
        let check = |_| CheckOptions::VERIFY;
        let mut walked = Walked {
            end: file.base,
            stop: Stop::Asked,
            messages: 0,
            store_ms: None,
        };
        let mut bytes = Pieces::open(file, buffer)?;
        let mut more = bytes.read_more()?;
        // Nobody asks for what is behind the end.
        while !self.is_behind(at) {
            let from = walked.end;
            let (to, stop) = walk(bytes.rest(), from, limit, check, |item| {
                if let Item::Record(record) = item {
                    walked.messages += 1;
                    let now = record.store_timestamp_ms();
                    let first = walked.store_ms.map_or(now, |(first, _)| first);
                    walked.store_ms = Some((first, now));
                }
                true
            });
            // Less than the buffer holds.
            bytes.take(to_len(to - from));
            walked.end = to;
            // What was read may end in the middle of a record.
            if !more || !matches!(stop, Stop::Done | Stop::Short) {
                walked.stop = stop;
                break;
            }
            let done = self.done.fetch_add(to - from, Ordering::Relaxed);
            progress(done + (to - from));
            more = bytes.read_more()?;
        }
        Ok(walked)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::folder::Folder;
    use crate::record::Message;
    use crate::store::{Store, StoreConfig};

    const SEGMENTS: usize = 6;

    fn log() -> (tempfile::TempDir, Vec<SegmentFile>) {
        let dir = tempfile::tempdir().unwrap();
        let mut config = StoreConfig::new(dir.path());
        config.segment_size = 64 << 10;
        config.consume_queues = false;
        config.prefault_ahead_bytes = 0;
        let store = Store::open(config).unwrap();
        store.promote(1).unwrap();
        let body = [b'x'; 700];
        let host = "127.0.0.1:1".parse().unwrap();
        let message = Message {
            topic: "t",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 1,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: b"",
        };
        while store.segments().len() < SEGMENTS {
            store.append(&message).unwrap();
        }
        store.close().unwrap();
        let mut files = Folder::new(dir.path()).list().unwrap().segments;
        files.truncate(SEGMENTS);
        (dir, files)
    }

    /// What one thread finds, which several must find too, and the most bytes it told of.
    fn walked(files: &[SegmentFile]) -> (Vec<Result<Walked, Error>>, u64) {
        let mut told = 0;
        let alone = walk_with(files, 1, &mut |done| told = done);
        for threads in [2, 5, 9] {
            for _ in 0..20 {
                let mut last = 0;
                let found = walk_with(files, threads, &mut |done| {
                    assert!(done > last, "{done} after {last}");
                    last = done;
                });
                assert_eq!(format!("{found:?}"), format!("{alone:?}"), "{threads}");
            }
        }
        (alone, told)
    }

    #[test]
    fn threads_find_what_one_finds_wherever_the_log_ends() {
        let (_dir, files) = log();
        let (whole, told) = walked(&files);
        assert_eq!(whole.len(), SEGMENTS);
        assert!(told > 4 * files[0].len);
        let last = whole[SEGMENTS - 1].as_ref().unwrap();
        assert_eq!((last.messages, &last.stop), (1, &Stop::Empty));
        for (at, file) in files.iter().enumerate() {
            let bytes = fs::read(&file.path).unwrap();
            let mut changed = bytes.clone();
            changed[200] ^= 1;
            fs::write(&file.path, &changed).unwrap();
            let (found, _) = walked(&files);
            assert_eq!(found.len(), at + 1);
            let bad = found[at].as_ref().unwrap();
            assert_eq!((bad.end, bad.messages), (file.base, 0));
            assert!(matches!(bad.stop, Stop::Bad(_)), "{bad:?}");

            // One that cannot be read hides what is wrong behind it, and nothing before it.
            fs::remove_file(&file.path).unwrap();
            let (found, _) = walked(&files);
            assert_eq!(found.len(), at + 1);
            let error = found[at].as_ref().unwrap_err().to_string();
            assert!(error.contains(&*file.path.to_string_lossy()), "{error}");
            fs::write(&file.path, &bytes).unwrap();
        }
    }
}

//! Which mapped file a bus error is about.
//!
//! A file that another program shortens, or whose disk fails, cannot be told from memory until a page of
//! it is touched; the kernel then sends SIGBUS, and the process ends without a word. With
//! [`install`] it ends with one line that names the file.
//!
//! Every mapping stands in a fixed table of atomics, because a signal handler may neither lock nor
//! allocate. An entry is written before its start is, and taken out before its pages are unmapped: the
//! entry of a page that is being touched is whole, for whoever touches it keeps the mapping.
#![expect(
    unsafe_code,
    reason = "a signal handler is set, and reads what it finds, by raw pointers only"
)]

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use rustix::process::Signal;

/// The exit code after a bus error in a mapped file (EX_IOERR of sysexits.h).
pub const BUS_ERROR_EXIT_CODE: i32 = 74;

/// Mappings that can be told apart at a time; a file mapped beyond them is not named.
const ENTRIES: usize = 16 * 1024;

/// Longest path that is written whole, in bytes.
const MAX_PATH_LEN: usize = 4096;

/// A start that no mapping has.
const FREE: usize = 0;

/// A start that no mapping has either: the entry is being written.
const TAKEN: usize = 1;

struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    path: AtomicPtr<u8>,
    path_len: AtomicUsize,
}

impl Entry {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(FREE),
            len: AtomicUsize::new(0),
            path: AtomicPtr::new(std::ptr::null_mut()),
            path_len: AtomicUsize::new(0),
        }
    }

    /// The position of `address` in this mapping.
    fn position_of(&self, address: usize) -> Option<usize> {
        let start = self.start.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        let position = address.checked_sub(start)?;
        let inside = start > TAKEN && position < len;
        // Given away in between: then it was not the one the address lies in.
        (inside && self.start.load(Ordering::Acquire) == start).then_some(position)
    }
}

static TABLE: [Entry; ENTRIES] = [const { Entry::free() }; ENTRIES];

/// No entry from here on was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A mapping's place in the table. Dropped before the pages are unmapped.
pub(super) struct Listed {
    entry: Option<&'static Entry>,
    _path: Box<[u8]>,
}

impl Listed {
    /// Lists the `len` bytes mapped at `start`.
    pub(super) fn new(start: *const u8, len: usize, path: &Path) -> Self {
        let path: Box<[u8]> = path.as_os_str().as_bytes().into();
        let taken = TABLE.iter().position(|entry| {
            let free = entry.start.load(Ordering::Relaxed) == FREE;
            let swap = |it: &Entry| {
                it.start
                    .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            };
            free && swap(entry).is_ok()
        });
        let entry = taken.map(|index| {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            let entry = &TABLE[index];
            entry.len.store(len, Ordering::Relaxed);
            entry
                .path
                .store(path.as_ptr().cast_mut(), Ordering::Relaxed);
            entry.path_len.store(path.len(), Ordering::Relaxed);
            entry.start.store(start.addr(), Ordering::Release);
            entry
        });
        Self { entry, _path: path }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            entry.start.store(FREE, Ordering::Release);
        }
    }
}

/// Lets a bus error in a mapped segment end the process with one line on standard error that names the file
/// and the position in it, and with [`BUS_ERROR_EXIT_CODE`]; and lets a file-size limit (RLIMIT_FSIZE) be
/// an error of the write that meets it, not the end of the process. For the whole process, for good; a
/// second call changes nothing. A bus error elsewhere goes to whoever handled it before.
///
/// A library does not take a process's signals unasked, so this is the program's choice. Without it
/// SIGBUS ends the process as the system does it. Either way nothing is lost that was durable: the
/// next open finds what a kill would have left.
///
/// # Errors
/// The system refused to set a handler.
pub fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    if INSTALLED.get().is_some() {
        return Ok(());
    }
    // SAFETY: the action neither allocates, locks, nor unwinds.
    unsafe { signal_hook_registry::register_sigaction(Signal::BUS.as_raw(), bus_error) }?;
    // SAFETY: the action does nothing.
    unsafe { signal_hook_registry::register(Signal::XFSZ.as_raw(), || {}) }?;
    INSTALLED.get_or_init(|| ());
    Ok(())
}

/// Runs in the signal handler. Returns if no mapping holds the address.
fn bus_error(info: &libc::siginfo_t) {
    // SAFETY: the kernel fills in the address for every bus error.
    let address = unsafe { info.si_addr() }.addr();
    let used = USED.load(Ordering::Acquire).min(ENTRIES);
    for entry in &TABLE[..used] {
        let Some(position) = entry.position_of(address) else {
            continue;
        };
        let path = entry.path.load(Ordering::Relaxed);
        let len = entry.path_len.load(Ordering::Relaxed);
        // SAFETY: the path lives as long as its mapping is listed, and whoever runs into a page of the
        // mapping keeps it, and is stopped here.
        let path = unsafe { slice::from_raw_parts(path, len) };
        let mut line = Line::new();
        line.put(b"epochlog: ");
        line.put(&path[..len.min(MAX_PATH_LEN)]);
        line.put(b": cannot reach byte ");
        line.put_number(position);
        line.put(
            b" of the mapped file: another program has made it shorter, or its disk fails. The \
              process ends as if it was killed; `epochlog verify` shows what is left\n",
        );
        line.write();
        // SAFETY: it may be called in a signal handler, and runs nothing of this process.
        unsafe { libc::_exit(BUS_ERROR_EXIT_CODE) };
    }
}

/// A line made without allocating.
struct Line {
    bytes: [u8; MAX_PATH_LEN + 512],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self {
            bytes: [0; MAX_PATH_LEN + 512],
            len: 0,
        }
    }

    /// Adds what there is room for.
    fn put(&mut self, text: &[u8]) {
        for (to, from) in self.bytes[self.len..].iter_mut().zip(text) {
            *to = *from;
        }
        self.len = (self.len + text.len()).min(self.bytes.len());
    }

    fn put_number(&mut self, number: usize) {
        let mut digits = [b'0'; 20];
        let mut rest = number;
        let mut at = digits.len();
        while rest > 0 || at == digits.len() {
            at -= 1;
            digits[at] = b"0123456789"[rest % 10];
            rest /= 10;
        }
        self.put(&digits[at..]);
    }

    fn write(&self) {
        let mut rest = &self.bytes[..self.len];
        while !rest.is_empty() {
            match rustix::io::write(rustix::stdio::stderr(), rest) {
                Ok(written @ 1..) => rest = &rest[written..],
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(address: usize) -> Option<usize> {
        TABLE.iter().find_map(|entry| entry.position_of(address))
    }

    #[test]
    fn a_mapping_is_found_by_every_address_in_it_while_it_is_listed() {
        // Addresses that no mapping of this process has.
        let start = usize::MAX - 10_000;
        let pointer = std::ptr::without_provenance(start);
        let listing = Listed::new(pointer, 4096, Path::new("/a/b"));
        assert_eq!(listed(start), Some(0));
        assert_eq!(listed(start + 4095), Some(4095));
        assert_eq!(listed(start + 4096), None);
        assert_eq!(listed(start - 1), None);
        let second = Listed::new(
            std::ptr::without_provenance(start + 4096),
            10,
            Path::new("c"),
        );
        assert_eq!(listed(start + 4096), Some(0));
        drop(listing);
        assert_eq!(listed(start), None);
        assert_eq!(listed(start + 4096), Some(0));
        drop(second);
        assert_eq!(listed(start + 4096), None);
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, 4096, usize::MAX] {
            let mut line = Line::new();
            line.put_number(number);
            assert_eq!(&line.bytes[..line.len], number.to_string().as_bytes());
        }
        let mut line = Line::new();
        line.put(&[b'x'; 10_000]);
        line.put(b"more");
        assert_eq!(line.len, line.bytes.len());
    }
}

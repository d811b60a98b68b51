//! Buffers in the form tokio-uring takes: owned by the operation, at an address of their own.
//!
//! Invariant: what the pointers lead to is owned through a box or a shared allocation that lives
//! as long as the value and does not move with it.

use std::rc::Rc;

use tokio_uring::buf::{IoBuf, IoBufMut};

use crate::transport::{Body, FrameBytes, RecvInto, Window};

/// The room of a receive.
pub(super) struct Room<W> {
    into: Box<RecvInto<W>>,
    start: *mut u8,
    len: usize,
}

impl<W: Window> Room<W> {
    pub(super) fn new(into: RecvInto<W>) -> Self {
        let mut into = Box::new(into);
        let room = into.room();
        let (start, len) = (room.as_mut_ptr(), room.len());
        Self { into, start, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn into_inner(self) -> RecvInto<W> {
        *self.into
    }
}

// The box is moved, what it holds is not.
impl<W> Unpin for Room<W> {}

// SAFETY: `start .. start + len` is the room of the boxed buffer, which stays where it is until
// `into_inner` takes the value apart; all of it is initialised.
unsafe impl<W: Window> IoBuf for Room<W> {
    fn stable_ptr(&self) -> *const u8 {
        self.start
    }

    fn bytes_init(&self) -> usize {
        self.len
    }

    fn bytes_total(&self) -> usize {
        self.len
    }
}

// SAFETY: as above; the room is exclusive.
unsafe impl<W: Window> IoBufMut for Room<W> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }

    unsafe fn set_init(&mut self, _pos: usize) {}
}

/// Head and body of a frame being sent.
pub(super) struct Frame<B> {
    pub(super) head: FrameBytes,
    pub(super) body: Option<B>,
}

impl<B: Body> Frame<B> {
    pub(super) fn len(&self) -> usize {
        self.head.as_slice().len() + self.body.as_ref().map_or(0, |body| body.bytes().len())
    }
}

/// A stretch of a shared frame.
pub(super) struct Part<B> {
    _frame: Rc<Frame<B>>,
    start: *const u8,
    len: usize,
}

impl<B: Body> Part<B> {
    /// What is left of a frame after `taken` bytes, head before body; none of it is empty.
    pub(super) fn rest_of(frame: &Rc<Frame<B>>, taken: usize) -> Vec<Self> {
        let head = frame.head.as_slice();
        let body = frame.body.as_ref().map_or(&[][..], Body::bytes);
        let head_rest = &head[taken.min(head.len())..];
        let body_rest = &body[taken.saturating_sub(head.len())..];
        let part = |bytes: &[u8]| Self {
            _frame: Rc::clone(frame),
            start: bytes.as_ptr(),
            len: bytes.len(),
        };
        [head_rest, body_rest]
            .into_iter()
            .filter(|rest| !rest.is_empty())
            .map(part)
            .collect()
    }
}

impl<B> Unpin for Part<B> {}

// SAFETY: the stretch lies in the frame, which the shared allocation keeps in place and which
// nobody changes.
unsafe impl<B: Body> IoBuf for Part<B> {
    fn stable_ptr(&self) -> *const u8 {
        self.start
    }

    fn bytes_init(&self) -> usize {
        self.len
    }

    fn bytes_total(&self) -> usize {
        self.len
    }
}

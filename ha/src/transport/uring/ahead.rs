//! Reading ahead: what follows a body is asked for together with it, so that a frame costs one system
//! call, and small frames less.
//!
//! It begins with the first receive into a window: before that a connection carries no frames. Behind a
//! long body just a head is asked for, linked to the body, so that the next body lands in place. While
//! bodies are short, as much is asked for as there is, and they are copied from here.
//!
//! Invariants:
//! - At most one operation reads into the buffer, and only while the buffer holds nothing.
//! - What it holds comes before anything still in the socket.

/// Bytes read ahead at most.
const ROOM: usize = 16 << 10;
/// Longest body that is copied from here.
pub(super) const SHORT_BODY: usize = 4 << 10;
/// Longest head that is read ahead.
const LONGEST_HEAD: usize = 64;

/// Bytes of one connection that came before they were asked for.
#[derive(Default)]
pub(super) struct Ahead {
    /// Empty until the first receive into a window.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// An operation reads into the buffer.
    pub(super) pending: bool,
    /// Bytes of the last head asked for; 0: of none yet.
    head_len: usize,
    /// The last body was short.
    short_bodies: bool,
}

impl Ahead {
    /// A head of `len` bytes is asked for, all of it.
    pub(super) fn wants_head(&mut self, len: usize) {
        self.head_len = if len <= LONGEST_HEAD { len } else { 0 };
    }

    /// A body of `len` bytes is asked for, all of it.
    pub(super) fn wants_body(&mut self, len: usize) {
        if self.buffer.is_empty() {
            self.buffer = vec![0; ROOM].into();
        }
        self.short_bodies = len <= SHORT_BODY;
    }

    /// Moves what is held into `room`; returns how much that was.
    pub(super) fn take(&mut self, room: &mut [u8]) -> usize {
        let held = &self.buffer[self.start..self.end];
        let len = held.len().min(room.len());
        room[..len].copy_from_slice(&held[..len]);
        self.start += len;
        len
    }

    /// Where the rest of a head, `rest` bytes, is to be read to, and whether all of that place is to be
    /// filled; none: not here.
    pub(super) fn place_of_head(&mut self, rest: usize) -> Option<(&mut [u8], bool)> {
        if self.buffer.is_empty() || self.head_len == 0 || self.pending || self.start < self.end {
            return None;
        }
        self.pending = true;
        Some(match self.short_bodies {
            true => (&mut self.buffer[..], false),
            false => (&mut self.buffer[..rest], true),
        })
    }

    /// Where the head behind a body of which `rest` bytes are still to come is to be read to; none: it
    /// is not read ahead.
    pub(super) fn place_behind(&mut self, rest: usize) -> Option<&mut [u8]> {
        if rest <= SHORT_BODY || self.head_len == 0 || self.pending || self.start < self.end {
            return None;
        }
        self.pending = true;
        Some(&mut self.buffer[..self.head_len])
    }

    /// The operation is over and has brought `len` bytes.
    pub(super) fn filled(&mut self, len: usize) {
        (self.pending, self.start, self.end) = (false, 0, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(ahead: &mut Ahead, bytes: &[u8]) {
        ahead.buffer[..bytes.len()].copy_from_slice(bytes);
        ahead.filled(bytes.len());
    }

    #[test]
    fn nothing_is_read_ahead_before_the_first_body() {
        let mut ahead = Ahead::default();
        ahead.wants_head(36);
        assert!(ahead.place_of_head(36).is_none());
        assert_eq!(ahead.take(&mut [0; 4]), 0);
        ahead.wants_body(100);
        assert!(ahead.place_of_head(36).is_some());
    }

    #[test]
    fn behind_a_long_body_just_a_head_is_read() {
        let mut ahead = Ahead::default();
        ahead.wants_head(36);
        ahead.wants_body(SHORT_BODY + 1);
        assert!(ahead.place_behind(SHORT_BODY).is_none(), "a short rest");
        assert_eq!(ahead.place_behind(SHORT_BODY + 1).unwrap().len(), 36);
        assert!(
            ahead.place_behind(SHORT_BODY + 1).is_none(),
            "one at a time"
        );
        assert!(ahead.place_of_head(36).is_none(), "one at a time");
        filled(&mut ahead, &[7; 36]);
        assert!(ahead.place_of_head(36).is_none(), "the buffer is not empty");
        let mut room = [0; 40];
        assert_eq!(ahead.take(&mut room), 36);
        let (place, all) = ahead.place_of_head(4).unwrap();
        assert_eq!((place.len(), all), (4, true));
    }

    #[test]
    fn while_bodies_are_short_as_much_is_read_as_there_is() {
        let mut ahead = Ahead::default();
        ahead.wants_head(36);
        ahead.wants_body(SHORT_BODY);
        let (place, all) = ahead.place_of_head(36).unwrap();
        assert_eq!((place.len(), all), (ROOM, false));
        filled(&mut ahead, b"headbodyhe");
        let mut room = [0; 4];
        for expect in [b"head", b"body"] {
            assert_eq!(ahead.take(&mut room), 4);
            assert_eq!(&room, expect);
        }
        assert_eq!(ahead.take(&mut room), 2);
        assert_eq!(&room[..2], b"he");
        assert_eq!(ahead.take(&mut room), 0);
    }

    #[test]
    fn a_head_too_long_is_not_read_ahead() {
        let mut ahead = Ahead::default();
        ahead.wants_head(LONGEST_HEAD + 1);
        ahead.wants_body(1);
        assert!(ahead.place_of_head(LONGEST_HEAD + 1).is_none());
        assert!(ahead.place_behind(SHORT_BODY + 1).is_none());
    }
}

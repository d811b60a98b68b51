//! Writes whose answers are not made yet, counted so that a hand-over can let them leave: a write that
//! is replicated is acknowledged only when its answer looks at the authority once more.
//!
//! Invariant: whoever is counted in a turn before [`OpenAnswers::drained`] began is waited for; whoever
//! comes later counts in the other turn and is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::node::Node;

/// Two turns, of which new writes count in one.
#[derive(Debug, Default)]
pub(crate) struct OpenAnswers {
    turn: AtomicUsize,
    open: [AtomicU64; 2],
}

impl OpenAnswers {
    /// Counts one; gives the turn it counts in.
    fn begin(&self) -> usize {
        let turn = self.turn.load(Ordering::SeqCst);
        self.open[turn].fetch_add(1, Ordering::SeqCst);
        turn
    }

    fn end(&self, turn: usize) {
        self.open[turn].fetch_sub(1, Ordering::SeqCst);
    }

    /// Begins the other turn. Writes must be refused by now, so that those that count in it wait for
    /// nothing.
    pub(crate) fn next_turn(&self) {
        self.turn.fetch_xor(1, Ordering::SeqCst);
    }

    /// Whether all answers of the turn before are made.
    pub(crate) fn drained(&self) -> bool {
        let before = 1 - self.turn.load(Ordering::SeqCst);
        self.open[before].load(Ordering::SeqCst) == 0
    }
}

/// A write that will be answered. To be taken before the write.
pub(super) struct OpenAnswer {
    pub(super) node: Arc<Node>,
    turn: usize,
}

impl OpenAnswer {
    pub(super) fn new(node: &Arc<Node>) -> Self {
        Self {
            turn: node.answers.begin(),
            node: Arc::clone(node),
        }
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        self.node.answers.end(self.turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_there_before_the_turn_is_waited_for_and_nobody_else() {
        let answers = OpenAnswers::default();
        assert!(answers.drained());
        let (one, two) = (answers.begin(), answers.begin());
        answers.next_turn();
        assert!(!answers.drained());
        let later = answers.begin();
        answers.end(one);
        assert!(!answers.drained());
        answers.end(two);
        assert!(answers.drained(), "the later one is not waited for");
        answers.next_turn();
        assert!(!answers.drained());
        answers.end(later);
        assert!(answers.drained());
    }
}

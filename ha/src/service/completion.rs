//! What ends a write: the closure its caller gave, in a box that a later write of the same kind uses
//! again. So a write that waits allocates nothing once as many have waited before.
//!
//! Invariant: a box on a shelf is empty; one that is handed out runs its closure once.

use std::any::{Any, TypeId};
use std::mem::take;

use crate::acks::Ended;

/// Boxes of one kind that are kept for later at most; further ones are freed. Some 100 bytes each.
const SPARE_MAX: usize = 16 << 10;
/// Lists of ends that are kept for later: one for each thread that ends writes at the same time.
const LISTS_MAX: usize = 4;

/// A closure that is run once for each time it is put in.
pub(super) trait Complete: Any + Send {
    fn complete(&mut self, ended: Ended);
}

struct Held<F>(Option<F>);

impl<F: FnOnce(Ended) + Send + 'static> Complete for Held<F> {
    fn complete(&mut self, ended: Ended) {
        if let Some(done) = self.0.take() {
            done(ended);
        }
    }
}

/// What completes a write that waits.
pub(super) type Token = Box<dyn Complete>;

/// Writes to be completed, and how they end.
pub(super) type Ends = Vec<(Token, Ended)>;

/// Empty boxes of one kind of closure.
struct Shelf {
    kind: TypeId,
    spare: Vec<Token>,
}

/// The boxes that are free.
#[derive(Default)]
pub(super) struct Pool {
    /// One for each place in a program that writes: a handful, found by a walk.
    shelves: Vec<Shelf>,
    lists: Vec<Ends>,
}

impl Pool {
    /// Puts `done` into a box that is free, or into a new one.
    pub(super) fn token<F: FnOnce(Ended) + Send + 'static>(&mut self, done: F) -> Token {
        let kind = TypeId::of::<Held<F>>();
        let shelf = self.shelves.iter_mut().find(|shelf| shelf.kind == kind);
        if let Some(mut token) = shelf.and_then(|shelf| shelf.spare.pop()) {
            let any: &mut dyn Any = &mut *token;
            if let Some(held) = any.downcast_mut::<Held<F>>() {
                held.0 = Some(done);
                return token;
            }
        }
        Box::new(Held(Some(done)))
    }

    /// An empty list.
    pub(super) fn list(&mut self) -> Ends {
        self.lists.pop().unwrap_or_default()
    }

    /// Takes back the boxes of a list whose writes were completed, and the list.
    pub(super) fn give_back(&mut self, mut ends: Ends) {
        for (token, _) in ends.drain(..) {
            let kind = Any::type_id(&*token);
            match self.shelves.iter_mut().find(|shelf| shelf.kind == kind) {
                Some(shelf) if shelf.spare.len() < SPARE_MAX => shelf.spare.push(token),
                Some(_) => (),
                None => self.shelves.push(Shelf {
                    kind,
                    spare: vec![token],
                }),
            }
        }
        if self.lists.len() < LISTS_MAX && ends.capacity() <= SPARE_MAX {
            self.lists.push(take(&mut ends));
        }
    }
}

/// Completes them all, in order. Outside of every lock: what runs is the callers'.
pub(super) fn complete(ends: &mut Ends) {
    for (token, ended) in ends {
        token.complete(*ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Each call is a closure of the same kind; `second` of another.
    fn first(count: &Arc<AtomicUsize>, by: usize) -> impl FnOnce(Ended) + Send + use<> {
        let count = Arc::clone(count);
        move |_| {
            count.fetch_add(by, Ordering::SeqCst);
        }
    }

    fn second(count: &Arc<AtomicUsize>) -> impl FnOnce(Ended) + Send + use<> {
        let count = Arc::clone(count);
        move |_| {
            count.fetch_add(1000, Ordering::SeqCst);
        }
    }

    fn address(token: &Token) -> *const () {
        std::ptr::from_ref(&**token).cast()
    }

    #[test]
    fn a_box_is_used_again_by_its_own_kind_only() {
        let (mut pool, count) = (Pool::default(), Arc::new(AtomicUsize::new(0)));
        let token = pool.token(first(&count, 1));
        let used = address(&token);
        let mut ends = pool.list();
        ends.push((token, Ended::Acked));
        complete(&mut ends);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert_eq!(Arc::strong_count(&count), 1, "an empty box holds nothing");
        pool.give_back(ends);

        let other = pool.token(second(&count));
        assert_ne!(address(&other), used);
        let again = pool.token(first(&count, 10));
        assert_eq!(address(&again), used);
        let third = pool.token(first(&count, 100));
        assert_ne!(address(&third), used, "one box, one write");
        let mut ends = pool.list();
        ends.extend([other, again, third].map(|token| (token, Ended::Acked)));
        complete(&mut ends);
        // The boxes are empty now.
        complete(&mut ends);
        assert_eq!(count.load(Ordering::SeqCst), 1111);
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let (mut pool, count) = (Pool::default(), Arc::new(AtomicUsize::new(0)));
        let mut ends = pool.list();
        for _ in 0..SPARE_MAX + 100 {
            ends.push((pool.token(first(&count, 1)), Ended::Acked));
        }
        complete(&mut ends);
        pool.give_back(ends);
        assert_eq!(pool.shelves[0].spare.len(), SPARE_MAX);
        assert_eq!(pool.lists.len(), 0, "nor is a list as long");
        for _ in 0..LISTS_MAX + 2 {
            pool.give_back(Ends::with_capacity(1));
        }
        assert_eq!(pool.lists.len(), LISTS_MAX);
    }
}

//! Slots that are found by an id which is never given out twice.
//!
//! Invariant: an id whose entry was removed finds nothing, also when its slot is in use again.

/// Bits of an id that say which slot; the rest is a serial number.
const SLOT_BITS: u32 = 16;

/// Bits of an id in all, so that a caller can pack a tag of four bits beside it.
pub(super) const ID_BITS: u32 = 60;

const _: () = assert!(SLOT_BITS < ID_BITS && ID_BITS < u64::BITS);

/// Most entries a table can hold.
pub(super) const MAX_ENTRIES: usize = 1 << SLOT_BITS;

struct Slot<T> {
    id: u64,
    entry: Option<T>,
}

/// A table of at most `limit` entries.
pub(super) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    next_serial: u64,
    limit: usize,
}

impl<T> Table<T> {
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.min(MAX_ENTRIES);
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            next_serial: 1,
            limit,
        }
    }

    /// The id of the new entry, or the entry back when the table is full.
    pub(super) fn insert(&mut self, entry: T) -> Result<u64, T> {
        if self.len() == self.limit {
            return Err(entry);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot { id: 0, entry: None });
                self.slots.len() - 1
            }
        };
        let id = (self.next_serial << SLOT_BITS) | slot as u64;
        assert!(id < 1 << ID_BITS, "2^44 ids are used up");
        self.next_serial += 1;
        self.slots[slot] = Slot {
            id,
            entry: Some(entry),
        };
        Ok(id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(slot_of(id))?;
        if slot.id == id {
            slot.entry.as_mut()
        } else {
            None
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let index = slot_of(id);
        let slot = self.slots.get_mut(index)?;
        if slot.id != id {
            return None;
        }
        let entry = slot.entry.take()?;
        self.free.push(index);
        Some(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == self.limit
    }

    /// Ids of all entries, in the order of their slots.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.slots
            .iter()
            .filter(|slot| slot.entry.is_some())
            .map(|slot| slot.id)
            .collect()
    }
}

fn slot_of(id: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "masked to 16 bits")]
    let slot = (id & (MAX_ENTRIES as u64 - 1)) as usize;
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_id_finds_nothing_when_its_slot_is_used_again() {
        let mut table = Table::new(8);
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b').unwrap();
        assert_eq!(slot_of(first), slot_of(second));
        assert_ne!(first, second);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(second), Some(&mut 'b'));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_full_table_gives_the_entry_back() {
        let mut table = Table::new(2);
        let ids = [table.insert(1).unwrap(), table.insert(2).unwrap()];
        assert!(table.is_full());
        assert_eq!(table.insert(3), Err(3));
        assert_eq!(table.ids(), ids);
        table.remove(ids[0]);
        assert!(table.insert(3).is_ok());
    }
}

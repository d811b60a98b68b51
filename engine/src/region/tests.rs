//! Stories of one region, on heap bytes and on files. They stand beside `region` and not in it, because
//! `region.rs` is compiled once more, by a test that runs it under loom.

use std::path::Path;

use crate::region::heap::{Heap, region as heap};
use crate::region::{Region, Writer, is_held_past};

fn write(writer: &mut Writer<Heap>, bytes: &[u8]) {
    writer.tail_mut()[..bytes.len()].copy_from_slice(bytes);
    writer.publish(bytes.len());
}

#[test]
fn a_view_never_passes_the_published_end() {
    let region = heap(16);
    let mut writer = region.claim().unwrap();
    writer.tail_mut()[..8].copy_from_slice(b"unseen..");
    assert_eq!(region.view(0, 16).unwrap().len(), 0);
    write(&mut writer, b"seen");
    assert_eq!(&*region.view(0, 16).unwrap(), b"seen");
    assert_eq!(&*region.view(2, 1).unwrap(), b"e");
    assert_eq!(region.view(4, usize::MAX).unwrap().len(), 0);
    assert!(region.view(5, 1).is_none());
}

#[test]
fn there_is_one_writer() {
    let region = heap(16);
    let writer = region.claim().unwrap();
    assert!(region.claim().is_none());
    drop(writer);
    assert!(region.claim().is_some());
}

#[test]
fn a_retraction_under_a_view_retires_the_writer_and_keeps_what_the_view_holds() {
    let region = heap(16);
    let mut writer = region.claim().unwrap();
    write(&mut writer, b"keepcut!");
    let held = region.view(0, 8).unwrap();
    assert!(writer.retract(4).is_none());
    assert_eq!(&*held, b"keepcut!");
    assert_eq!(&*region.view(0, 8).unwrap(), b"keep");
    assert!(region.claim().is_none());
}

#[test]
fn a_retraction_with_only_shorter_or_dropped_views_keeps_the_writer() {
    let region = heap(16);
    let mut writer = region.claim().unwrap();
    write(&mut writer, b"keep");
    let held = region.view(0, 4).unwrap();
    let mut writer = writer.retract(4).unwrap();
    write(&mut writer, b"cut!");
    drop(region.view(0, 8));
    drop(held);
    let mut writer = writer.retract(4).unwrap();
    write(&mut writer, b"new!");
    assert_eq!(&*region.view(0, 8).unwrap(), b"keepnew!");
}

#[test]
fn a_narrowed_view_counts_as_a_view() {
    let region = heap(8);
    let mut writer = region.claim().unwrap();
    write(&mut writer, b"abcdefgh");
    let whole = region.view(0, 8).unwrap();
    let part = whole.narrow(2..4).unwrap();
    assert!(whole.narrow(2..9).is_none());
    drop(whole);
    assert_eq!(&*part, b"cd");
    assert!(
        writer.retract(6).is_none(),
        "a part holds on to as much as the whole"
    );
}

#[test]
fn a_view_that_became_a_part_of_itself_holds_no_more_than_the_part() {
    let region = heap(8);
    let mut writer = region.claim().unwrap();
    write(&mut writer, b"abcdefgh");
    let whole = region.view(0, 8).unwrap();
    assert!(whole.clone().into_part(2..9).is_none());
    let part = whole.into_part(2..4).unwrap();
    assert_eq!(&*part, b"cd");
    let writer = writer.retract(4).unwrap();
    assert!(writer.retract(3).is_none(), "the part itself is held");
}

#[test]
fn a_view_that_became_a_part_of_itself_holds_what_its_clones_show() {
    let region = heap(8);
    let mut writer = region.claim().unwrap();
    write(&mut writer, b"abcdefgh");
    let whole = region.view(0, 8).unwrap();
    let clone = whole.clone();
    let part = whole.into_part(2..4).unwrap();
    assert!(writer.retract(6).is_none());
    assert_eq!((&*part, &*clone), (&b"cd"[..], &b"abcdefgh"[..]));
}

#[test]
fn as_many_views_as_one_likes_are_counted_and_forgotten() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let region = Region::map(&file, Path::new("f"), 4096, 100).unwrap();
    for _ in 0..3 {
        // From the longest to the shortest, and gone in the same order.
        let views: Vec<_> = (1..=100).rev().map(|end| region.view(0, end)).collect();
        for (view, end) in views.into_iter().zip((1..=100).rev()) {
            assert!(is_held_past(&file, end - 1).unwrap(), "{end}");
            assert!(!is_held_past(&file, end).unwrap(), "{end}");
            drop(view);
            assert!(!is_held_past(&file, end - 1).unwrap(), "{end}");
        }
    }
    assert!(region.claim().unwrap().retract(0).is_some());
}

#[test]
fn views_of_another_mapping_of_the_file_count() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let first = Region::map(&file, Path::new("f"), 4096, 8).unwrap();
    let held = first.view(0, 8).unwrap();
    drop(first);
    let second = Region::map(&file, Path::new("f"), 4096, 8).unwrap();
    assert!(is_held_past(&file, 4).unwrap());
    assert!(second.claim().unwrap().retract(4).is_none());
    drop((held, second));
    assert!(!is_held_past(&file, 4).unwrap());
    let third = Region::map(&file, Path::new("f"), 4096, 8).unwrap();
    assert!(third.claim().unwrap().retract(4).is_some());
}

#[test]
fn an_empty_view_at_the_end_holds_nothing_back() {
    let region = heap(8);
    let mut writer = region.claim().unwrap();
    write(&mut writer, b"abcd");
    let empty = region.view(4, 8).unwrap();
    assert!(empty.is_empty());
    let writer = writer.retract(4).unwrap();
    drop(empty);
    assert!(writer.retract(2).is_some());
}

//! In which life of its store each broker of a set is, as a header field holds it: `id:incarnation`
//! joined by `,`. One of this project's fields (the answer to 904, request 1001).

/// The field's text; empty for none.
#[must_use]
pub fn lives_text(lives: impl IntoIterator<Item = (u64, u64)>) -> String {
    let entries = lives.into_iter().map(|(id, life)| format!("{id}:{life}"));
    entries.collect::<Vec<_>>().join(",")
}

/// Reads the field. What is not of its form is left out, so that whoever it was meant for counts as
/// not seen.
pub fn read_lives(text: &str) -> impl Iterator<Item = (u64, u64)> {
    text.split(',').filter_map(|entry| {
        let (id, life) = entry.split_once(':')?;
        Some((id.parse().ok()?, life.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_read_as_they_were_written_and_nonsense_is_left_out() {
        for lives in [vec![], vec![(1, 7)], vec![(2, u64::MAX), (1, 0)]] {
            let text = lives_text(lives.iter().copied());
            assert_eq!(read_lives(&text).collect::<Vec<_>>(), lives, "{text}");
        }
        let read: Vec<_> = read_lives("1:2,x,3,:4,5:,-6:7,8:9:1,10:11").collect();
        assert_eq!(read, [(1, 2), (10, 11)]);
    }
}

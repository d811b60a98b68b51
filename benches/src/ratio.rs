//! Figures beside their raw limit: rounds of all of them in turn, so that whatever else the machine
//! does meets all alike, and medians of what they took.

use std::time::Duration;

/// Something to be measured: its name, and one round of it.
pub type Subject<'a> = (&'a str, Box<dyn FnMut() -> Duration + 'a>);

/// The median of each subject over so many rounds, in the order given.
///
/// # Panics
/// If `rounds` is 0.
pub fn medians(rounds: usize, subjects: &mut [Subject<'_>]) -> Vec<Duration> {
    let mut times = vec![Vec::with_capacity(rounds); subjects.len()];
    for _ in 0..rounds {
        for ((_, once), times) in subjects.iter_mut().zip(&mut times) {
            times.push(once());
        }
    }
    times
        .into_iter()
        .map(|mut times| median(&mut times))
        .collect()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The value below which `share` (0 to 1) of the sorted times lie.
#[must_use]
pub fn percentile(sorted: &[Duration], share: f64) -> Duration {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length"
    )]
    let index = (sorted.len() as f64 * share) as usize;
    sorted[index.min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_of_each_subject_and_a_percentile_lies_inside() {
        let mut one = [9, 1, 5].into_iter().cycle().map(Duration::from_millis);
        let mut two = [2, 2, 8].into_iter().cycle().map(Duration::from_millis);
        let mut subjects: [Subject<'_>; 2] = [
            ("one", Box::new(move || one.next().unwrap_or_default())),
            ("two", Box::new(move || two.next().unwrap_or_default())),
        ];
        let medians = medians(3, &mut subjects);
        assert_eq!(medians, [5, 2].map(Duration::from_millis));
        let sorted: Vec<_> = (0..100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&sorted, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&sorted, 1.0), Duration::from_millis(99));
    }
}

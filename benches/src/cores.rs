//! A core for each side, as if they were two machines. Where the scheduler puts threads that wake each
//! other changes a round trip by more than anything that is measured here, so both the raw limit and
//! what is held against it get the same places.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Runs `work`, and whatever threads it starts for good, on one of this process's cores: `side` counts
/// them, and begins anew behind the last. Where the kernel refuses, `work` runs anywhere.
pub fn on_core<R>(side: usize, work: impl FnOnce() -> R) -> R {
    static ALL: OnceLock<Option<CpuSet>> = OnceLock::new();
    let Some(all) = ALL.get_or_init(|| sched_getaffinity(None).ok()) else {
        return work();
    };
    let before = sched_getaffinity(None).unwrap_or(*all);
    let cores: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|core| all.is_set(*core))
        .collect();
    let mut one = CpuSet::new();
    one.set(cores[side % cores.len()]);
    // Without it the figures are less steady, that is all.
    let _ = sched_setaffinity(None, &one);
    let done = work();
    let _ = sched_setaffinity(None, &before);
    done
}

//! A thread that makes pages for others, and gives way to them.
#![expect(
    unsafe_code,
    reason = "the policy of a thread is set by a call that takes a pointer"
)]

use std::io;

/// Has the calling thread wait for its turn when it is woken, instead of taking the core of whoever woke it,
/// for as long as the thread lives (`SCHED_BATCH`, Linux 2.6.16 and newer). Its share of the cores stays as it
/// is. A thread of another policy than the default one, such as a real-time one, keeps that: who started the
/// process wanted it.
///
/// # Errors
/// What the kernel says; a sandbox may not allow the call. The thread works on as it was then.
pub(crate) fn give_way() -> io::Result<()> {
    // SAFETY: takes no pointer; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy != libc::SCHED_OTHER {
        return if policy < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        };
    }
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is read during the call only; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: as above.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_gives_way_and_no_other_does() {
        let before = policy();
        std::thread::spawn(|| {
            let mine = policy();
            give_way().expect("the default policy may be left for this one");
            give_way().expect("and it may be asked for again");
            if mine == libc::SCHED_OTHER {
                assert_eq!(policy(), libc::SCHED_BATCH);
            } else {
                assert_eq!(policy(), mine, "another policy is kept");
            }
        })
        .join()
        .expect("no assertion fails");
        assert_eq!(policy(), before);
    }
}

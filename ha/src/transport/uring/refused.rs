//! Why the kernel refuses a ring, in words that say what to change.

use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Why this process cannot have an io_uring; the text says what to do. The transport over
/// ordinary sockets works wherever this is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingRefused {
    /// The kernel has no io_uring.
    #[error("io_uring_setup: ENOSYS: this kernel has no io_uring (Linux 5.19 or newer is needed)")]
    Kernel,
    /// The kernel has io_uring but not what the transport uses.
    #[error("io_uring of this kernel lacks {0} (Linux 5.19 or newer is needed)")]
    TooOld(&'static str),
    /// A setting turns io_uring off.
    #[error(
        "io_uring_setup: EPERM: sysctl kernel.io_uring_disabled is {0}; set it to 0, or to 1 and \
         put this user into the group of kernel.io_uring_group"
    )]
    Sysctl(u8),
    /// Something else forbids it, most likely a container's system call filter.
    #[error(
        "io_uring_setup: {0}: refused although kernel.io_uring_disabled does not say so; most \
         likely the container's seccomp profile: allow io_uring_setup, io_uring_enter and \
         io_uring_register"
    )]
    Forbidden(io::Error),
    /// The locked-memory limit is too small.
    #[error(
        "io_uring_setup: ENOMEM: the ring does not fit into RLIMIT_MEMLOCK ({}); raise it to at \
         least 8 MiB (ulimit -l 8192, LimitMEMLOCK=8M)",
        limit_text(*.0)
    )]
    LockedMemory(Option<u64>),
    /// Any other error.
    #[error("io_uring_setup: {0}")]
    Other(#[source] io::Error),
}

impl RingRefused {
    pub(in crate::transport) fn from_setup(error: io::Error) -> Self {
        Self::classify(error, sysctl_disabled(), locked_memory_limit())
    }

    fn classify(error: io::Error, disabled: Option<u8>, limit: Option<u64>) -> Self {
        match (Errno::from_io_error(&error), disabled) {
            (Some(Errno::NOSYS), _) => Self::Kernel,
            (Some(Errno::PERM), Some(disabled @ 1..)) => Self::Sysctl(disabled),
            (Some(Errno::PERM | Errno::ACCESS), _) => Self::Forbidden(error),
            (Some(Errno::NOMEM), _) => Self::LockedMemory(limit),
            _ => Self::Other(error),
        }
    }
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes"))
}

fn sysctl_disabled() -> Option<u8> {
    let text = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    text.trim().parse().ok()
}

/// The soft limit in bytes; none when unlimited.
fn locked_memory_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// What the ring can do beyond what is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probed {
    /// Whether SEND_ZC exists.
    pub(super) zero_copy: bool,
    /// Bytes that zero-copy sends may pin: half of the limit, the rest is for rings.
    pub(super) pinned_limit: u64,
}

pub(super) fn probe(ring: &IoUring) -> Result<Probed, RingRefused> {
    if !ring.params().is_feature_ext_arg() {
        return Err(RingRefused::TooOld("IORING_FEAT_EXT_ARG"));
    }
    if !ring.params().is_feature_nodrop() {
        return Err(RingRefused::TooOld("IORING_FEAT_NODROP"));
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(RingRefused::Other)?;
    let needed = [
        (opcode::Accept::CODE, "IORING_OP_ACCEPT"),
        (opcode::Connect::CODE, "IORING_OP_CONNECT"),
        (opcode::Recv::CODE, "IORING_OP_RECV"),
        (opcode::Send::CODE, "IORING_OP_SEND"),
        (opcode::Read::CODE, "IORING_OP_READ"),
        (opcode::AsyncCancel2::CODE, "IORING_OP_ASYNC_CANCEL"),
    ];
    for (code, name) in needed {
        if !probe.is_supported(code) {
            return Err(RingRefused::TooOld(name));
        }
    }
    let pinned_limit = locked_memory_limit().map_or(u64::MAX, |limit| limit / 2);
    Ok(Probed {
        zero_copy: probe.is_supported(opcode::SendZc::CODE),
        pinned_limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno, disabled: Option<u8>) -> String {
        RingRefused::classify(errno.into(), disabled, Some(65536)).to_string()
    }

    #[test]
    fn g10_too_little_locked_memory_names_the_limit() {
        let text = refused(Errno::NOMEM, Some(0));
        assert!(
            text.contains("ENOMEM") && text.contains("65536 bytes"),
            "{text}"
        );
        assert!(
            text.contains("io_uring_setup") && text.contains("ulimit -l"),
            "{text}"
        );
    }

    #[test]
    fn g11_a_refusal_says_whether_kernel_setting_or_container_is_the_cause() {
        assert!(refused(Errno::NOSYS, None).contains("no io_uring"));
        assert!(refused(Errno::PERM, Some(2)).contains("kernel.io_uring_disabled is 2"));
        assert!(refused(Errno::PERM, Some(0)).contains("seccomp"));
        assert!(refused(Errno::PERM, None).contains("seccomp"));
        assert!(refused(Errno::MFILE, Some(0)).starts_with("io_uring_setup: "));
    }
}

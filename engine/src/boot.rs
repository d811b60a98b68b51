//! Which run of the kernel this is.
//!
//! Bytes stored through a mapping outlive their process, but not their kernel: two opens in the same
//! boot see the same page cache.

use std::fs;

/// Identifies the running kernel; all zero when the system does not say.
///
/// An all-zero id never counts as "the same boot".
pub(crate) fn boot_id() -> [u8; 16] {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .and_then(|text| parse(text.trim()))
        .unwrap_or_default()
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let mut digits = text.chars().filter(|c| *c != '-');
    for byte in &mut id {
        let high = digits.next()?.to_digit(16)?;
        let low = digits.next()?.to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    digits.next().is_none().then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_sixteen_bytes_of_hex_with_dashes() {
        let id = parse("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(id[..4], [0x00, 0x11, 0x22, 0x33]);
        assert_eq!(id[15], 0xff);
        assert_eq!(parse("0011"), None);
        assert_eq!(parse("00112233-4455-6677-8899-aabbccddeeff00"), None);
        assert_eq!(parse("0011223g-4455-6677-8899-aabbccddeeff"), None);
    }

    #[test]
    fn this_kernel_says_which_boot_it_is() {
        assert_eq!(boot_id(), boot_id());
        assert_ne!(boot_id(), [0; 16]);
    }
}

//! The keys of broker.conf that say when old segments go (RocketMQ: MessageStoreConfig).

use std::time::Duration;

use epochlog_engine::RetentionPolicy;

use super::{ConfError, Reader};

const HOUR_MS: u64 = 3_600_000;

/// When old segments go. Field names follow Java's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionConf {
    /// `fileReservedTime`, the disk ratios, `deleteFileBatchMax`, and what only epochlog has.
    pub policy: RetentionPolicy,
    /// `deleteWhen`: hours of the local day in which expired segments go.
    pub delete_when: Vec<u8>,
    /// `cleanResourceInterval`.
    pub clean_resource_interval: Duration,
}

impl RetentionConf {
    /// Takes its keys. Ratios outside what Java allows are taken as the nearest it does.
    pub(super) fn read(keys: &mut Reader) -> Result<Self, ConfError> {
        let clean_forcibly = keys.flag("cleanFileForciblyEnable", true)?;
        let forcibly = percent(keys, "diskSpaceCleanForciblyRatio", 85, 30, 85)?;
        let policy = RetentionPolicy {
            reserved_ms: Some(hours(keys, "fileReservedTime", 72)?),
            max_log_bytes: unless_zero(bytes(keys, "commitLogMaxSize", 0)?),
            disk_max_used_percent: percent(keys, "diskMaxUsedSpaceRatio", 75, 10, 95)?,
            disk_clean_forcibly_percent: if clean_forcibly { forcibly } else { 100 },
            disk_warning_percent: percent(keys, "diskSpaceWarningLevelRatio", 90, 35, 90)?,
            batch_max: batch(keys)?,
            saved_reserved_ms: Some(hours(keys, "truncatedReservedTime", 168)?),
            saved_max_bytes: Some(bytes(keys, "truncatedMaxSize", 4 << 30)?),
        };
        Ok(Self {
            policy,
            delete_when: delete_when(keys)?,
            clean_resource_interval: keys.ms("cleanResourceInterval", 10_000)?,
        })
    }
}

fn hours(keys: &mut Reader, key: &'static str, default: u64) -> Result<u64, ConfError> {
    // A hundred years.
    Ok(keys.number(key, default, 0, 876_000)? * HOUR_MS)
}

fn bytes(keys: &mut Reader, key: &'static str, default: u64) -> Result<u64, ConfError> {
    keys.number(key, default, 0, i64::MAX.unsigned_abs())
}

fn unless_zero(bytes: u64) -> Option<u64> {
    Some(bytes).filter(|bytes| *bytes > 0)
}

fn batch(keys: &mut Reader) -> Result<usize, ConfError> {
    let most = keys.number("deleteFileBatchMax", 10, 1, 1000)?;
    Ok(usize::try_from(most).unwrap_or(usize::MAX))
}

fn percent(
    keys: &mut Reader,
    key: &'static str,
    default: u8,
    least: u8,
    most: u8,
) -> Result<u8, ConfError> {
    let parse = |text: &str| {
        let percent = text.parse().ok().filter(|percent: &u8| *percent <= 100)?;
        Some(percent.clamp(least, most))
    };
    keys.parsed(key, default, "a whole number from 0 to 100", parse)
}

fn delete_when(keys: &mut Reader) -> Result<Vec<u8>, ConfError> {
    const KEY: &str = "deleteWhen";
    let text = keys.text_or(KEY, "04");
    let hour = |text: &str| text.trim().parse().ok().filter(|hour: &u8| *hour < 24);
    let hours: Option<Vec<u8>> = text.split(';').map(hour).collect();
    hours.ok_or_else(|| keys.bad(KEY, &text, "hours from 00 to 23, as 04 or 04;16"))
}

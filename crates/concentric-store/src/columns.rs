//! Values of columns, and checksums of rows, shared by the databases.

use concentric_core::store::RunKey;
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime};

/// The checksum before the first turn.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const ROOT: &[u8] = b"concentric/turns/1";

/// The checksum of a turn and of those before it, whose last checksum is `before`.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn chain(before: &[u8], turn: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(turn);
    hash.finalize().to_vec()
}

/// The checksum of a run: of its key, its state and its turns, whose last checksum is `chain`.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn checksum(
    key: &RunKey,
    head: impl AsRef<[u8]>,
    replies: impl AsRef<[u8]>,
    chain: &[u8],
) -> [u8; 32] {
    digest(key, [head.as_ref(), replies.as_ref(), chain])
}

/// The digest of a run's key and of `parts`. It includes the key, so that a row moved to another key is
/// detected.
pub(crate) fn digest<const N: usize>(key: &RunKey, parts: [&[u8]; N]) -> [u8; 32] {
    Sum::new(key).finish(parts)
}

/// A [`digest`] of which only the first parts are known.
#[derive(Clone)]
pub(crate) struct Sum(Sha256);

impl Sum {
    pub(crate) fn new(key: &RunKey) -> Self {
        Self(Sha256::new()).with(names(key).map(str::as_bytes))
    }

    pub(crate) fn with<const N: usize>(self, parts: [&[u8]; N]) -> Self {
        let Self(mut sum) = self;
        for part in parts {
            sum.update((part.len() as u64).to_le_bytes());
            sum.update(part);
        }
        Self(sum)
    }

    pub(crate) fn finish<const N: usize>(self, parts: [&[u8]; N]) -> [u8; 32] {
        self.with(parts).0.finalize().into()
    }
}

pub(crate) fn names(key: &RunKey) -> [&str; 3] {
    [key.tenant.0.as_str(), key.thread.as_str(), key.run.as_str()]
}

/// A number of items, limited to the range of `i64`.
pub(crate) fn position(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn size(n: i64) -> usize {
    usize::try_from(n).unwrap_or_default()
}

pub(crate) fn number(n: i64) -> u64 {
    u64::try_from(n).unwrap_or_default()
}

pub(crate) fn integer(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Converts a time to nanoseconds since 1970, clamped to the range of `i64`.
pub(crate) fn nanos(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

pub(crate) fn time(nanos: i64) -> SystemTime {
    let since = Duration::from_nanos(nanos.unsigned_abs());
    let time = match nanos < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(since),
        false => SystemTime::UNIX_EPOCH.checked_add(since),
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

//! Serialization of timestamps as milliseconds since the Unix epoch.

use serde::{Deserialize, Deserializer, Serializer};
use std::time::{Duration, SystemTime};

pub(crate) fn since(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn from(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

pub(crate) fn serialize<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        None => serializer.serialize_none(),
        Some(time) => serializer.serialize_u64(since(*time)),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SystemTime>, D::Error> {
    Ok(Option::<u64>::deserialize(deserializer)?.and_then(from))
}

//! Arguments and results of the script.

use super::db::database;
use crate::{
    Fault,
    columns::{nanos, number, time},
    rules::LONGEST,
};
use concentric_core::{
    context::Environment,
    store::{StoreError, Tenant},
};
use redis::Value;
use sha2::{Digest as _, Sha256};
use std::{
    borrow::Cow,
    ops::Range,
    time::{Duration, SystemTime},
};

/// The checksum before the first turn.
pub(super) const ROOT: &str = "concentric/turns/1";

/// The bytes before a stored turn: its checksum, and the size of the turns up to it.
const CHAIN: usize = 40;
pub(super) const HEADER: usize = 56;

/// A call of a method of the script, or of a command.
#[derive(Clone)]
pub(super) struct Call<'a> {
    pub(super) of: Of<'a>,
    pub(super) method: Method<'a>,
    pub(super) arguments: Vec<Cow<'a, [u8]>>,
}

/// The keys that a call uses, all in one hash slot.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    Tenant(&'a Tenant),
    /// A part of the list of tenants.
    Shard(u16),
    /// The mark of the store.
    Store,
    /// A bucket of a quota.
    Bucket(&'a str),
}

#[derive(Clone, Copy)]
pub(super) enum Method<'a> {
    Script(&'static str),
    /// Of the script of limits.
    Limits(&'static str),
    /// Pushes the arguments to staged turns with this id, if these exist.
    Push(&'a str),
}

impl<'a> Call<'a> {
    pub(super) const fn new(of: Of<'a>, method: &'static str) -> Self {
        Self {
            of,
            method: Method::Script(method),
            arguments: Vec::new(),
        }
    }

    pub(super) fn push(tenant: &'a Tenant, id: &'a str, entries: Vec<Vec<u8>>) -> Self {
        Self {
            of: Of::Tenant(tenant),
            method: Method::Push(id),
            arguments: entries.into_iter().map(Cow::Owned).collect(),
        }
    }

    pub(super) const fn of(tenant: &'a Tenant, method: &'static str) -> Self {
        Self::new(Of::Tenant(tenant), method)
    }

    pub(super) fn bytes(mut self, value: &'a [u8]) -> Self {
        self.arguments.push(Cow::Borrowed(value));
        self
    }

    pub(super) fn text(self, value: &'a str) -> Self {
        self.bytes(value.as_bytes())
    }

    pub(super) fn owned(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.arguments.push(Cow::Owned(value.into()));
        self
    }

    /// A name without colons.
    pub(super) fn name(self, value: &str) -> Self {
        self.owned(escape(value))
    }

    pub(super) fn int(self, value: i64) -> Self {
        self.owned(value.to_string())
    }

    pub(super) fn flag(self, value: bool) -> Self {
        self.text(if value { "1" } else { "0" })
    }

    pub(super) fn optional_int(self, value: Option<i64>) -> Self {
        self.owned(value.map_or_else(String::new, |value| value.to_string()))
    }

    pub(super) fn optional(self, value: Option<&str>) -> Self {
        self.owned(value.map_or_else(|| String::from("-"), |value| format!("+{value}")))
    }

    pub(super) fn list<T: Into<Cow<'a, [u8]>>>(self, values: impl IntoIterator<Item = T>) -> Self {
        let values: Vec<_> = values.into_iter().map(Into::into).collect();
        let mut call = self.owned(values.len().to_string());
        call.arguments.extend(values);
        call
    }
}

/// Escapes a name so that it contains neither a colon nor a brace; no two names have the same result.
pub(super) fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'@' | b'-' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Reverses [`escape`].
pub(super) fn unescape(name: &[u8]) -> Result<String, StoreError> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let code = after
            .get(..2)
            .and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(code.ok_or_else(|| unexpected("a name"))?);
        rest = after.get(2..).unwrap_or_default();
    }
    String::from_utf8(bytes).map_err(|_| unexpected("a name"))
}

/// The id of a write, by which the store recognises that it has been applied.
pub(super) fn attempt() -> String {
    let environment = Environment::system();
    let half = || environment.random().next_u64();
    format!("{:016x}{:016x}", half(), half())
}

pub(super) fn digest(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

fn sha1(parts: &[&[u8]]) -> String {
    let mut sum = sha1_smol::Sha1::new();
    for part in parts {
        sum.update(part);
    }
    sum.digest().to_string()
}

/// The checksum of a turn and of those before it, whose last checksum is `before`.
pub(super) fn chain(before: &str, turn: &[u8]) -> String {
    sha1(&[before.as_bytes(), &digest(turn)])
}

/// The checksum of a run, from the digests of its names, its head and its replies, and that of its turns.
pub(super) fn run_sum(names: &[u8], head: &[u8], replies: &[u8], chain: &str) -> String {
    sha1(&[names, head, replies, chain.as_bytes()])
}

/// Verifies the checksums of stored turns, which follow the one with the checksum `before`. Returns the turns as JSON,
/// and the last checksum.
pub(super) fn open_turns<'a>(
    what: &str,
    range: Range<usize>,
    before: &str,
    entries: &'a [Value],
) -> Result<(Vec<&'a [u8]>, String), StoreError> {
    let corrupt = |why: String| StoreError::from(Fault::corrupt(what, why));
    let mut last = before.to_owned();
    let mut turns = Vec::with_capacity(entries.len());
    for (n, entry) in (range.start..).zip(entries) {
        let (header, turn) = bytes(entry)?
            .split_at_checked(HEADER)
            .ok_or_else(|| corrupt(format!("turn {n} is too short")))?;
        last = chain(&last, turn);
        if header.get(..CHAIN) != Some(last.as_bytes()) {
            return Err(corrupt(format!("the checksum of turn {n} does not match")));
        }
        turns.push(turn);
    }
    match turns.len() == range.len() {
        true => Ok((turns, last)),
        false => Err(corrupt(format!(
            "{} of {} turns exist",
            turns.len(),
            range.len()
        ))),
    }
}

/// Microseconds since 1970, which the numbers of the script can represent.
pub(super) fn micros(time: SystemTime) -> i64 {
    nanos(time).div_euclid(1_000)
}

pub(super) fn from_micros(micros: i64) -> SystemTime {
    time(micros.saturating_mul(1_000))
}

/// A time that begins when the store handles a request, rounded up.
pub(super) fn span(time: Duration) -> i64 {
    let nanos = time.min(LONGEST).as_nanos();
    i64::try_from(nanos.div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// How long entries are kept; `None` if it is without limit, or for more than a hundred years.
pub(super) fn keep(time: Duration) -> Option<i64> {
    (time <= LONGEST).then(|| span(time))
}

fn unexpected(what: &str) -> StoreError {
    Fault::corrupt(
        format!("{what} in a result of the server"),
        "unexpected form",
    )
    .into()
}

/// The error of a code that no method returns.
pub(super) fn unknown(code: &str) -> StoreError {
    Fault::Database(format!("the script returned the unknown code `{code}`").into()).into()
}

/// The result of a call: a code, and values.
pub(super) struct Reply(Vec<Value>);

impl Reply {
    pub(super) fn new(value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(values) => Ok(Self(values)),
            // That of a command.
            value @ Value::Int(_) => Ok(Self(vec![value])),
            _ => Err(database("the script returned no list").into()),
        }
    }

    pub(super) fn code(&self) -> Result<&str, StoreError> {
        text(self.get(0)?)
    }

    /// The value at a position, beginning with 1.
    pub(super) fn get(&self, at: usize) -> Result<&Value, StoreError> {
        self.0.get(at).ok_or_else(|| unexpected("a value"))
    }

    /// The values from a position on.
    pub(super) fn into_rest(self, at: usize) -> impl Iterator<Item = Value> {
        self.0.into_iter().skip(at)
    }

    /// The values after the code.
    pub(super) fn rest(&self) -> &[Value] {
        self.0.get(1..).unwrap_or_default()
    }

    pub(super) fn int(&self, at: usize) -> Result<i64, StoreError> {
        int(self.get(at)?)
    }

    /// A version or a fence.
    pub(super) fn number(&self, at: usize) -> Result<u64, StoreError> {
        self.int(at).map(number)
    }

    /// A flag.
    pub(super) fn is(&self, at: usize) -> Result<bool, StoreError> {
        Ok(self.int(at)? != 0)
    }
}

pub(super) fn int(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(int) => Ok(*int),
        _ => text(value)?.parse().map_err(|_| unexpected("a number")),
    }
}

pub(super) fn optional_int(value: &Value) -> Result<Option<i64>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        value => int(value).map(Some),
    }
}

pub(super) fn bytes(value: &Value) -> Result<&[u8], StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        Value::Okay => Ok(b"OK"),
        _ => Err(unexpected("a text")),
    }
}

pub(super) fn text(value: &Value) -> Result<&str, StoreError> {
    std::str::from_utf8(bytes(value)?).map_err(|_| unexpected("a text"))
}

pub(super) fn list(value: &Value) -> Result<&[Value], StoreError> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(unexpected("a list")),
    }
}

/// The values of a list of this length.
pub(super) fn fields<const N: usize>(value: &Value) -> Result<&[Value; N], StoreError> {
    list(value)?.try_into().map_err(|_| unexpected("a list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_name_is_unescaped() {
        for name in ["", "a-b_c.d@e", "a:b", "{t}", "%41", "é\0🦀 x", "A"] {
            let escaped = escape(name);
            assert!(!escaped.contains([':', '{', '}']), "{escaped}");
            assert_eq!(unescape(escaped.as_bytes()).ok().as_deref(), Some(name));
        }
        assert!(unescape(b"%4").is_err() && unescape(b"%zz").is_err());
        assert!(unescape(b"%FF").is_err());
    }

    #[test]
    fn times_are_rounded_in_favour_of_the_owner() {
        assert_eq!(span(Duration::from_nanos(1)), 1);
        assert_eq!(span(Duration::ZERO), 0);
        assert_eq!(keep(Duration::MAX), None);
        let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_999);
        assert_eq!(
            from_micros(micros(time)),
            SystemTime::UNIX_EPOCH + Duration::from_micros(1)
        );
    }
}

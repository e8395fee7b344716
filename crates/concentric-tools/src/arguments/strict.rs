//! Rejects JSON with duplicate keys at any depth.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::{borrow::Cow, collections::HashSet, fmt};

/// Checks that `text` is exactly one JSON value. Returns an error for invalid JSON, duplicate keys,
/// numbers out of range, and values nested deeper than serde_json allows (127 levels).
pub(super) fn check(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<Sound>(text).map(drop)
}

struct Sound;

impl<'de> Deserialize<'de> for Sound {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        let mut keys = Keys::default();
        while let Some(Key(key)) = entries.next_key()? {
            // serde_json replaces an object with such a key by its value, so approvers would
            // receive other arguments than the tool.
            if key.starts_with("$serde_json::private::") {
                return Err(A::Error::custom(format_args!(
                    "the key `{key}` is reserved"
                )));
            }
            if let Err(key) = keys.insert(key) {
                return Err(A::Error::custom(format_args!("duplicate key `{key}`")));
            }
            entries.next_value::<Self>()?;
        }
        Ok(self)
    }
}

/// A key, borrowed unless it contains escapes.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Borrowed(key)))
    }

    fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Owned(key.to_owned())))
    }
}

const FEW: usize = 8;

/// The keys of an object; the first few need no allocation.
#[derive(Default)]
struct Keys<'de> {
    few: [&'de str; FEW],
    len: usize,
    more: Option<HashSet<Cow<'de, str>>>,
}

impl<'de> Keys<'de> {
    /// Adds a key. Returns the key if it is a duplicate.
    #[inline]
    fn insert(&mut self, key: Cow<'de, str>) -> Result<(), Cow<'de, str>> {
        if self.few.iter().take(self.len).any(|few| **few == *key) {
            return Err(key);
        }
        if let (Cow::Borrowed(key), None, Some(place)) =
            (&key, &self.more, self.few.get_mut(self.len))
        {
            *place = key;
            self.len += 1;
            return Ok(());
        }
        let more = self.more.get_or_insert_default();
        if more.contains(&key) {
            return Err(key);
        }
        more.insert(key);
        Ok(())
    }
}

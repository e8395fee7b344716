//! Checks arguments while they are read: rejects duplicate keys at any depth, and enforces a schema.

use super::plain::{Plain, Shape};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::{borrow::Cow, collections::HashSet, fmt};

/// Checks that `text` is exactly one JSON value, and returns whether it is known to match `schema`.
/// A value that a rule compares as a whole is not known to match.
///
/// # Errors
///
/// Invalid JSON, duplicate keys, numbers out of range, and values nested deeper than serde_json
/// allows (127 levels).
pub(super) fn check(text: &str, schema: Option<&Plain>) -> Result<bool, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let matches = Sound { schema }.deserialize(&mut json)?;
    json.end()?;
    Ok(matches)
}

/// A value that is read and not stored.
#[derive(Clone, Copy)]
struct Sound<'a> {
    schema: Option<&'a Plain>,
}

impl Sound<'_> {
    #[inline]
    fn scalar(self, value: impl Into<Value>) -> bool {
        self.schema
            .is_none_or(|schema| schema.is_valid(&value.into()))
    }
}

impl<'de> DeserializeSeed<'de> for Sound<'_> {
    type Value = bool;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Sound<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        Ok(self.scalar(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<bool, E> {
        Ok(self.scalar(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<bool, E> {
        Ok(self.scalar(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<bool, E> {
        Ok(self.scalar(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        Ok(self.schema.is_none_or(|schema| schema.is_valid_text(text)))
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(self.scalar(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let schema = self.schema.and_then(Plain::items);
        let (mut matches, mut len) = (true, 0);
        while let Some(item) = items.next_element_seed(Sound { schema })? {
            matches &= item;
            len += 1;
        }
        let accepts = |schema: &Plain| schema.accepts(Shape::Array(len));
        Ok(matches && self.schema.is_none_or(accepts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<bool, A::Error> {
        let mut keys = Keys::default();
        let mut matches = true;
        while let Some(Key(key)) = entries.next_key()? {
            // serde_json replaces an object with such a key by its value, so approvers would
            // receive other arguments than the tool.
            if key.starts_with("$serde_json::private::") {
                return Err(A::Error::custom(format_args!(
                    "the key `{key}` is reserved"
                )));
            }
            let schema = self.schema.and_then(|schema| schema.property(&key));
            matches &= schema.is_some() == self.schema.is_some();
            if let Err(key) = keys.insert(key) {
                return Err(A::Error::custom(format_args!("duplicate key `{key}`")));
            }
            matches &= entries.next_value_seed(Sound { schema })?;
        }
        let has = |key: &str| keys.contains(key);
        let accepts = |schema: &Plain| schema.accepts(Shape::Object(&has));
        Ok(matches && self.schema.is_none_or(accepts))
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
    fn contains(&self, key: &str) -> bool {
        let few = self.few.iter().take(self.len).any(|few| *few == key);
        few || self.more.as_ref().is_some_and(|more| more.contains(key))
    }

    /// Adds a key. Returns the key if it is a duplicate.
    #[inline]
    fn insert(&mut self, key: Cow<'de, str>) -> Result<(), Cow<'de, str>> {
        if self.contains(&key) {
            return Err(key);
        }
        if let (Cow::Borrowed(key), None, Some(place)) =
            (&key, &self.more, self.few.get_mut(self.len))
        {
            *place = key;
            self.len += 1;
            return Ok(());
        }
        self.more.get_or_insert_default().insert(key);
        Ok(())
    }
}

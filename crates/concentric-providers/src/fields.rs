//! Serialization of a request's fields.

use serde::{
    Serialize, Serializer,
    ser::{Error, SerializeMap},
};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};

/// Serializes fields, except those that the request's provider options replace.
pub(crate) struct Fields<'a, M> {
    pub(crate) map: M,
    pub(crate) replaced: &'a Map<String, Value>,
}

impl<M: SerializeMap> Fields<'_, M> {
    pub(crate) fn put<T: Serialize + ?Sized>(
        &mut self,
        name: &str,
        value: &T,
    ) -> Result<(), M::Error> {
        if self.replaced.contains_key(name) {
            return Ok(());
        }
        self.map.serialize_entry(name, value)
    }

    pub(crate) fn put_some<T: Serialize>(
        &mut self,
        name: &str,
        value: Option<&T>,
    ) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.put(name, value))
    }

    /// Serializes the replacements, and ends the object.
    pub(crate) fn end(mut self) -> Result<M::Ok, M::Error> {
        for (name, value) in self.replaced {
            self.map.serialize_entry(name, value)?;
        }
        self.map.end()
    }
}

/// An object with a single field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct One<T>(pub(crate) &'static str, pub(crate) T);

impl<T: Serialize> Serialize for One<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.0, &self.1)])
    }
}

/// An object with the field `type` before others.
#[derive(Debug, Serialize)]
pub(crate) struct Typed<T> {
    r#type: &'static str,
    #[serde(flatten)]
    fields: T,
}

impl<T> Typed<T> {
    pub(crate) const fn new(r#type: &'static str, fields: T) -> Self {
        Self { r#type, fields }
    }
}

/// Serializes `object` as JSON, or returns `None` if it is empty.
pub(crate) fn unless_empty<E: Error>(object: &impl Serialize) -> Result<Option<Box<RawValue>>, E> {
    let json = to_raw_value(object).map_err(E::custom)?;
    Ok((json.get() != "{}").then_some(json))
}

/// Whether `list` is serialized as an empty list. Serializes no more than its beginning.
pub(crate) fn is_empty_list(list: &impl Serialize) -> bool {
    let mut brackets = [0; 2];
    serde_json::to_writer(&mut brackets[..], list).is_ok()
}

#[cfg(test)]
mod tests {
    use super::is_empty_list;

    #[test]
    fn a_list_is_empty_or_not() {
        assert!(is_empty_list(&Vec::<u8>::new()));
        assert!(!is_empty_list(&[1]));
        assert!(!is_empty_list(&[""; 2]));
    }
}

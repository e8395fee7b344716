//! Lenient types, which accept any JSON in a field and use the values that they can interpret.
//!
//! A field of an unexpected type must not fail the response that contains it.

use concentric_core::Str;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::Value;
use std::{fmt, marker::PhantomData};

/// A type that is read from any JSON. A kind of JSON without a method of the type is ignored.
pub(crate) trait Lenient<'de>: Default {
    #[inline]
    fn text(_: Text<'de>) -> Self {
        Self::default()
    }

    fn bool(_: bool) -> Self {
        Self::default()
    }

    fn number(_: Number) -> Self {
        Self::default()
    }

    fn seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

/// A number as the parser distinguishes them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    U64(u64),
    I64(i64),
    F64(f64),
}

struct Any<T>(PhantomData<T>);

impl<'de, T: Lenient<'de>> Visitor<'de> for Any<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    #[inline]
    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    #[inline]
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<T, E> {
        Ok(T::text(Text::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::text(Text::Owned(text.into())))
    }

    #[inline]
    fn visit_bool<E>(self, value: bool) -> Result<T, E> {
        Ok(T::bool(value))
    }

    #[inline]
    fn visit_u64<E>(self, number: u64) -> Result<T, E> {
        Ok(T::number(Number::U64(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<T, E> {
        Ok(T::number(Number::I64(number)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<T, E> {
        Ok(T::number(Number::F64(number)))
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<T, A::Error> {
        T::seq(seq)
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::map(map)
    }
}

/// Implements `Deserialize` for lenient types, each after its generic parameter.
macro_rules! deserialize {
    ($([$($of:tt)?] $type:ty),+) => {$(
        impl<'de, $($of)?> serde::Deserialize<'de> for $type
        where
            Self: $crate::lenient::Lenient<'de>,
        {
            #[inline]
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::lenient::read(from)
            }
        }
    )+};
}

pub(crate) use deserialize;

#[inline]
pub(crate) fn read<'de, T: Lenient<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_any(Any(PhantomData))
}

self::deserialize! { ['a] Text<'a>, ['a] JsonText<'a>, [] Count, [] Flag }

/// A type that is read into a value that exists, since to move a large struct costs more than to read it.
///
/// A kind of JSON without a method of the type leaves the value as it is. A value that has been read before is an
/// error, as a field that occurs twice is.
pub(crate) trait InPlace<'de>: Default {
    fn read_seq<A: SeqAccess<'de>>(&mut self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn read_map<A: MapAccess<'de>>(&mut self, map: A) -> Result<(), A::Error>;
}

/// Reads JSON into a place.
pub(crate) struct Place<'p, T>(pub(crate) &'p mut T);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Place<'_, T> {
    type Value = ();

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        T::deserialize_in_place(from, self.0)
    }
}

impl<'de, T: InPlace<'de>> Visitor<'de> for Place<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        self.0.read_seq(seq)
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.0.read_map(map)
    }
}

/// Implements `Deserialize` for types that are read in place, each after its generic parameter.
macro_rules! in_place {
    ($([$of:tt] $type:ty),+) => {$(
        impl<'de, $of> serde::Deserialize<'de> for $type
        where
            Self: $crate::lenient::InPlace<'de>,
        {
            #[inline]
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let mut read = Self::default();
                Self::deserialize_in_place(from, &mut read)?;
                Ok(read)
            }

            #[inline]
            fn deserialize_in_place<D: serde::Deserializer<'de>>(
                from: D,
                place: &mut Self,
            ) -> Result<(), D::Error> {
                from.deserialize_any($crate::lenient::Place(place))
            }
        }
    )+};
}

pub(crate) use in_place;

self::in_place! { [T] Maybe<T>, [T] Rare<T>, [T] Few<T> }

/// Text, borrowed if the JSON has no escapes. A number is converted to its digits; any other type
/// is ignored.
#[derive(Clone, Debug, Default)]
pub(crate) enum Text<'a> {
    #[default]
    Absent,
    Borrowed(&'a str),
    Owned(Str),
}

impl Text<'_> {
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Absent => None,
            Self::Borrowed(text) => Some(text),
            Self::Owned(text) => Some(text),
        }
    }

    /// The text, unless it is empty.
    #[inline]
    pub(crate) fn filled(&self) -> Option<&str> {
        self.as_str().filter(|text| !text.is_empty())
    }

    /// The text, unless it is empty.
    #[inline]
    pub(crate) fn into_filled(self) -> Option<Str> {
        match self {
            Self::Borrowed(text) if !text.is_empty() => Some(Str::from(text)),
            Self::Owned(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }
}

impl<'a> Text<'a> {
    /// Takes the text, unless it is empty.
    #[inline]
    pub(crate) fn take_filled(&mut self) -> Option<Str> {
        std::mem::take(self).into_filled()
    }
}

impl<'de: 'a, 'a> Lenient<'de> for Text<'a> {
    #[inline]
    fn text(text: Text<'de>) -> Self {
        text
    }

    fn number(number: Number) -> Self {
        let digits = match number {
            Number::U64(number) => number.to_string(),
            Number::I64(number) => number.to_string(),
            Number::F64(number) => number.to_string(),
        };
        Self::Owned(digits.into())
    }
}

/// The text of a JSON value, as a string or as the value itself: the arguments of a tool call.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonText<'a>(pub(crate) Text<'a>);

impl From<Value> for JsonText<'_> {
    fn from(value: Value) -> Self {
        Self(Text::Owned(value.to_string().into()))
    }
}

impl<'de: 'a, 'a> Lenient<'de> for JsonText<'a> {
    #[inline]
    fn text(text: Text<'de>) -> Self {
        Self(text)
    }

    fn bool(value: bool) -> Self {
        Value::from(value).into()
    }

    fn number(number: Number) -> Self {
        Self::from(match number {
            Number::U64(number) => Value::from(number),
            Number::I64(number) => Value::from(number),
            Number::F64(number) => Value::from(number),
        })
    }

    fn seq<A: SeqAccess<'de>>(seq: A) -> Result<Self, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(seq)).map(Self::from)
    }

    fn map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(Self::from)
    }
}

/// A non-negative integer; any other value is ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count(pub(crate) Option<u64>);

impl Lenient<'_> for Count {
    fn text(text: Text<'_>) -> Self {
        Self(text.as_str().and_then(|text| text.parse().ok()))
    }

    #[inline]
    fn number(number: Number) -> Self {
        Self(match number {
            Number::U64(number) => Some(number),
            Number::I64(number) => number.try_into().ok(),
            // `as` saturates.
            Number::F64(number) => (number >= 0.0).then_some(number as u64),
        })
    }
}

/// A boolean; any value other than `true` is false.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flag(pub(crate) bool);

impl Lenient<'_> for Flag {
    fn text(text: Text<'_>) -> Self {
        Self(text.as_str() == Some("true"))
    }

    fn bool(value: bool) -> Self {
        Self(value)
    }
}

/// An object; any other type is ignored.
#[derive(Clone, Debug)]
pub(crate) struct Maybe<T>(pub(crate) Option<T>);

impl<T> Default for Maybe<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Default + Deserialize<'de>> InPlace<'de> for Maybe<T> {
    #[inline]
    fn read_map<A: MapAccess<'de>>(&mut self, map: A) -> Result<(), A::Error> {
        if self.0.is_some() {
            return Err(A::Error::custom(TWICE));
        }
        let place = self.0.get_or_insert_with(T::default);
        T::deserialize_in_place(MapAccessDeserializer::new(map), place)
    }
}

/// An object that is rare and therefore boxed; any other type is ignored.
#[derive(Clone, Debug)]
pub(crate) struct Rare<T>(pub(crate) Option<Box<T>>);

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Default + Deserialize<'de>> InPlace<'de> for Rare<T> {
    fn read_map<A: MapAccess<'de>>(&mut self, map: A) -> Result<(), A::Error> {
        if self.0.is_some() {
            return Err(A::Error::custom(TWICE));
        }
        let place = self.0.get_or_insert_with(Box::default);
        T::deserialize_in_place(MapAccessDeserializer::new(map), place)
    }
}

/// The error for a field that occurs twice.
const TWICE: &str = "a field occurs twice";

/// The objects in a list, which usually has one; a list of one is not allocated. A single object is
/// treated as a list of one.
#[derive(Clone, Debug)]
pub(crate) struct Few<T> {
    first: Maybe<T>,
    rest: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self {
            first: Maybe::default(),
            rest: Vec::new(),
        }
    }
}

impl<T> Few<T> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.first.0.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.0.iter().chain(&self.rest)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.0.iter_mut().chain(&mut self.rest)
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.first.0.into_iter().chain(self.rest)
    }
}

impl<'de, T: Default + Deserialize<'de>> InPlace<'de> for Few<T> {
    #[inline]
    fn read_seq<A: SeqAccess<'de>>(&mut self, mut seq: A) -> Result<(), A::Error> {
        if !self.is_empty() {
            return Err(A::Error::custom(TWICE));
        }
        while self.is_empty() {
            if seq.next_element_seed(Place(&mut self.first))?.is_none() {
                return Ok(());
            }
        }
        while let Some(Maybe(item)) = seq.next_element()? {
            self.rest.extend(item);
        }
        Ok(())
    }

    fn read_map<A: MapAccess<'de>>(&mut self, map: A) -> Result<(), A::Error> {
        self.first.read_map(map)
    }
}

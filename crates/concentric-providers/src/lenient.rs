//! Lenient types, which accept any JSON in a field and use the values that they can interpret.
//!
//! A field of an unexpected type must not fail the response that contains it.

use concentric_core::Str;
use serde::{
    Deserialize, Deserializer,
    de::{
        IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::Value;
use std::{fmt, marker::PhantomData};

/// The methods of a [`Visitor`] for JSON types that are ignored.
macro_rules! nothing {
    ($($kind:ident)*) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any JSON")
        }

        #[inline]
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        $(nothing!(@ $kind);)*
    };
    (@ bool) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
    (@ number) => {
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
    (@ str) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
    (@ seq) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
    (@ map) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
}

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

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    nothing!(bool seq map);

    #[inline]
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text::Owned(text.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Text<'de>, E> {
        Ok(Text::Owned(number.to_string().into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Text<'de>, E> {
        Ok(Text::Owned(number.to_string().into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Text<'de>, E> {
        Ok(Text::Owned(number.to_string().into()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

/// The text of a JSON value, as a string or as the value itself: the arguments of a tool call.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonText<'a>(pub(crate) Text<'a>);

struct JsonVisitor;

fn json<'a, E>(value: &Value) -> Result<JsonText<'a>, E> {
    Ok(JsonText(Text::Owned(value.to_string().into())))
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = JsonText<'de>;

    nothing!();

    #[inline]
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<JsonText<'de>, E> {
        Ok(JsonText(Text::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonText<'de>, E> {
        Ok(JsonText(Text::Owned(text.into())))
    }

    fn visit_bool<E>(self, value: bool) -> Result<JsonText<'de>, E> {
        json(&value.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonText<'de>, E> {
        json(&number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonText<'de>, E> {
        json(&number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<JsonText<'de>, E> {
        json(&number.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<JsonText<'de>, A::Error> {
        json(&Value::deserialize(SeqAccessDeserializer::new(seq))?)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonText<'de>, A::Error> {
        json(&Value::deserialize(MapAccessDeserializer::new(map))?)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// A non-negative integer; any other value is ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count(pub(crate) Option<u64>);

struct CountVisitor;

impl<'de> Visitor<'de> for CountVisitor {
    type Value = Count;

    nothing!(bool seq map);

    #[inline]
    fn visit_u64<E>(self, number: u64) -> Result<Count, E> {
        Ok(Count(Some(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Count, E> {
        Ok(Count(number.try_into().ok()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Count, E> {
        // `as` saturates.
        Ok(Count((number >= 0.0).then_some(number as u64)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Count, E> {
        Ok(Count(text.parse().ok()))
    }
}

impl<'de> Deserialize<'de> for Count {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

/// A boolean; any value other than `true` is false.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flag(pub(crate) bool);

struct FlagVisitor;

impl<'de> Visitor<'de> for FlagVisitor {
    type Value = Flag;

    nothing!(number seq map);

    #[inline]
    fn visit_bool<E>(self, value: bool) -> Result<Flag, E> {
        Ok(Flag(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Flag, E> {
        Ok(Flag(text == "true"))
    }
}

impl<'de> Deserialize<'de> for Flag {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FlagVisitor)
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

struct MaybeVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for MaybeVisitor<T> {
    type Value = Maybe<T>;

    nothing!(bool number str seq);

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Maybe<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|object| Maybe(Some(object)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Maybe<T> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MaybeVisitor(PhantomData))
    }
}

/// The objects in a list; a single object is treated as a list of one.
#[derive(Clone, Debug)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    nothing!(bool number str);

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(Maybe(item)) = seq.next_element()? {
            list.extend(item);
        }
        Ok(List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<List<T>, A::Error> {
        Ok(List(vec![T::deserialize(MapAccessDeserializer::new(map))?]))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

/// A collection `C` that is extended with each object of a list as it is read, so that the list
/// itself is not allocated.
#[derive(Debug)]
pub(crate) struct Gathered<T, C> {
    pub(crate) of: C,
    _from: PhantomData<T>,
}

impl<T, C: Default> Default for Gathered<T, C> {
    fn default() -> Self {
        Self {
            of: C::default(),
            _from: PhantomData,
        }
    }
}

struct GatheredVisitor<T, C>(PhantomData<(T, C)>);

impl<'de, T: Deserialize<'de>, C: Default + Extend<T>> Visitor<'de> for GatheredVisitor<T, C> {
    type Value = Gathered<T, C>;

    nothing!(bool number str map);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Gathered<T, C>, A::Error> {
        let mut gathered = Gathered::<T, C>::default();
        while let Some(Maybe(item)) = seq.next_element()? {
            gathered.of.extend(item);
        }
        Ok(gathered)
    }
}

impl<'de, T: Deserialize<'de>, C: Default + Extend<T>> Deserialize<'de> for Gathered<T, C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GatheredVisitor(PhantomData))
    }
}

/// The objects in a list, which usually has one; a list of one is not allocated.
#[derive(Clone, Debug)]
pub(crate) struct Few<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self {
            first: None,
            rest: Vec::new(),
        }
    }
}

impl<T> Few<T> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}

struct FewVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FewVisitor<T> {
    type Value = Few<T>;

    nothing!(bool number str);

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Few<T>, A::Error> {
        let mut few = Few::default();
        while let Some(Maybe(item)) = seq.next_element()? {
            match few.first {
                None => few.first = item,
                Some(_) => few.rest.extend(item),
            }
        }
        Ok(few)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Few<T>, A::Error> {
        let first = Some(T::deserialize(MapAccessDeserializer::new(map))?);
        Ok(Few {
            first,
            rest: Vec::new(),
        })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FewVisitor(PhantomData))
    }
}

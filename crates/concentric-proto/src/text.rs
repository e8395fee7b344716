use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, SmolStrBuilder};
use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

/// An immutable string that is cheap to clone.
///
/// Strings of up to 23 bytes are stored inline, which covers most deltas, names and ids; longer
/// strings are shared. A `Str` is 24 bytes, which keeps [`Event`](crate::Event) small.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Str(SmolStr);

impl Str {
    /// Creates a string from a static string slice without copying it.
    pub const fn from_static(text: &'static str) -> Self {
        Self(SmolStr::new_static(text))
    }

    /// Concatenates `parts`, without allocating if the result fits inline.
    ///
    /// ```
    /// use concentric_proto::Str;
    ///
    /// assert_eq!(Str::concat(["run_", "1"]), "run_1");
    /// ```
    pub fn concat<const N: usize>(parts: [&str; N]) -> Self {
        let mut text = SmolStrBuilder::new();
        for part in parts {
            text.push_str(part);
        }
        Self(text.finish())
    }

    /// The length in bytes.
    ///
    /// Unlike that of the slice, it does not need the address of the string.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The string as a slice.
    #[inline]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Deref for Str {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Str {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Str {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl From<&str> for Str {
    #[inline]
    fn from(text: &str) -> Self {
        Self(SmolStr::new(text))
    }
}

impl From<String> for Str {
    #[inline]
    fn from(text: String) -> Self {
        Self(SmolStr::from(text))
    }
}

impl From<&String> for Str {
    fn from(text: &String) -> Self {
        Self(SmolStr::new(text))
    }
}

impl From<Arc<str>> for Str {
    fn from(text: Arc<str>) -> Self {
        Self(SmolStr::from(text))
    }
}

impl From<std::borrow::Cow<'_, str>> for Str {
    #[inline]
    fn from(text: std::borrow::Cow<'_, str>) -> Self {
        Self(SmolStr::from(text))
    }
}

impl PartialEq<str> for Str {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Str {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

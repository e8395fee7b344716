use crate::text::Str;
use serde::{Deserialize, Serialize};

/// An image, audio clip or document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Media {
    /// The location of the bytes.
    pub source: MediaSource,
    /// The media type (RFC 6838), such as `image/png`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<Str>,
    /// The file name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Str>,
}

impl Media {
    /// Creates a medium without a media type.
    pub fn new(source: MediaSource) -> Self {
        Self {
            source,
            media_type: None,
            name: None,
        }
    }

    /// Sets the media type.
    #[must_use]
    pub fn with_media_type(mut self, media_type: impl Into<Str>) -> Self {
        self.media_type = Some(media_type.into());
        self
    }

    /// Sets the file name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Str>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// The location of the bytes of a [`Media`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource {
    /// A URL that the provider can read.
    Url(Str),
    /// Inline data in base64 (RFC 4648 section 4), the encoding that all providers use.
    Base64(Str),
    /// The id of a file that is stored at the provider.
    Id(Str),
}

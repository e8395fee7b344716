use crate::text::Str;
use serde::{Deserialize, Serialize};

/// An image, sound or document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Media {
    /// Where the bytes are.
    pub source: MediaSource,
    /// The media type (RFC 6838), as `image/png`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<Str>,
    /// The file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Str>,
}

impl Media {
    /// Creates a medium of unknown type.
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

    /// Sets the file's name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Str>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// Where the bytes of a [`Media`] are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource {
    /// At a URL that the provider can read.
    Url(Str),
    /// Here, in base64 (RFC 4648 section 4), as every provider wants them.
    Base64(Str),
    /// At the provider, under this id.
    Id(Str),
}

//! The content blocks of a message.

use crate::{data_url, history::Input};
use concentric_core::{Media, MediaSource, Str};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A content block of a message.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) kind: Kind<'a>,
    /// Provider-specific fields, as received from the service or set by the application.
    pub(super) more: Option<&'a Map<String, Value>>,
    /// A cache breakpoint at the end of this block.
    pub(super) cache: Option<CacheControl>,
}

#[derive(Debug)]
pub(super) enum Kind<'a> {
    Text(&'a str),
    Image(Source<'a>),
    Document {
        source: Source<'a>,
        title: Option<&'a str>,
    },
    Thinking(&'a str),
    Call {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: Input<'a>,
    },
    Result {
        id: Cow<'a, str>,
        content: Outcome<'a>,
        is_error: bool,
    },
    /// A block of the service, whose fields are all in `more`.
    Opaque,
}

/// A breakpoint of the prompt cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in super::super) struct CacheControl {
    pub(in super::super) r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in super::super) ttl: Option<&'static str>,
}

/// The content of a tool result.
#[derive(Debug)]
pub(super) enum Outcome<'a> {
    Nothing,
    Text(Cow<'a, str>),
    Blocks(Vec<Block<'a>>),
}

/// The location of a medium's bytes.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Source<'a> {
    Base64 {
        media_type: &'a str,
        data: &'a str,
    },
    Url {
        url: &'a str,
    },
    File {
        file_id: &'a str,
    },
    Text {
        media_type: &'static str,
        data: String,
    },
}

impl<'a> Block<'a> {
    pub(super) const fn new(kind: Kind<'a>) -> Self {
        Self {
            kind,
            more: None,
            cache: None,
        }
    }

    /// Creates a block for an image or a document.
    ///
    /// `Err` describes a medium that the service does not accept.
    pub(super) fn medium(media: &'a Media, is_image: bool) -> Result<Self, Str> {
        let title = media.name.as_deref().filter(|name| !name.is_empty());
        let declared = media.media_type.as_deref();
        let (media_type, source) = match &media.source {
            MediaSource::Id(file_id) => (declared, Source::File { file_id }),
            MediaSource::Url(url) => match data_url::read(url) {
                Some((media_type, data)) => (Some(media_type), Source::Base64 { media_type, data }),
                None => (declared, Source::Url { url }),
            },
            MediaSource::Base64(data) => {
                let default = if is_image {
                    "image/png"
                } else {
                    "application/pdf"
                };
                let media_type = declared.unwrap_or(default);
                (Some(media_type), Source::Base64 { media_type, data })
            }
            _ => return Err(Str::from_static("a medium with an unknown source")),
        };
        if is_image || media_type.is_some_and(|t| t.starts_with("image/")) {
            return image(source).map(|source| Self::new(Kind::Image(source)));
        }
        let source = document(source)?;
        Ok(Self::new(Kind::Document { source, title }))
    }
}

fn image(source: Source<'_>) -> Result<Source<'_>, Str> {
    let Source::Base64 { media_type, data } = source else {
        return Ok(source);
    };
    let media_type = match media_type {
        "image/jpg" => "image/jpeg",
        other => other,
    };
    match media_type {
        "image/jpeg" | "image/png" | "image/gif" | "image/webp" => {
            Ok(Source::Base64 { media_type, data })
        }
        other => Err(format!("an image of the type `{other}`").into()),
    }
}

fn document(source: Source<'_>) -> Result<Source<'_>, Str> {
    let Source::Base64 { media_type, data } = source else {
        return Ok(source);
    };
    let (essence, _) = media_type.split_once(';').unwrap_or((media_type, ""));
    let is_text = essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || matches!(
            essence,
            "application/json" | "application/xml" | "application/yaml" | "application/toml"
        );
    if is_text {
        // The service accepts text only unencoded.
        let text = base64(data).and_then(|bytes| String::from_utf8(bytes).ok());
        let data = text.ok_or(Str::from_static("text that is not valid UTF-8"))?;
        return Ok(Source::Text {
            media_type: "text/plain",
            data,
        });
    }
    match essence {
        "application/pdf" => Ok(Source::Base64 {
            media_type: essence,
            data,
        }),
        other => Err(format!("a document of the type `{other}`").into()),
    }
}

/// Decodes base64 (RFC 4648 section 4).
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text
        .bytes()
        .filter(|b| !b.is_ascii_whitespace() && *b != b'=')
    {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count & 0xff) as u8);
        }
    }
    Some(out)
}

impl Serialize for Block<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.kind {
            Kind::Text(text) => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
            }
            Kind::Image(source) => {
                map.serialize_entry("type", "image")?;
                map.serialize_entry("source", source)?;
            }
            Kind::Document { source, title } => {
                map.serialize_entry("type", "document")?;
                map.serialize_entry("source", source)?;
                if let Some(title) = title.filter(|_| !self.has_field("title")) {
                    map.serialize_entry("title", title)?;
                }
            }
            Kind::Thinking(text) => {
                map.serialize_entry("type", "thinking")?;
                map.serialize_entry("thinking", text)?;
            }
            Kind::Call { id, name, input } => {
                if !self.has_field("type") {
                    map.serialize_entry("type", "tool_use")?;
                }
                map.serialize_entry("id", id)?;
                map.serialize_entry("name", name)?;
                map.serialize_entry("input", input)?;
            }
            Kind::Result {
                id,
                content,
                is_error,
            } => {
                map.serialize_entry("type", "tool_result")?;
                map.serialize_entry("tool_use_id", id)?;
                match content {
                    Outcome::Nothing => {}
                    Outcome::Text(text) => map.serialize_entry("content", text)?,
                    Outcome::Blocks(blocks) => map.serialize_entry("content", blocks)?,
                }
                if *is_error {
                    map.serialize_entry("is_error", &true)?;
                }
            }
            // The type is one of the block's own fields.
            Kind::Opaque => {}
        }
        for (name, value) in self.more.into_iter().flatten() {
            // A field of this crate, for the original position of a call.
            if name != "followed_by" {
                map.serialize_entry(name, value)?;
            }
        }
        if let Some(cache) = self.cache.filter(|_| !self.has_field("cache_control")) {
            map.serialize_entry("cache_control", &cache)?;
        }
        map.end()
    }
}

impl Block<'_> {
    fn has_field(&self, name: &str) -> bool {
        self.more.is_some_and(|more| more.contains_key(name))
    }

    /// Whether the block may have a cache breakpoint.
    pub(super) fn can_be_cached(&self) -> bool {
        !matches!(self.kind, Kind::Thinking(_) | Kind::Opaque)
    }
}

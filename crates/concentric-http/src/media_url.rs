//! URLs of media.

use concentric_core::{Media, MediaSource};

/// The medium at a URL, which may contain the data itself.
pub(crate) fn media(url: &str) -> Media {
    let data = url
        .strip_prefix("data:")
        .and_then(|data| data.split_once(";base64,"));
    match data {
        Some((media_type, data)) if !media_type.is_empty() => {
            Media::new(MediaSource::Base64(data.into())).with_media_type(media_type)
        }
        _ => Media::new(MediaSource::Url(url.into())),
    }
}

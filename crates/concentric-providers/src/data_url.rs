//! URLs that contain their data (RFC 2397).

/// The media type and the base64 of a data URL.
pub(crate) fn read(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix("data:")?.split_once(";base64,")
}

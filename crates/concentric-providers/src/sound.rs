//! Sound that a model says.

use crate::api::Call;
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use concentric_core::Str;
use serde_json::Value;

/// Reads base64 with padding and without.
const ANY: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Appends a piece of base64 (RFC 4648, section 4) to those before it.
///
/// Some services cut the text, and the pieces are one as they are. Others cut the bytes and encode each
/// piece: behind padding another text begins, and the bytes of both are joined.
pub(crate) fn append(data: &mut String, piece: &str) {
    let end = data.len().saturating_sub(4);
    if data.ends_with('=')
        && let Some(Ok(mut bytes)) = data.get(end..).map(|last| STANDARD.decode(last))
        && let Ok(more) = ANY.decode(piece)
    {
        bytes.extend(more);
        data.truncate(end);
        STANDARD.encode_string(bytes, data);
    } else {
        data.push_str(piece);
    }
}

/// The media type of what a call asks to hear, if it says which: its provider options have
/// `{"audio": {"format": …}}`.
pub(crate) fn media_type(call: &Call<'_>) -> Option<Str> {
    let audio = call.request.options.provider.get("audio")?;
    Some(match audio.get("format").and_then(Value::as_str)? {
        "mp3" => Str::from_static("audio/mpeg"),
        // Two bytes for each of 24,000 samples in a second, the lower one first.
        "pcm16" => Str::from_static("audio/pcm"),
        format => format!("audio/{format}").into(),
    })
}

#[cfg(test)]
mod tests {
    use super::append;

    #[test]
    fn pieces_of_bytes_and_pieces_of_text_are_joined() {
        let cases: [(&[&str], &str); 8] = [
            (&[], ""),
            (&["QU", "JD"], "QUJD"),
            (&["QU", "I="], "QUI="),
            (&["QUI=", "Qw=="], "QUJD"),
            (&["QQ==", "Qg==", "Qw=="], "QUJD"),
            (&["QQ==", "QkM", "RA=="], "QUJDRA=="),
            (&["QQ==", "QkNE"], "QUJDRA=="),
            // What is no base64 is handed on as it came.
            (&["Q===", "?"], "Q===?"),
        ];
        for (pieces, joined) in cases {
            let mut data = String::new();
            pieces.iter().for_each(|piece| append(&mut data, piece));
            assert_eq!(data, joined, "{pieces:?}");
        }
    }
}

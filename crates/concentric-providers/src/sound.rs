//! Audio that a model generates.

use crate::api::{Answer, Call};
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use concentric_core::{Media, MediaSource, PartKind, Str};
use serde_json::Value;

/// Decodes base64 with or without padding.
const ANY: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Generated audio that is being received.
#[derive(Debug, Default)]
pub(crate) struct Sound {
    data: String,
    transcript: String,
}

impl Sound {
    pub(crate) fn append(&mut self, piece: Option<&str>, transcript: Option<&str>) {
        append(&mut self.data, piece.unwrap_or_default());
        self.transcript.extend(transcript);
    }

    /// Queues the audio, with its transcript in `data`.
    pub(crate) fn emit(self, media_type: Option<Str>, mut data: Value, answer: &mut Answer) {
        let mut media = Media::new(MediaSource::Base64(self.data.into()));
        media.media_type = media_type;
        if let Some(fields) = data.as_object_mut() {
            fields.insert("transcript".to_owned(), self.transcript.into());
        }
        answer.part(PartKind::Audio(media), answer.data(data));
    }
}

/// Appends a chunk of base64 (RFC 4648, section 4) to the previous chunks.
///
/// Some services split the encoded text, so that the chunks can be concatenated. Others split the
/// bytes and encode each chunk: padding then marks the end of a chunk, and the bytes of both chunks
/// are joined.
fn append(data: &mut String, piece: &str) {
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

/// The media type of the audio that a call requests with the provider option `{"audio": {"format":
/// …}}`, if there is one.
pub(crate) fn media_type(call: &Call<'_>) -> Option<Str> {
    let audio = call.request.options.provider.get("audio")?;
    Some(match audio.get("format").and_then(Value::as_str)? {
        "mp3" => Str::from_static("audio/mpeg"),
        // Samples of 16 bits, little-endian, 24,000 per second.
        "pcm16" => Str::from_static("audio/pcm"),
        format => format!("audio/{format}").into(),
    })
}

#[cfg(test)]
mod tests {
    use super::append;

    #[test]
    fn chunks_of_bytes_and_chunks_of_text_are_joined() {
        let cases: [(&[&str], &str); 8] = [
            (&[], ""),
            (&["QU", "JD"], "QUJD"),
            (&["QU", "I="], "QUI="),
            (&["QUI=", "Qw=="], "QUJD"),
            (&["QQ==", "Qg==", "Qw=="], "QUJD"),
            (&["QQ==", "QkM", "RA=="], "QUJDRA=="),
            (&["QQ==", "QkNE"], "QUJDRA=="),
            // Invalid base64 is passed through.
            (&["Q===", "?"], "Q===?"),
        ];
        for (pieces, joined) in cases {
            let mut data = String::new();
            pieces.iter().for_each(|piece| append(&mut data, piece));
            assert_eq!(data, joined, "{pieces:?}");
        }
    }
}

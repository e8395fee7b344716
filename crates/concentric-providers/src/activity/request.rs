mod moderation;

pub use self::moderation::Moderation;
use crate::{
    api::Answer,
    failure::{Origin, has_error},
};
use bytes::Bytes;
use concentric_core::{Context, Error, ErrorKind, Media, MediaSource, Str, Usage};
use memchr::memmem;
use serde_json::{Map, Value, json};

/// A request of an [`ActivityLayer`](super::ActivityLayer). Not for implementation outside this crate.
pub trait ActivityRequest {
    /// The output.
    type Output;

    /// The name of the activity, in [`Profile::activities`](crate::openai::Profile::activities).
    const NAME: &'static str;

    #[doc(hidden)]
    const PATH: &'static str;

    #[doc(hidden)]
    const ACCEPT: &'static str = "application/json";

    /// Returns the context: the deadline and the clock of the call. To cancel a call, drop its
    /// future.
    fn context(&self) -> &Context;

    /// The body, and its media type if it is not JSON.
    #[doc(hidden)]
    fn body(&self, model: &str) -> Result<(Bytes, Option<String>), Error>;

    /// Reads a complete response.
    #[doc(hidden)]
    fn read(
        &self,
        body: Bytes,
        media_type: Option<&str>,
        answer: &Answer,
    ) -> Result<ActivityResponse<Self::Output>, Error>;
}

/// The response of an activity.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ActivityResponse<T> {
    /// The output.
    pub output: T,
    /// The model that the service reports.
    pub model: Option<Str>,
    /// The tokens used; without counts if the service does not report them.
    pub usage: Usage,
    /// The media type of the response.
    pub media_type: Option<Str>,
    /// The id that the service gave the request.
    pub request_id: Option<Str>,
}

/// Generates the fields and methods that all requests have.
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $Request:ident { $($(#[$field_doc:meta])* $field:ident: $Field:ty,)* }
        $({ $($(#[$option_doc:meta])* $option:ident: $Option:ty,)* })?
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $Request {
            $($(#[$field_doc])* pub $field: $Field,)*
            $($($(#[$option_doc])* pub $option: Option<$Option>,)*)?
            /// The model; by default, that of the layer.
            pub model: Option<Str>,
            /// Further fields of the body, which replace those of the same name.
            pub provider: Map<String, Value>,
            /// The context of the call.
            pub context: Context,
        }

        impl $Request {
            fn with($($field: $Field,)*) -> Self {
                Self {
                    $($field,)*
                    $($($option: None,)*)?
                    model: None,
                    provider: Map::new(),
                    context: Context::new(),
                }
            }

            $($(
                $(#[$option_doc])*
                #[must_use]
                pub fn $option(mut self, $option: impl Into<$Option>) -> Self {
                    self.$option = Some($option.into());
                    self
                }
            )*)?

            /// Sets the model.
            #[must_use]
            pub fn model(mut self, model: impl Into<Str>) -> Self {
                self.model = Some(model.into());
                self
            }

            /// Sets the context.
            #[must_use]
            pub fn with_context(mut self, context: Context) -> Self {
                self.context = context;
                self
            }

            /// Adds the model, the options that are set, and the further fields.
            fn complete(&self, mut body: Map<String, Value>, model: &str) -> Map<String, Value> {
                body.insert("model".into(), self.model.as_deref().unwrap_or(model).into());
                $($(if let Some($option) = &self.$option {
                    body.insert(stringify!($option).into(), json!($option));
                })*)?
                body.extend(self.provider.clone());
                body
            }
        }
    )*};
}

requests! {
    /// A request for embeddings.
    EmbeddingRequest {
        /// The texts.
        inputs: Vec<Str>,
    } {
        /// The number of dimensions of a vector.
        dimensions: u32,
    }

    /// A request for images.
    ImageRequest {
        /// The description of the images.
        prompt: Str,
    } {
        /// The number of images.
        n: u32,
        /// The size, such as `1024x1024`.
        size: Str,
        /// The quality.
        quality: Str,
        /// The format: `png`, `jpeg` or `webp`.
        output_format: Str,
    }

    /// A request for the moderation of texts and images.
    ///
    /// Without images, the output has a result for each text. Texts and images are judged together, with one
    /// result. The texts have at most 1 MiB together: send a longer one in several requests, with pieces that
    /// overlap. A service rejects a text that is longer than the context of its model.
    ModerationRequest {
        /// The texts. Those that are empty are left out if there are images.
        inputs: Vec<Str>,
        /// The images, as base64 or URLs.
        images: Vec<Media>,
    }

    /// A request for speech.
    SpeechRequest {
        /// The text.
        input: Str,
        /// The name of the voice.
        voice: Str,
    } {
        /// The format of the audio: `mp3`, `opus`, `aac`, `flac`, `wav` or `pcm`.
        response_format: Str,
        /// How to speak.
        instructions: Str,
        /// The speed; 1 is normal.
        speed: f32,
    }

    /// A request for the transcription of audio.
    TranscriptionRequest {
        /// The audio.
        audio: Bytes,
        /// The name of the file, whose extension states the format.
        file_name: Str,
    } {
        /// The language of the audio (ISO 639-1).
        language: Str,
        /// A text that the audio continues.
        prompt: Str,
    }
}

impl EmbeddingRequest {
    /// Creates a request for a vector per input.
    pub fn new(inputs: impl IntoIterator<Item = impl Into<Str>>) -> Self {
        Self::with(inputs.into_iter().map(Into::into).collect())
    }
}

impl ImageRequest {
    /// Creates a request for an image.
    pub fn new(prompt: impl Into<Str>) -> Self {
        Self::with(prompt.into())
    }
}

impl SpeechRequest {
    /// Creates a request for a text that is spoken by `voice`.
    pub fn new(text: impl Into<Str>, voice: impl Into<Str>) -> Self {
        Self::with(text.into(), voice.into())
    }
}

impl TranscriptionRequest {
    /// Creates a request for the text of `audio`.
    pub fn new(audio: impl Into<Bytes>, file_name: impl Into<Str>) -> Self {
        Self::with(audio.into(), file_name.into())
    }
}

type Body = Result<(Bytes, Option<String>), Error>;

fn to_json(body: &Map<String, Value>) -> Body {
    let body = serde_json::to_vec(body).map_err(|error| {
        let what = "the request cannot be serialized as JSON";
        Error::new(ErrorKind::InvalidRequest, what).with_source(error)
    })?;
    Ok((body.into(), None))
}

fn require(is_so: bool, what: &'static str) -> Result<(), Error> {
    match is_so {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::InvalidRequest, what)),
    }
}

fn object(fields: Value) -> Map<String, Value> {
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Reads a JSON response, whose output `read` takes from it.
fn from_json<T>(
    body: &[u8],
    origin: Origin<'_>,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<ActivityResponse<T>, Error> {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        let body = String::from_utf8_lossy(body);
        return Err(origin.protocol("the body is not JSON", &body));
    };
    if let Some(error) = value.get("error").filter(|error| has_error(error)) {
        return Err(origin.reported(&json!({ "error": error })));
    }
    let what = "the response lacks a part of the output";
    let output = read(&value).ok_or_else(|| origin.error(ErrorKind::Protocol, what))?;
    Ok(ActivityResponse {
        output,
        model: value.get("model").and_then(Value::as_str).map(Str::from),
        usage: usage(value.get("usage").unwrap_or(&Value::Null)),
        media_type: None,
        request_id: None,
    })
}

/// Reads token counts; a duration, as of some transcriptions, is not a count of tokens.
fn usage(reported: &Value) -> Usage {
    let count = |names: [&str; 2]| names.iter().find_map(|name| reported.get(*name)?.as_u64());
    let mut usage = Usage::default();
    usage.set_input_tokens(count(["input_tokens", "prompt_tokens"]));
    usage.set_output_tokens(count(["output_tokens", "completion_tokens"]));
    usage.set_total_tokens(count(["total_tokens", "total_tokens"]));
    usage
}

impl ActivityRequest for EmbeddingRequest {
    type Output = Vec<Vec<f32>>;
    const NAME: &'static str = "embeddings";
    const PATH: &'static str = "/embeddings";

    fn context(&self) -> &Context {
        &self.context
    }

    fn body(&self, model: &str) -> Body {
        require(!self.inputs.is_empty(), "there are no inputs to embed")?;
        require(
            self.inputs.iter().all(|input| !input.is_empty()),
            "an input to embed is empty",
        )?;
        let body = json!({"input": self.inputs, "encoding_format": "float"});
        to_json(&self.complete(object(body), model))
    }

    fn read(
        &self,
        body: Bytes,
        _: Option<&str>,
        answer: &Answer,
    ) -> Result<ActivityResponse<Self::Output>, Error> {
        from_json(&body, answer.origin(), |value| {
            let data = value.get("data")?.as_array()?;
            let mut vectors = vec![None; self.inputs.len()];
            for (at, item) in data.iter().enumerate() {
                let at = item.get("index").map_or(Some(at as u64), Value::as_u64)?;
                let numbers = item.get("embedding")?.as_array()?.iter();
                let vector: Option<Vec<f32>> = numbers.map(|n| Some(n.as_f64()? as f32)).collect();
                let slot = vectors.get_mut(usize::try_from(at).ok()?)?;
                // Each input has exactly one vector.
                if slot.replace(vector?).is_some() {
                    return None;
                }
            }
            vectors.into_iter().collect()
        })
    }
}

impl ActivityRequest for ImageRequest {
    type Output = Vec<Media>;
    const NAME: &'static str = "images";
    const PATH: &'static str = "/images/generations";

    fn context(&self) -> &Context {
        &self.context
    }

    fn body(&self, model: &str) -> Body {
        require(!self.prompt.is_empty(), "the prompt of the image is empty")?;
        require(self.n != Some(0), "no image is requested")?;
        to_json(&self.complete(object(json!({"prompt": self.prompt})), model))
    }

    fn read(
        &self,
        body: Bytes,
        _: Option<&str>,
        answer: &Answer,
    ) -> Result<ActivityResponse<Self::Output>, Error> {
        from_json(&body, answer.origin(), |value| {
            let format = value.get("output_format").and_then(Value::as_str);
            let format = format.or(self.output_format.as_deref()).unwrap_or("png");
            let media = |item: &Value| {
                let text = |name| item.get(name).and_then(Value::as_str).map(Str::from);
                let source = text("b64_json").map(MediaSource::Base64);
                let source = source.or_else(|| text("url").map(MediaSource::Url))?;
                Some(Media::new(source).with_media_type(format!("image/{format}")))
            };
            let images = value.get("data")?.as_array()?;
            let images: Vec<Media> = images.iter().map(media).collect::<Option<_>>()?;
            (!images.is_empty()).then_some(images)
        })
    }
}

impl ActivityRequest for SpeechRequest {
    type Output = Bytes;
    const NAME: &'static str = "speech";
    const PATH: &'static str = "/audio/speech";
    const ACCEPT: &'static str = "audio/*, application/octet-stream";

    fn context(&self) -> &Context {
        &self.context
    }

    fn body(&self, model: &str) -> Body {
        require(!self.input.is_empty(), "the text to speak is empty")?;
        let body = json!({"input": self.input, "voice": self.voice});
        to_json(&self.complete(object(body), model))
    }

    fn read(
        &self,
        body: Bytes,
        media_type: Option<&str>,
        answer: &Answer,
    ) -> Result<ActivityResponse<Bytes>, Error> {
        let kind = media_type.map(str::to_ascii_lowercase).unwrap_or_default();
        if kind.contains("json") {
            let audio = from_json(&body, answer.origin(), |_| None::<Bytes>);
            return audio.map_err(|error| match error.code() {
                Some(_) => error,
                None => error.with_code("no_audio"),
            });
        }
        if kind.starts_with("text/") {
            let what = "the response is not audio";
            let error = answer.origin().error(ErrorKind::Protocol, what);
            return Err(error.with_code("no_audio"));
        }
        if body.is_empty() {
            let what = "the response has no audio";
            return Err(answer.origin().error(ErrorKind::Truncated, what));
        }
        Ok(ActivityResponse {
            output: body,
            model: None,
            usage: Usage::default(),
            media_type: media_type.map(Str::from),
            request_id: None,
        })
    }
}

impl ActivityRequest for TranscriptionRequest {
    type Output = String;
    const NAME: &'static str = "transcription";
    const PATH: &'static str = "/audio/transcriptions";

    fn context(&self) -> &Context {
        &self.context
    }

    fn body(&self, model: &str) -> Body {
        require(!self.audio.is_empty(), "the audio is empty")?;
        let is_name = |c: char| !c.is_control() && c != '"' && c != '\\';
        require(
            self.file_name.chars().all(is_name),
            "the file name has a quote or a control character",
        )?;
        let fields = self.complete(Map::new(), model);
        let texts = fields.iter().map(|(name, value)| match value {
            Value::String(text) => (name, text.clone()),
            value => (name, value.to_string()),
        });
        let texts: Vec<_> = texts.collect();
        let is_in = |boundary: &str| {
            let found = |text: &[u8]| memmem::find(text, boundary.as_bytes()).is_some();
            found(&self.audio) || texts.iter().any(|(_, text)| found(text.as_bytes()))
        };
        let mut boundary = self.context.new_id("part_").to_string();
        while is_in(&boundary) {
            boundary.push('x');
        }
        let mut body = Vec::with_capacity(self.audio.len() + 1024);
        for (name, text) in &texts {
            require(name.chars().all(is_name), "the name of a field is invalid")?;
            let part = format!(
                "--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n"
            );
            body.extend_from_slice(part.as_bytes());
        }
        let name = &self.file_name;
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             content-type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&self.audio);
        body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let media_type = format!("multipart/form-data; boundary={boundary}");
        Ok((body.into(), Some(media_type)))
    }

    fn read(
        &self,
        body: Bytes,
        _: Option<&str>,
        answer: &Answer,
    ) -> Result<ActivityResponse<String>, Error> {
        from_json(&body, answer.origin(), |value| {
            Some(value.get("text")?.as_str()?.to_owned())
        })
    }
}

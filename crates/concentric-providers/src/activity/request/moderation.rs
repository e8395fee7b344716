use super::{
    ActivityRequest, ActivityResponse, Body, ModerationRequest, from_json, require, to_json,
};
use crate::{api::Answer, openai::DataUrl};
use bytes::Bytes;
use concentric_core::{Context, Error, ErrorKind, Media, Str};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The maximum number of bytes of text in a request.
const MAX_TEXT: usize = 1 << 20;

/// What a service found in an input.
///
/// The names of the categories are those of the service, such as `violence` or `self-harm/intent`; a new
/// category is included like any other.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Moderation {
    /// The categories that the service flags.
    pub flagged: Vec<Str>,
    /// The score of each category, between 0 and 1. The scale depends on the model and the category.
    pub scores: BTreeMap<Str, f64>,
}

impl Moderation {
    /// Returns the categories whose score is at least their threshold.
    ///
    /// A category without a threshold or without a score is included if the service flags it.
    pub fn over(&self, threshold: impl Fn(&str) -> Option<f64>) -> Vec<Str> {
        let is_over = |name: &Str, score: f64| threshold(name).is_some_and(|limit| score >= limit);
        let is_judged = |name: &Str| self.scores.contains_key(name) && threshold(name).is_some();
        let by_score = self
            .scores
            .iter()
            .filter(|(name, score)| is_over(name, **score));
        let by_flag = self.flagged.iter().filter(|name| !is_judged(name));
        by_score
            .map(|(name, _)| name)
            .chain(by_flag)
            .cloned()
            .collect()
    }

    /// `None` if a part is missing, if there is no score, or if no category has the flag of the whole: such a
    /// result must not count as harmless.
    fn read(result: &Value) -> Option<Self> {
        let mut flagged = Vec::new();
        for (name, is_flagged) in result.get("categories")?.as_object()? {
            // A model leaves out the categories that it does not know.
            if !is_flagged.is_null() && is_flagged.as_bool()? {
                flagged.push(Str::from(name));
            }
        }
        let scores = result.get("category_scores")?.as_object()?.iter();
        let scores = scores.filter(|(_, score)| !score.is_null());
        let scores = scores.map(|(name, score)| Some((Str::from(name), score.as_f64()?)));
        let scores: BTreeMap<Str, f64> = scores.collect::<Option<_>>()?;
        // Mistral's results have no flag of the whole.
        let is_flagged = match result.get("flagged") {
            None | Some(Value::Null) => false,
            Some(is_flagged) => is_flagged.as_bool()?,
        };
        let is_whole = !scores.is_empty() && (!is_flagged || !flagged.is_empty());
        is_whole.then_some(Self { flagged, scores })
    }
}

impl ModerationRequest {
    /// Creates a request that judges each text by itself.
    pub fn new(inputs: impl IntoIterator<Item = impl Into<Str>>) -> Self {
        Self::with(inputs.into_iter().map(Into::into).collect(), Vec::new())
    }

    /// Sets the images, which are judged together with the texts. OpenAI accepts one.
    #[must_use]
    pub fn images(mut self, images: impl IntoIterator<Item = Media>) -> Self {
        self.images = images.into_iter().collect();
        self
    }

    /// The texts, or the texts and the images, as the service calls for.
    fn input(&self) -> Result<Value, Error> {
        if self.images.is_empty() {
            return Ok(json!(self.inputs));
        }
        let texts = self.inputs.iter().filter(|text| !text.is_empty());
        let texts = texts.map(|text| Ok(json!({"type": "text", "text": text})));
        let images = self.images.iter().map(|image| {
            let url = DataUrl::of(image, "image/png").ok_or_else(|| {
                let what = "an image to moderate must be base64 or a URL";
                Error::new(ErrorKind::InvalidRequest, what)
            })?;
            Ok(json!({"type": "image_url", "image_url": {"url": url}}))
        });
        texts.chain(images).collect()
    }
}

impl ActivityRequest for ModerationRequest {
    type Output = Vec<Moderation>;
    const NAME: &'static str = "moderation";
    const PATH: &'static str = "/moderations";

    fn context(&self) -> &Context {
        &self.context
    }

    fn body(&self, model: &str) -> Body {
        require(
            !self.inputs.is_empty() || !self.images.is_empty(),
            "there is nothing to moderate",
        )?;
        require(
            !self.images.is_empty() || self.inputs.iter().all(|text| !text.is_empty()),
            "a text to moderate is empty",
        )?;
        let bytes: usize = self.inputs.iter().map(Str::len).sum();
        if bytes > MAX_TEXT {
            let what = format!("{bytes} bytes of text are too long to be moderated in one request");
            return Err(Error::new(ErrorKind::TooLarge, what));
        }
        let mut body = Map::new();
        body.insert("input".into(), self.input()?);
        to_json(&self.complete(body, model))
    }

    fn read(
        &self,
        body: Bytes,
        _: Option<&str>,
        answer: &Answer,
    ) -> Result<ActivityResponse<Self::Output>, Error> {
        from_json(&body, answer.origin(), |value| {
            let results = value.get("results")?.as_array()?;
            let is_complete = match self.images.is_empty() {
                true => results.len() == self.inputs.len(),
                false => !results.is_empty(),
            };
            let results = is_complete.then(|| results.iter().map(Moderation::read))?;
            results.collect()
        })
    }
}

//! Processing of complete items: content without deltas, and the data to send back.

use super::{
    super::{
        items::{At, Items, MAX, Place, text},
        tools::{call_arguments, call_id, call_name, is_hosted},
    },
    Decoder, too_many,
};
use crate::{api::Answer, calls::TWO_IDS};
use concentric_core::{Error, Executor, Media, MediaSource, PartKind, Str};
use serde_json::Value;

impl Decoder {
    pub(super) fn item_done(
        &mut self,
        at: At,
        item: Value,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        if !self.items.finish(at) {
            return Ok(());
        }
        let places = ["content", "summary"].map(|field| list(&item, field).len());
        if places.iter().any(|places| *places > MAX) {
            return Err(too_many(answer));
        }
        answer.changed();
        match text(&item, "type").unwrap_or_default() {
            "message" => self.message(at, &item, answer),
            "reasoning" => self.reasoning(at, item, answer),
            "image_generation_call" if text(&item, "result").is_some() => {
                self.image(at, item, answer);
            }
            _ if call_name(&item).is_some() => return self.call(at, item, answer),
            _ => {
                let data = self.items.data(at, item, answer);
                self.items.end_part(answer);
                answer.opaque(data);
            }
        }
        Ok(())
    }

    fn message(&mut self, at: At, item: &Value, answer: &mut Answer) {
        self.items.name(at, item);
        for (place, part) in (0..).zip(list(item, "content")) {
            let (text, refusal) = (text(part, "text"), text(part, "refusal"));
            self.items
                .annotate_all(at, place, list(part, "annotations"));
            self.fill(at, Place::Text(place), text, answer);
            self.fill(at, Place::Refusal(place), refusal, answer);
        }
        self.items.end_message(at, answer);
    }

    fn reasoning(&mut self, at: At, item: Value, answer: &mut Answer) {
        for (place, part) in (0..).zip(list(&item, "summary")) {
            self.fill(at, Place::Summary(place), text(part, "text"), answer);
        }
        for (place, part) in (0..).zip(list(&item, "content")) {
            self.fill(at, Place::Reasoning(place), text(part, "text"), answer);
        }
        self.items.end_reasoning(at, item, answer);
    }

    /// Emits an image. Its item is sent back without the bytes, which only the medium contains.
    fn image(&mut self, at: At, mut item: Value, answer: &mut Answer) {
        let format = text(&item, "output_format").unwrap_or("png");
        let media_type = format!("image/{format}");
        let bytes = item.as_object_mut().and_then(|item| item.remove("result"));
        let bytes = bytes.as_ref().and_then(Value::as_str).unwrap_or_default();
        let media = Media::new(MediaSource::Base64(bytes.into())).with_media_type(media_type);
        let data = answer.data(self.items.data(at, item, answer));
        self.items.end_part(answer);
        answer.part(PartKind::Image(media), data);
    }

    fn call(&mut self, at: At, mut item: Value, answer: &mut Answer) -> Result<(), Error> {
        let executor = self.executor(&item);
        if self.items.is_other_call(at, &item) {
            return Err(answer.protocol(TWO_IDS));
        }
        let (id, name) = (call_id(&item).map(Str::from), call_name(&item));
        self.call_begins(at, id, name, answer)?;
        let arguments = call_arguments(&item);
        self.fill_arguments(at, arguments.as_deref(), answer)?;
        if executor == Executor::Loop
            && let Some(item) = item.as_object_mut()
        {
            // These fields are serialized from the call, which may have been changed.
            const OF_CALL: [&str; 7] = [
                "arguments",
                "input",
                "action",
                "operation",
                "name",
                "call_id",
                "status",
            ];
            for field in OF_CALL {
                item.remove(field);
            }
        }
        let data = answer.data(self.items.data(at, item, answer));
        self.calls.keep(Items::key(at), executor, data);
        Ok(())
    }

    fn executor(&self, item: &Value) -> Executor {
        let by_service = match text(item, "type").unwrap_or_default() {
            "custom_tool_call" => self.hosts_custom_tools,
            "shell_call" => item
                .pointer("/environment/type")
                .is_some_and(|of| of != "local"),
            type_ => is_hosted(type_),
        };
        match by_service {
            true => Executor::Provider,
            false => Executor::Loop,
        }
    }
}

fn list<'a>(item: &'a Value, field: &str) -> &'a [Value] {
    item.get(field)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

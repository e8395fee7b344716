//! Serialization of the conversation as input items.

use super::{
    super::compat::{Compat, NAMES},
    content::Content,
    is_stored,
    output::{Answer, CallOutput},
};
use crate::history::{self, NamesBeside, own_data, text};
use concentric_core::{
    ChatOptions, ChatRequest, Message, Part, PartKind, Role, Stability, Str, System, SystemSegment,
    Turn,
};
use serde::{Serialize, Serializer, ser::SerializeSeq};
use serde_json::Value;

/// Whether the request uses cache breakpoints, which are only possible on texts in the input.
pub(super) fn has_breakpoints(options: &ChatOptions) -> bool {
    options
        .provider
        .get("prompt_cache_options")
        .is_some_and(Value::is_object)
}

pub(super) struct Input<'a> {
    request: &'a ChatRequest,
    compat: &'a Compat,
    with_system: bool,
}

impl<'a> Input<'a> {
    pub(super) const fn new(
        request: &'a ChatRequest,
        compat: &'a Compat,
        with_system: bool,
    ) -> Self {
        Self {
            request,
            compat,
            with_system,
        }
    }
}

impl Serialize for Input<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let options = &*self.request.options;
        let mut out = Writer {
            seq: serializer.serialize_seq(None)?,
            provider: &self.compat.provider,
            is_stored: is_stored(options),
            names: NAMES.beside(&self.request.tools),
        };
        if self.with_system && !self.request.system.is_empty() {
            out.system(&self.request.system)?;
        }
        let previous = options.provider.get("previous_response_id");
        let previous = previous.and_then(Value::as_str);
        let turns: Vec<&Turn> = self.request.transcript.iter().collect();
        let known = previous.and_then(|id| {
            let is_it = |turn: &&Turn| is_of(turn, &self.compat.provider, id);
            turns.iter().rposition(is_it)
        });
        for (at, turn) in turns.into_iter().enumerate() {
            let message = turn.as_message();
            match known {
                Some(known) if at < known => continue,
                // The service has stored the response, but not the results of its calls.
                Some(known) if at == known => {
                    out.assistant(turn, true)?;
                    continue;
                }
                _ => {}
            }
            match message.role {
                Role::System => out.plain("system", &text(&message.parts))?,
                Role::Assistant => out.assistant(turn, false)?,
                _ => out.user(message)?,
            }
        }
        out.seq.end()
    }
}

/// Whether `turn` is the response with this id.
fn is_of(turn: &Turn, provider: &Str, id: &str) -> bool {
    let mut parts = turn.as_message().parts.iter();
    parts.any(|part| {
        let own = own_data(part, provider);
        own.and_then(|own| own.data.get("response")?.as_str()) == Some(id)
    })
}

struct Writer<'a, S> {
    seq: S,
    provider: &'a Str,
    is_stored: bool,
    names: NamesBeside<'a>,
}

#[derive(Serialize)]
pub(super) struct Plain<'a> {
    pub(super) role: &'static str,
    pub(super) content: &'a str,
}

#[derive(Serialize)]
struct Mixed<'a> {
    role: &'static str,
    content: &'a [Content<'a>],
}

impl<S: SerializeSeq> Writer<'_, S> {
    fn plain(&mut self, role: &'static str, content: &str) -> Result<(), S::Error> {
        if content.is_empty() {
            return Ok(());
        }
        self.seq.serialize_element(&Plain { role, content })
    }

    /// Writes the system segments, with a breakpoint after each group of the same stability.
    fn system(&mut self, system: &System) -> Result<(), S::Error> {
        let segments: Vec<&SystemSegment> = system.iter().filter(|s| !s.text.is_empty()).collect();
        let mut content = Vec::with_capacity(segments.len());
        for (at, segment) in segments.iter().enumerate() {
            let next = segments.get(at + 1).map(|next| next.stability);
            let is_end = segment.stability != Stability::Step && next != Some(segment.stability);
            content.push(match is_end {
                true => Content::cached(&segment.text),
                false => Content::text(&segment.text),
            });
        }
        self.mixed("system", &content)
    }

    fn mixed(&mut self, role: &'static str, content: &[Content<'_>]) -> Result<(), S::Error> {
        if content.is_empty() {
            return Ok(());
        }
        self.seq.serialize_element(&Mixed { role, content })
    }

    fn user(&mut self, message: &Message) -> Result<(), S::Error> {
        if let [
            Part {
                kind: PartKind::Text(text),
                ..
            },
        ] = &*message.parts
        {
            return self.plain("user", text);
        }
        let mut content = Vec::new();
        for part in &message.parts {
            content.extend(Content::of(part));
            // An item of the service, such as the approval of a remote tool call.
            if let PartKind::Provider(_) = part.kind
                && let Some(item) = item(part, self.provider)
            {
                self.mixed("user", &std::mem::take(&mut content))?;
                self.seq.serialize_element(item)?;
            }
        }
        self.mixed("user", &content)
    }

    /// `is_known` means that the service has stored everything except the results.
    fn assistant(&mut self, turn: &Turn, is_known: bool) -> Result<(), S::Error> {
        for segment in history::segments(turn) {
            let answer = Answer::new(&segment, self.provider, self.is_stored);
            if !is_known {
                answer
                    .items(&self.names)
                    .try_for_each(|item| self.seq.serialize_element(&item))?;
            }
            for (part, call, result) in &segment.calls {
                let output = CallOutput::new(part, call, result, self.provider);
                self.seq.serialize_element(&output)?;
            }
        }
        Ok(())
    }
}

/// The item of the service that `part` contains or belongs to.
pub(super) fn item<'a>(part: &'a Part, provider: &Str) -> Option<&'a Value> {
    own_data(part, provider)?.data.get("item")
}

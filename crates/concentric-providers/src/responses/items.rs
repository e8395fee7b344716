//! The items of an answer, as far as they have arrived.

use crate::api::Answer;
use concentric_core::{Event, Part, PartEnd, PartKind, ProviderData, Str};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A place in an item that a delta is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Text(u64),
    Refusal(u64),
    Summary(u64),
    Reasoning(u64),
    Name,
    Arguments,
}

impl Place {
    /// The type of the items that have such a place, if only one has.
    const fn kind(self) -> Option<&'static str> {
        match self {
            Self::Text(_) | Self::Refusal(_) => Some("message"),
            Self::Summary(_) | Self::Reasoning(_) => Some("reasoning"),
            Self::Name | Self::Arguments => None,
        }
    }
}

#[derive(Debug)]
struct Item {
    index: u64,
    id: Option<Str>,
    kind: Option<Str>,
    /// The id of the call that it is.
    call_id: Option<Str>,
    /// What a message is in its answer: a comment, or the answer itself.
    phase: Option<Str>,
    /// The item as it was when it began, until it is done.
    begun: Option<Value>,
    /// The places that something was said in.
    said: Vec<Place>,
    /// What belongs to its texts, by their place in the item.
    annotations: Vec<(u64, Value)>,
    done: bool,
}

#[derive(Debug, Default)]
pub(super) struct Items {
    list: Vec<Item>,
    /// Where the last delta went, if its part is not ended.
    open: Option<(usize, Place)>,
}

/// A place in [`Items`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At(usize);

impl Items {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn new_item(&mut self, index: u64) -> At {
        self.list.push(Item {
            index,
            id: None,
            kind: None,
            call_id: None,
            phase: None,
            begun: None,
            said: Vec::new(),
            annotations: Vec::new(),
            done: false,
        });
        At(self.list.len() - 1)
    }

    fn rposition(&self, is: impl FnMut(&Item) -> bool) -> Option<At> {
        self.list.iter().rposition(is).map(At)
    }

    fn next_index(&self) -> u64 {
        let last = self.list.iter().map(|item| item.index).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// The item that an event is about. Where it is says more than its id: some services give it
    /// another one in each event.
    #[inline]
    pub(super) fn at(&mut self, index: Option<u64>, id: Option<&str>) -> At {
        let known = match (index, id) {
            (Some(index), _) => self.rposition(|item| item.index == index),
            (None, Some(id)) => self.rposition(|item| item.id.as_deref() == Some(id)),
            (None, None) => self.list.len().checked_sub(1).map(At),
        };
        known.unwrap_or_else(|| {
            let index = index.unwrap_or_else(|| self.next_index());
            let at = self.new_item(index);
            if let Some(item) = self.list.get_mut(at.0) {
                item.id = id.map(Str::from);
            }
            at
        })
    }

    /// An item begins. `None` if another one has begun there and is not done.
    pub(super) fn begin(&mut self, index: Option<u64>, item: Value) -> Option<At> {
        let id = text(&item, "id").map(Str::from);
        let at = match index.and_then(|index| self.rposition(|item| item.index == index)) {
            Some(at) if self.list.get(at.0).is_some_and(|item| item.done) => {
                self.new_item(index.unwrap_or_default())
            }
            Some(at) => at,
            None => {
                let index = index.unwrap_or_else(|| self.next_index());
                self.new_item(index)
            }
        };
        let begun = self.list.get_mut(at.0)?;
        if begun.begun.is_some() {
            return None;
        }
        begun.id = id;
        begun.kind = text(&item, "type").map(Str::from);
        begun.call_id = text(&item, "call_id").map(Str::from);
        begun.phase = text(&item, "phase").map(Str::from);
        begun.begun = Some(item);
        Some(at)
    }

    /// The item that stands at `position` of the list in the last event, which may leave out some.
    pub(super) fn listed(&mut self, position: u64, item: &Value) -> At {
        let (id, kind) = (text(item, "id"), text(item, "type"));
        let same = |known: &Item| known.kind.is_none() || known.kind.as_deref() == kind;
        let by_id = self.rposition(|known| id.is_some() && known.id.as_deref() == id);
        let by_index = || self.rposition(|known| known.index == position && same(known));
        let undone = || {
            let first = |known: &Item| !known.done && known.kind.as_deref() == kind;
            self.list.iter().position(first).map(At)
        };
        match by_id.or_else(by_index).or_else(undone) {
            Some(at) => at,
            None if self.list.iter().any(|known| known.index == position) => {
                let index = self.next_index();
                self.new_item(index)
            }
            None => self.new_item(position),
        }
    }

    /// The items that have begun and are not done, as they began.
    pub(super) fn left(&mut self) -> Vec<(At, Value)> {
        let items = self.list.iter_mut().enumerate();
        let left = items.filter(|(_, item)| !item.done);
        left.filter_map(|(at, item)| Some((At(at), item.begun.take()?)))
            .collect()
    }

    /// Whether `item` is another call than the one that began there.
    pub(super) fn is_other_call(&self, at: At, item: &Value) -> bool {
        let known = self.list.get(at.0).and_then(|item| item.call_id.as_deref());
        let id = text(item, "call_id");
        known.is_some() && id.is_some() && known != id
    }

    /// An item is done. `false` if it was already.
    pub(super) fn finish(&mut self, at: At) -> bool {
        let Some(item) = self.list.get_mut(at.0) else {
            return false;
        };
        item.begun = None;
        !std::mem::replace(&mut item.done, true)
    }

    pub(super) fn index(&self, at: At) -> u64 {
        self.list.get(at.0).map_or(0, |item| item.index)
    }

    pub(super) fn is_said(&self, at: At, place: Place) -> bool {
        self.list
            .get(at.0)
            .is_some_and(|item| item.said.contains(&place))
    }

    /// Notes that something was said.
    #[inline]
    pub(super) fn note(&mut self, at: At, place: Place) {
        if let Some(item) = self.list.get_mut(at.0)
            && !item.said.contains(&place)
        {
            item.said.push(place);
            if item.kind.is_none() {
                item.kind = place.kind().map(Str::from_static);
            }
        }
    }

    /// Says more of the text at `place`.
    #[inline]
    pub(super) fn say(&mut self, at: At, place: Place, text: Str, answer: &mut Answer) {
        if self.open != Some((at.0, place)) {
            self.end_part(answer);
            self.note(at, place);
            self.open = Some((at.0, place));
        }
        answer.emit(match place {
            Place::Text(_) => Event::TextDelta(text),
            Place::Refusal(_) => Event::RefusalDelta(text),
            _ => Event::ReasoningDelta(text),
        });
    }

    pub(super) fn annotate(&mut self, at: At, content: u64, annotation: Value) {
        if let Some(item) = self.list.get_mut(at.0) {
            item.annotations.push((content, annotation));
        }
    }

    /// Takes the annotations of a text that is done, which are all that it has.
    pub(super) fn annotate_all(&mut self, at: At, content: u64, annotations: &[Value]) {
        if let Some(item) = self.list.get_mut(at.0)
            && !annotations.is_empty()
        {
            item.annotations.retain(|(of, _)| *of != content);
            let all = annotations.iter().cloned();
            item.annotations.extend(all.map(|one| (content, one)));
        }
    }

    /// The text that is open is whole: a message's goes back with what the service said of it.
    pub(super) fn end_part(&mut self, answer: &mut Answer) {
        let Some((at, place)) = self.open.take() else {
            return;
        };
        let data = match place {
            Place::Text(content) | Place::Refusal(content) => self.message(At(at), content, answer),
            _ => None,
        };
        answer.emit(Event::PartEnd(Box::new(PartEnd::new(data))));
    }

    fn message(&self, at: At, content: u64, answer: &Answer) -> Option<Arc<ProviderData>> {
        let item = self.list.get(at.0)?;
        let mut message = Map::new();
        message.insert("type".to_owned(), "message".into());
        if let Some(id) = &item.id {
            message.insert("id".to_owned(), id.as_str().into());
        }
        if let Some(phase) = &item.phase {
            message.insert("phase".to_owned(), phase.as_str().into());
        }
        let of = item.annotations.iter().filter(|(of, _)| *of == content);
        let annotations: Vec<Value> = of.map(|(_, one)| one.clone()).collect();
        let mut data = self.data(at, message.into(), answer);
        if let Some(fields) = data.data.as_object_mut()
            && !annotations.is_empty()
        {
            fields.insert("annotations".to_owned(), annotations.into());
        }
        Some(Arc::new(data))
    }

    /// Takes in what a message is called by the end of it.
    pub(super) fn name(&mut self, at: At, item: &Value) {
        if let Some(known) = self.list.get_mut(at.0) {
            known.id = text(item, "id").map(Str::from).or(known.id.take());
            known.phase = text(item, "phase").map(Str::from).or(known.phase.take());
        }
    }

    /// A message is done: what is open of it ends.
    pub(super) fn end_message(&mut self, at: At, answer: &mut Answer) {
        if self.open.is_some_and(|(open, _)| open == at.0) {
            self.end_part(answer);
        }
    }

    /// Reasoning is done: it goes back whole.
    pub(super) fn end_reasoning(&mut self, at: At, item: Value, answer: &mut Answer) {
        let data = Some(Arc::new(self.data(at, item, answer)));
        if self.open.is_some_and(|(open, _)| open == at.0) {
            self.open = None;
            answer.emit(Event::PartEnd(Box::new(PartEnd::new(data))));
        } else {
            // The service keeps what it thought to itself, but wants to be reminded of it.
            let part = Part::new(PartKind::Reasoning(Str::default()));
            self.part(part.with_provider_data(data), answer);
        }
    }

    /// Says a whole part.
    pub(super) fn part(&mut self, part: Part, answer: &mut Answer) {
        self.end_part(answer);
        answer.emit(Event::Part(Box::new(part)));
    }

    /// What goes back to the service, with its place in the answer.
    pub(super) fn data(&self, at: At, item: Value, answer: &Answer) -> ProviderData {
        let data = json!({
            "item": item,
            "index": self.index(at),
            "response": answer.head.id.as_deref(),
        });
        ProviderData::new(answer.provider.clone(), data)
    }
}

/// The text of a field, unless it is empty.
pub(super) fn text<'a>(item: &'a Value, field: &str) -> Option<&'a str> {
    item.get(field)?.as_str().filter(|text| !text.is_empty())
}

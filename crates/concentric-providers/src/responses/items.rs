//! The items of a response that is being received.

use crate::api::Answer;
use concentric_core::{Event, PartKind, ProviderData, Str};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The maximum number of items in a response and of places in an item, above any real response. It
/// bounds the linear search for each event.
pub(super) const MAX: usize = 4 * 1024;

/// The field of an item that a delta belongs to.
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
    /// The type of the items with this field, if there is only one.
    const fn kind(self) -> Option<&'static str> {
        match self {
            Self::Text(_) | Self::Refusal(_) => Some("message"),
            Self::Summary(_) | Self::Reasoning(_) => Some("reasoning"),
            Self::Name | Self::Arguments => None,
        }
    }

    /// Whether an item of this type may have this field.
    fn is_in(self, kind: &str) -> bool {
        match self.kind() {
            Some(of) => of == kind,
            None => !matches!(kind, "message" | "reasoning"),
        }
    }
}

#[derive(Debug, Default)]
struct Item {
    index: u64,
    id: Option<Str>,
    kind: Option<Str>,
    /// The call's id, if the item is a call.
    call_id: Option<Str>,
    /// The phase of a message in its response: commentary or final answer.
    phase: Option<Str>,
    /// The initial item, until it is complete.
    begun: Option<Value>,
    /// The places that have content.
    filled: Vec<Place>,
    /// The annotations of the item's texts, by content index.
    annotations: BTreeMap<u64, Annotations>,
    done: bool,
}

/// The annotations of a text.
#[derive(Debug, Default)]
struct Annotations {
    /// The number of annotations that earlier parts contained.
    gone: usize,
    /// The annotations after them.
    left: Vec<Value>,
}

/// The criterion for matching an item of the last event.
#[derive(Clone, Copy, Debug)]
enum Way {
    Id,
    Place,
    Order,
}

impl Way {
    fn finds(self, known: &Item, position: u64, item: &Value) -> bool {
        match self {
            Self::Id => known.is_called(text(item, "id")) || known.is_called(text(item, "call_id")),
            Self::Place => known.index == position,
            Self::Order => true,
        }
    }
}

impl Annotations {
    /// Takes the annotations that no part contains yet.
    fn take(&mut self) -> Vec<Value> {
        self.gone += self.left.len();
        std::mem::take(&mut self.left)
    }
}

impl Item {
    /// Whether `item` can be this item, according to its type.
    fn is(&self, item: &Value) -> bool {
        self.kind.is_none() || self.kind.as_deref() == text(item, "type")
    }

    fn is_called(&self, id: Option<&str>) -> bool {
        id.is_some() && (self.id.as_deref() == id || self.call_id.as_deref() == id)
    }
}

#[derive(Debug, Default)]
pub(super) struct Items {
    list: Vec<Item>,
    /// The place of the last delta, if its part is still open.
    open: Option<(usize, Place)>,
    /// The highest number of places of any item.
    places: usize,
}

/// The position of an item in [`Items`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At(usize);

impl Items {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.list.len().max(self.places) > MAX
    }

    fn new_item(&mut self, index: u64) -> At {
        self.list.push(Item {
            index,
            ..Item::default()
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

    /// The item that an event for `place` belongs to.
    ///
    /// The index takes precedence over the id, which some services change between events (Copilot).
    /// Others use one index for several items (LiteLLM), or no index (llama.cpp).
    #[inline]
    pub(super) fn at(&mut self, index: Option<u64>, id: Option<&str>, place: Place) -> At {
        let fits = |item: &Item| item.kind.as_deref().is_none_or(|kind| place.is_in(kind));
        let known = match index {
            Some(index) => self.rposition(|item| item.index == index && fits(item)),
            None => self
                .rposition(|item| item.is_called(id) && fits(item))
                .or_else(|| self.rposition(|item| !item.done && fits(item))),
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

    /// The item that `item` completes.
    pub(super) fn done(&mut self, index: Option<u64>, item: &Value) -> At {
        let (id, call_id) = (text(item, "id"), text(item, "call_id"));
        let fits = |known: &Item| known.is(item);
        let known = match index {
            Some(index) => self.rposition(|known| known.index == index && fits(known)),
            None => self
                .rposition(|known| known.is_called(id) && fits(known))
                .or_else(|| self.rposition(|known| known.is_called(call_id) && fits(known)))
                .or_else(|| self.rposition(|known| !known.done && fits(known))),
        };
        known.unwrap_or_else(|| {
            let index = index.unwrap_or_else(|| self.next_index());
            self.new_item(index)
        })
    }

    /// Starts an item. Returns whether it has changed, or `None` if another incomplete item of the
    /// same type has the same index.
    pub(super) fn begin(&mut self, index: Option<u64>, item: Value) -> Option<(At, bool)> {
        let (id, kind) = (text(&item, "id"), text(&item, "type"));
        let here = |known: &Item| Some(known.index) == index && !known.done && known.is(&item);
        let at = match self.rposition(here) {
            Some(at) => at,
            None => {
                let index = index.unwrap_or_else(|| self.next_index());
                self.new_item(index)
            }
        };
        let begun = self.list.get_mut(at.0)?;
        if begun.begun.is_some() && begun.id.as_deref() != id {
            return None;
        }
        begun.id = id.map(Str::from);
        begun.kind = kind.map(Str::from);
        begun.call_id = text(&item, "call_id").map(Str::from);
        begun.phase = text(&item, "phase").map(Str::from);
        let is_new = begun.begun.as_ref() != Some(&item);
        begun.begun = Some(item);
        Some((at, is_new))
    }

    /// The items that the last event lists, in its order. The event may omit items, and may contain
    /// new ones.
    pub(super) fn listed(&mut self, items: &[Value]) -> Vec<At> {
        let mut found: Vec<Option<At>> = vec![None; items.len()];
        let mut taken = vec![false; self.list.len()];
        for way in [Way::Id, Way::Place, Way::Order] {
            for (position, (item, found)) in (0..).zip(items.iter().zip(&mut found)) {
                if found.is_some() {
                    continue;
                }
                let mut known = self.list.iter().zip(&mut taken).enumerate();
                let is_it = |known: &Item| known.is(item) && way.finds(known, position, item);
                if let Some((at, (_, taken))) =
                    known.find(|(_, (known, taken))| !**taken && is_it(known))
                {
                    (*found, *taken) = (Some(At(at)), true);
                }
            }
        }
        let all = (0..).zip(found).map(|(position, found)| {
            found.unwrap_or_else(|| {
                let is_free = self.list.iter().all(|known| known.index != position);
                let index = if is_free { position } else { self.next_index() };
                self.new_item(index)
            })
        });
        all.collect()
    }

    /// The started but incomplete items, in their initial form.
    pub(super) fn left(&mut self) -> Vec<(At, Value)> {
        let items = self.list.iter_mut().enumerate();
        let left = items.filter(|(_, item)| !item.done);
        left.filter_map(|(at, item)| Some((At(at), item.begun.take()?)))
            .collect()
    }

    /// Whether `item` has a different call id than the initial item.
    pub(super) fn is_other_call(&self, at: At, item: &Value) -> bool {
        let known = self.list.get(at.0).and_then(|item| item.call_id.as_deref());
        let id = text(item, "call_id");
        known.is_some() && id.is_some() && known != id
    }

    /// Completes an item. Returns `false` if it was already complete.
    pub(super) fn finish(&mut self, at: At) -> bool {
        let Some(item) = self.list.get_mut(at.0) else {
            return false;
        };
        item.begun = None;
        !std::mem::replace(&mut item.done, true)
    }

    /// A unique key of the item.
    pub(super) const fn key(at: At) -> u64 {
        at.0 as u64
    }

    pub(super) fn is_filled(&self, at: At, place: Place) -> bool {
        self.list
            .get(at.0)
            .is_some_and(|item| item.filled.contains(&place))
    }

    /// Records that `place` has content.
    #[inline]
    pub(super) fn note(&mut self, at: At, place: Place) {
        if let Some(item) = self.list.get_mut(at.0)
            && !item.filled.contains(&place)
        {
            item.filled.push(place);
            self.places = self.places.max(item.filled.len());
            if item.kind.is_none() {
                item.kind = place.kind().map(Str::from_static);
            }
        }
    }

    /// Appends to the text at `place`.
    #[inline]
    pub(super) fn append(&mut self, at: At, place: Place, text: Str, answer: &mut Answer) {
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
            let annotations = item.annotations.entry(content).or_default();
            annotations.left.push(annotation);
        }
    }

    /// Sets the annotations of a complete text. `all` contains every annotation of the text, in the
    /// order of arrival.
    pub(super) fn annotate_all(&mut self, at: At, content: u64, all: &[Value]) {
        if let Some(item) = self.list.get_mut(at.0)
            && !all.is_empty()
        {
            let annotations = item.annotations.entry(content).or_default();
            annotations.left = all.get(annotations.gone..).unwrap_or_default().to_vec();
        }
    }

    /// Ends the open text. The text of a message includes the data to send back.
    pub(super) fn end_part(&mut self, answer: &mut Answer) {
        let Some((at, place)) = self.open.take() else {
            return;
        };
        let data = match place {
            Place::Text(content) | Place::Refusal(content) => self.message(At(at), content, answer),
            _ => None,
        };
        answer.end_part(data);
    }

    fn message(&mut self, at: At, content: u64, answer: &Answer) -> Option<Arc<ProviderData>> {
        let item = self.list.get_mut(at.0)?;
        let mut message = Map::new();
        message.insert("type".to_owned(), "message".into());
        if let Some(id) = &item.id {
            message.insert("id".to_owned(), id.as_str().into());
        }
        if let Some(phase) = &item.phase {
            message.insert("phase".to_owned(), phase.as_str().into());
        }
        let of = item.annotations.get_mut(&content);
        let annotations = of.map(Annotations::take).unwrap_or_default();
        let mut data = self.data(at, message.into(), answer);
        if let Some(fields) = data.as_object_mut()
            && !annotations.is_empty()
        {
            fields.insert("annotations".to_owned(), annotations.into());
        }
        answer.data(data)
    }

    /// Updates the id and the phase of a complete message.
    pub(super) fn name(&mut self, at: At, item: &Value) {
        if let Some(known) = self.list.get_mut(at.0) {
            known.id = text(item, "id").map(Str::from).or(known.id.take());
            known.phase = text(item, "phase").map(Str::from).or(known.phase.take());
        }
    }

    /// Ends the open part of a complete message.
    pub(super) fn end_message(&mut self, at: At, answer: &mut Answer) {
        if self.open.is_some_and(|(open, _)| open == at.0) {
            self.end_part(answer);
        }
    }

    /// Ends reasoning, whose item must be sent back unchanged.
    pub(super) fn end_reasoning(&mut self, at: At, item: Value, answer: &mut Answer) {
        let data = answer.data(self.data(at, item, answer));
        if self.open.is_some_and(|(open, _)| open == at.0) {
            self.open = None;
            answer.end_part(data);
        } else {
            // The service hides this reasoning, but requires its item in later requests.
            self.end_part(answer);
            answer.part(PartKind::Reasoning(Str::default()), data);
        }
    }

    /// The data to send back to the service, with the position in the response.
    pub(super) fn data(&self, at: At, item: Value, answer: &Answer) -> Value {
        let index = self.list.get(at.0).map(|item| item.index);
        let (index, response) = (json!(index), json!(answer.head.id));
        Value::from_iter([("item", item), ("index", index), ("response", response)])
    }
}

/// The string value of a field, unless it is empty.
pub(super) fn text<'a>(item: &'a Value, field: &str) -> Option<&'a str> {
    item.get(field)?.as_str().filter(|text| !text.is_empty())
}

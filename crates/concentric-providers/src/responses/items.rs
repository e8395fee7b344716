//! The items of an answer, as far as they have arrived.

use crate::api::Answer;
use concentric_core::{Event, Part, PartEnd, PartKind, ProviderData, Str};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// More items than any answer has, and more places than any item. Each event looks for its own among
/// them.
pub(super) const MAX: usize = 4 * 1024;

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

    /// Whether an item of this type may have such a place.
    fn is_in(self, kind: &str) -> bool {
        match self.kind() {
            Some(of) => of == kind,
            None => !matches!(kind, "message" | "reasoning"),
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
    annotations: BTreeMap<u64, Annotations>,
    done: bool,
}

/// What belongs to a text.
#[derive(Debug, Default)]
struct Annotations {
    /// How many went out with what was said of it before.
    gone: usize,
    /// Those after them.
    left: Vec<Value>,
}

/// How an item of the last event is found.
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
    /// Those that no part has yet.
    fn take(&mut self) -> Vec<Value> {
        self.gone += self.left.len();
        std::mem::take(&mut self.left)
    }
}

impl Item {
    /// Whether `item` may be it, by its type.
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
    /// Where the last delta went, if its part is not ended.
    open: Option<(usize, Place)>,
    /// How many places the item has that has the most.
    places: usize,
}

/// A place in [`Items`].
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
            id: None,
            kind: None,
            call_id: None,
            phase: None,
            begun: None,
            said: Vec::new(),
            annotations: BTreeMap::new(),
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

    /// The item that an event about `place` is about.
    ///
    /// Where the item is says more than its id, which some services change from event to event
    /// (Copilot). Others give several items one place (LiteLLM), or none a place (llama.cpp).
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

    /// The item that is done as `item` says.
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

    /// An item begins; whether it has not begun so already. `None` if another one of its type has
    /// begun there and is not done.
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

    /// The items that the last event lists, in its order. It may leave out some, and name others
    /// anew.
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

    /// What tells the item from all others.
    pub(super) const fn key(at: At) -> u64 {
        at.0 as u64
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
            self.places = self.places.max(item.said.len());
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
            let annotations = item.annotations.entry(content).or_default();
            annotations.left.push(annotation);
        }
    }

    /// Takes the annotations of a text that is done, which are all that it has, in the order in
    /// which they came.
    pub(super) fn annotate_all(&mut self, at: At, content: u64, all: &[Value]) {
        if let Some(item) = self.list.get_mut(at.0)
            && !all.is_empty()
        {
            let annotations = item.annotations.entry(content).or_default();
            annotations.left = all.get(annotations.gone..).unwrap_or_default().to_vec();
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
        let index = self.list.get(at.0).map(|item| item.index);
        let mut data = Map::new();
        data.insert("item".to_owned(), item);
        data.insert("index".to_owned(), json!(index));
        data.insert("response".to_owned(), json!(answer.head.id));
        ProviderData::new(answer.provider.clone(), data.into())
    }
}

/// The text of a field, unless it is empty.
pub(super) fn text<'a>(item: &'a Value, field: &str) -> Option<&'a str> {
    item.get(field)?.as_str().filter(|text| !text.is_empty())
}

//! The tool calls of an answer, put together from their pieces.

use crate::api::Answer;
use concentric_core::{
    CallId, Context, Error, ErrorKind, Event, Executor, ProviderData, Str, ToolCallDelta,
    ToolCallEvent, ToolCallPart, ToolCallStart,
};
use std::{collections::VecDeque, sync::Arc};

#[derive(Debug, Default)]
pub(crate) struct Calls {
    list: Vec<Pending>,
    /// The call that the last piece is of.
    last: usize,
}

#[derive(Debug)]
struct Pending {
    index: Option<u64>,
    /// The service's id.
    provider_id: Option<Str>,
    /// Ours.
    id: CallId,
    name: Str,
    arguments: String,
    executor: Executor,
    /// What the service wants back with the call.
    data: Option<Arc<ProviderData>>,
    legacy: bool,
    /// It was emitted.
    done: bool,
}

impl Pending {
    fn event(&mut self) -> Event {
        self.done = true;
        let arguments = std::mem::take(&mut self.arguments);
        let part = ToolCallPart::new(self.id.clone(), self.name.clone(), arguments)
            .executed_by(self.executor)
            .with_provider_id(self.provider_id.clone());
        let event = ToolCallEvent::new(part, self.data.take());
        Event::ToolCall(Box::new(event))
    }
}

/// Why the pieces make no calls.
#[derive(Debug)]
pub(crate) enum Conflict {
    /// A piece for a call of one id, at the place of a call with another id that is not whole.
    Id,
    /// A piece at another place than those before it of a call of one id.
    Place,
    /// Two names for one call.
    Name,
    /// A piece that belongs to no call.
    Stray,
    /// A call has no name.
    Nameless,
    ArgumentsTooLarge,
    TooMany,
}

impl Conflict {
    pub(crate) fn error(&self, answer: &Answer) -> Error {
        let (kind, what) = match self {
            Self::Id => (ErrorKind::Protocol, "two ids for one tool call"),
            Self::Place => (ErrorKind::Protocol, "two places for one tool call"),
            Self::Name => (ErrorKind::Protocol, "two names for one tool call"),
            Self::Stray => (
                ErrorKind::Protocol,
                "a piece of a tool call that was not begun",
            ),
            Self::Nameless => (ErrorKind::Protocol, "a tool call without a name"),
            Self::ArgumentsTooLarge => (
                ErrorKind::TooLarge,
                "the arguments of a tool call are larger than the limit",
            ),
            Self::TooMany => (ErrorKind::TooLarge, "more tool calls than the limit"),
        };
        answer.origin().error(kind, what)
    }
}

/// A piece of a call, as a service sends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) index: Option<u64>,
    pub(crate) id: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    pub(crate) arguments: &'a str,
}

impl Calls {
    /// Takes in a piece of a call.
    pub(crate) fn piece(&mut self, piece: &Piece<'_>, answer: &mut Answer) -> Result<(), Conflict> {
        let at = match self.find(piece.index, piece.id, piece.name)? {
            Some(at) => at,
            None if self.list.len() >= answer.limits.tool_calls => return Err(Conflict::TooMany),
            None => self.begin(piece.index, &answer.context),
        };
        self.append(at, piece.id, piece.name, piece.arguments, answer)
    }

    /// Takes in a call that comes in one piece.
    pub(crate) fn whole(&mut self, call: &Piece<'_>, answer: &mut Answer) -> Result<(), Conflict> {
        if self.list.len() >= answer.limits.tool_calls {
            return Err(Conflict::TooMany);
        }
        let at = self.begin(call.index, &answer.context);
        self.append(at, call.id, call.name, call.arguments, answer)
    }

    /// Says who executes the call at `index`, and what the service wants back with it.
    pub(crate) fn keep(&mut self, index: u64, executor: Executor, data: Arc<ProviderData>) {
        let at = self.rposition(|call| call.index == Some(index));
        if let Some(call) = at.and_then(|at| self.list.get_mut(at)) {
            call.executor = executor;
            call.data = Some(data);
        }
    }

    /// Emits the call at `index` before the answer is whole: whoever executes it has all of it.
    pub(crate) fn settle(&mut self, index: u64, answer: &mut Answer) -> Result<(), Conflict> {
        let at = self.rposition(|call| call.index == Some(index));
        let Some(call) = at.and_then(|at| self.list.get_mut(at)) else {
            return Ok(());
        };
        if call.name.is_empty() {
            return Err(Conflict::Nameless);
        }
        answer.emit(call.event());
        Ok(())
    }

    /// Whether there is a call for the loop to execute.
    pub(crate) fn wait_for_results(&self) -> bool {
        self.list.iter().any(|call| call.executor == Executor::Loop)
    }

    /// Takes in a piece of the one call that an answer could make before there were several.
    pub(crate) fn legacy(
        &mut self,
        name: Option<&str>,
        arguments: &str,
        answer: &mut Answer,
    ) -> Result<(), Conflict> {
        let begun = self.list.iter().position(|call| call.legacy);
        let at = match begun {
            Some(at) => at,
            // Some servers always send the field.
            None if name.is_none() => return Ok(()),
            None => {
                let at = self.begin(None, &answer.context);
                if let Some(call) = self.list.get_mut(at) {
                    call.legacy = true;
                }
                at
            }
        };
        self.append(at, None, name, arguments, answer)
    }

    /// Keeps what the provider wants back with the call that the last piece is of.
    pub(crate) fn attach(&mut self, data: ProviderData, answer: &mut Answer) {
        if let Some(call) = self.list.get_mut(self.last) {
            let known = call.data.as_ref().map(|known| &known.data);
            answer.changed |= known != Some(&data.data);
            call.data = Some(Arc::new(data));
        }
    }

    /// The call that a piece belongs to, or `None` if it begins one.
    fn find(
        &self,
        index: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
    ) -> Result<Option<usize>, Conflict> {
        let Some(index) = index else {
            // Without an index, the id tells; without either, a name begins a call.
            return match (id, name) {
                (Some(id), _) => Ok(self.rposition(|c| c.provider_id.as_deref() == Some(id))),
                (None, Some(_)) => Ok(None),
                (None, None) if self.list.is_empty() => Err(Conflict::Stray),
                (None, None) => Ok(Some(self.list.len() - 1)),
            };
        };
        let Some(at) = self.rposition(|call| call.index == Some(index)) else {
            return match id {
                // An index that changes within a call is as bad as an id that does.
                Some(id)
                    if self
                        .rposition(|c| c.provider_id.as_deref() == Some(id))
                        .is_some() =>
                {
                    Err(Conflict::Place)
                }
                _ => Ok(None),
            };
        };
        let Some(call) = self.list.get(at) else {
            return Ok(None);
        };
        match (id, call.provider_id.as_deref()) {
            (Some(new), Some(old)) if new != old => {
                // Some servers give every call the index 0, each whole. Another id with another
                // name begins another call, but only if nothing of this one can still be missing.
                if name.is_some()
                    && serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok()
                {
                    Ok(None)
                } else {
                    Err(Conflict::Id)
                }
            }
            _ => Ok(Some(at)),
        }
    }

    fn rposition(&self, is: impl FnMut(&Pending) -> bool) -> Option<usize> {
        self.list.iter().rposition(is)
    }

    fn begin(&mut self, index: Option<u64>, context: &Context) -> usize {
        self.list.push(Pending {
            index,
            provider_id: None,
            id: CallId::new(context.new_id("call_")),
            name: Str::default(),
            arguments: String::new(),
            executor: Executor::Loop,
            data: None,
            legacy: false,
            done: false,
        });
        self.list.len() - 1
    }

    fn append(
        &mut self,
        at: usize,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
        answer: &mut Answer,
    ) -> Result<(), Conflict> {
        self.last = at;
        let Some(call) = self.list.get_mut(at) else {
            return Ok(());
        };
        if let (Some(id), None) = (id, &call.provider_id) {
            call.provider_id = Some(id.into());
            answer.changed();
        }
        if call.arguments.len() + arguments.len() > answer.limits.tool_arguments {
            return Err(Conflict::ArgumentsTooLarge);
        }
        call.arguments.push_str(arguments);
        // A piece without any is a sign of life only.
        answer.changed |= !arguments.is_empty();
        let index = u32::try_from(at).unwrap_or(u32::MAX);
        let mut delta = arguments;
        match name {
            Some(name) if call.name.is_empty() => {
                call.name = name.into();
                let start = ToolCallStart::new(index, call.id.clone(), call.name.clone());
                answer.emit(Event::ToolCallStart(Box::new(start)));
                // With what came before the name.
                delta = &call.arguments;
            }
            // Some repeat the name in every piece.
            Some(name) if call.name != *name => return Err(Conflict::Name),
            _ if call.name.is_empty() => return Ok(()),
            _ => {}
        }
        if !delta.is_empty() {
            answer.emit(Event::ToolCallDelta(ToolCallDelta::new(index, delta)));
        }
        Ok(())
    }

    /// The answer is whole, and so are its calls.
    pub(crate) fn finish(&mut self, events: &mut VecDeque<Event>) -> Result<(), Conflict> {
        if self.list.iter().any(|call| call.name.is_empty()) {
            return Err(Conflict::Nameless);
        }
        let left = self.list.iter_mut().filter(|call| !call.done);
        events.extend(left.map(Pending::event));
        self.list.clear();
        Ok(())
    }
}

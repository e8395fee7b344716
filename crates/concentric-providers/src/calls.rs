//! Assembles the tool calls of a response from their fragments.

use crate::api::Answer;
use concentric_core::{
    CallId, Context, Error, ErrorKind, Event, Executor, ProviderData, Str, ToolCallDelta,
    ToolCallEvent, ToolCallPart, ToolCallStart,
};
use std::{collections::VecDeque, sync::Arc};

#[derive(Debug, Default)]
pub(crate) struct Calls {
    list: Vec<Pending>,
    /// The call that the last fragment belongs to.
    last: usize,
}

#[derive(Debug)]
struct Pending {
    index: Option<u64>,
    /// The service's id.
    provider_id: Option<Str>,
    /// The id that was generated for the run.
    id: CallId,
    name: Str,
    arguments: String,
    executor: Executor,
    /// The provider data that must be sent back with the call.
    data: Option<Arc<ProviderData>>,
    legacy: bool,
    /// Whether the call was emitted.
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

/// The reason why fragments do not form valid calls.
#[derive(Debug)]
pub(crate) enum Conflict {
    /// The fragment has the index of an incomplete call with a different id.
    Id,
    /// The fragment has a different index than earlier fragments with the same id.
    Place,
    /// A call has two names.
    Name,
    /// The fragment does not belong to a call.
    Stray,
    /// A call without a name.
    Nameless,
    ArgumentsTooLarge,
    TooMany,
}

impl Conflict {
    pub(crate) fn error(&self, answer: &Answer) -> Error {
        let (kind, what) = match self {
            Self::Id => (
                ErrorKind::Protocol,
                "the provider sent two ids for one tool call",
            ),
            Self::Place => (
                ErrorKind::Protocol,
                "the provider sent two indexes for one tool call",
            ),
            Self::Name => (
                ErrorKind::Protocol,
                "the provider sent two names for one tool call",
            ),
            Self::Stray => (
                ErrorKind::Protocol,
                "the provider sent a fragment of a tool call that was not started",
            ),
            Self::Nameless => (
                ErrorKind::Protocol,
                "the provider sent a tool call without a name",
            ),
            Self::ArgumentsTooLarge => (
                ErrorKind::TooLarge,
                "the arguments of a tool call are larger than the limit",
            ),
            Self::TooMany => (
                ErrorKind::TooLarge,
                "the response has more tool calls than the limit",
            ),
        };
        answer.origin().error(kind, what)
    }
}

/// A fragment of a call, as sent by a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) index: Option<u64>,
    pub(crate) id: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    pub(crate) arguments: &'a str,
}

impl Calls {
    /// Adds a fragment of a call.
    pub(crate) fn piece(&mut self, piece: &Piece<'_>, answer: &mut Answer) -> Result<(), Conflict> {
        let at = match self.find(piece.index, piece.id, piece.name)? {
            Some(at) => at,
            None if self.list.len() >= answer.limits.tool_calls => return Err(Conflict::TooMany),
            None => self.begin(piece.index, &answer.context),
        };
        self.append(at, piece.id, piece.name, piece.arguments, answer)
    }

    /// Adds a complete call.
    pub(crate) fn whole(&mut self, call: &Piece<'_>, answer: &mut Answer) -> Result<(), Conflict> {
        if self.list.len() >= answer.limits.tool_calls {
            return Err(Conflict::TooMany);
        }
        let at = self.begin(call.index, &answer.context);
        self.append(at, call.id, call.name, call.arguments, answer)
    }

    /// Sets the executor and the provider data of the call at `index`. The data must be sent back.
    pub(crate) fn keep(&mut self, index: u64, executor: Executor, data: Arc<ProviderData>) {
        let at = self.rposition(|call| call.index == Some(index));
        if let Some(call) = at.and_then(|at| self.list.get_mut(at)) {
            call.executor = executor;
            call.data = Some(data);
        }
    }

    /// Emits the call at `index` early, since its executor has already received the whole call.
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

    /// Whether the loop must execute a call.
    pub(crate) fn wait_for_results(&self) -> bool {
        self.list.iter().any(|call| call.executor == Executor::Loop)
    }

    /// Adds a fragment of the single call of the deprecated `function_call` API.
    pub(crate) fn legacy(
        &mut self,
        name: Option<&str>,
        arguments: &str,
        answer: &mut Answer,
    ) -> Result<(), Conflict> {
        let begun = self.list.iter().position(|call| call.legacy);
        let at = match begun {
            Some(at) => at,
            // Some servers send the field in every chunk.
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

    /// Stores the provider data for the call that the last fragment belongs to.
    pub(crate) fn attach(&mut self, data: ProviderData, answer: &mut Answer) {
        if let Some(call) = self.list.get_mut(self.last) {
            let known = call.data.as_ref().map(|known| &known.data);
            answer.changed |= known != Some(&data.data);
            call.data = Some(Arc::new(data));
        }
    }

    /// The call that a fragment belongs to, or `None` if it starts a new one.
    fn find(
        &self,
        index: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
    ) -> Result<Option<usize>, Conflict> {
        let Some(index) = index else {
            // Without an index, the id identifies the call; without either, a name starts a new
            // one.
            return match (id, name) {
                (Some(id), _) => Ok(self.rposition(|c| c.provider_id.as_deref() == Some(id))),
                (None, Some(_)) => Ok(None),
                (None, None) if self.list.is_empty() => Err(Conflict::Stray),
                (None, None) => Ok(Some(self.list.len() - 1)),
            };
        };
        let Some(at) = self.rposition(|call| call.index == Some(index)) else {
            return match id {
                // A changed index within a call is as ambiguous as a changed id.
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
                // Some servers send complete calls that all have the index 0. A different id with a
                // name starts another call, but only if the arguments of the current one are
                // complete.
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
        // A fragment without arguments only shows that the connection is alive.
        answer.changed |= !arguments.is_empty();
        let index = u32::try_from(at).unwrap_or(u32::MAX);
        let mut delta = arguments;
        match name {
            Some(name) if call.name.is_empty() => {
                call.name = name.into();
                let start = ToolCallStart::new(index, call.id.clone(), call.name.clone());
                answer.emit(Event::ToolCallStart(Box::new(start)));
                // Includes the arguments that arrived before the name.
                delta = &call.arguments;
            }
            // Some servers repeat the name in every fragment.
            Some(name) if call.name != *name => return Err(Conflict::Name),
            _ if call.name.is_empty() => return Ok(()),
            _ => {}
        }
        if !delta.is_empty() {
            answer.emit(Event::ToolCallDelta(ToolCallDelta::new(index, delta)));
        }
        Ok(())
    }

    /// Ends the calls of a complete response.
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

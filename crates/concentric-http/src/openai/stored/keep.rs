//! Stores the responses of runs.

use std::sync::Arc;

use bytes::Bytes;
use concentric_core::{
    Event, Finish, Message, MessageBuilder, OpenRound, Part, PartKind, ResponseHead, Role, System,
    ThreadId, ToolResult, Transcript, Turn,
    store::{StoreError, StoreFuture, StoredThread, Tenant},
};

use super::{
    super::answer::Answer,
    Owned, Record, StoredResponse,
    live::{Live, Written},
};

/// Stores the response of a run.
pub(in super::super) struct Keep {
    place: Place,
    system: System,
    transcript: Transcript,
    // The items that the request refers to.
    referred: String,
    // The answer of a plain model.
    answer: Option<MessageBuilder>,
}

/// The place where a response is stored.
enum Place {
    /// It is created at its end.
    New(Box<New>),
    /// It exists.
    Live(Arc<Live>),
}

struct New {
    owned: Owned,
    id: ThreadId,
    conversation: ThreadId,
    previous: Option<StoredResponse>,
}

impl Keep {
    /// `system` and `transcript` are those of the request, without instructions; `referred` are the items that it refers
    /// to, as a JSON array.
    pub(in super::super) fn new(
        owned: Owned,
        (id, conversation): (ThreadId, ThreadId),
        previous: Option<StoredResponse>,
        (system, transcript): (System, Transcript),
        referred: String,
    ) -> Self {
        let new = New {
            owned,
            id,
            conversation,
            previous,
        };
        Self {
            place: Place::New(Box::new(new)),
            system,
            transcript,
            referred,
            answer: Some(MessageBuilder::new(&ResponseHead::default())),
        }
    }

    /// The owner of the response.
    pub(in super::super) fn tenant(&self) -> &Tenant {
        match &self.place {
            Place::New(new) => &new.owned.tenant,
            Place::Live(live) => &live.owned().tenant,
        }
    }

    /// Stores the response before its run, as the JSON `response`.
    pub(in super::super) async fn begin_background(
        mut self,
        response: &Bytes,
    ) -> Result<(Self, Arc<Live>), StoreError> {
        let live = match self.place {
            Place::Live(live) => live,
            Place::New(new) => Arc::new(new.begin(response).await?),
        };
        self.place = Place::Live(Arc::clone(&live));
        Ok((self, live))
    }

    /// Whether the response is one of the background.
    pub(in super::super) const fn is_live(&self) -> bool {
        matches!(self.place, Place::Live(_))
    }

    /// Sets the model that has written the answer.
    pub(in super::super) fn begin(&mut self, head: &ResponseHead) {
        self.answer = Some(MessageBuilder::new(head));
    }

    pub(in super::super) fn push(&mut self, event: &Event) {
        if matches!(event, Event::StepStart(_)) {
            // An agent emits its conversation at the end.
            self.answer = None;
        }
        if let Some(answer) = &mut self.answer {
            answer.push(event);
        }
    }

    /// Stores `response`, the JSON of the response that `finish` ends; `None` if the run has failed.
    pub(in super::super) fn write(
        self,
        finish: Option<&Finish>,
        answer: &Answer,
        response: &Bytes,
    ) -> StoreFuture<Written> {
        let is_background = self.is_live();
        let (history, open) = match finish {
            Some(finish) => conversation(finish, self.transcript, self.answer),
            None => (self.transcript, Vec::new()),
        };
        let record = Record {
            response: String::from_utf8_lossy(response).into_owned(),
            system: self.system,
            open,
            renamed: answer.renamed().to_vec(),
            referred: self.referred,
            is_background,
            is_failed: finish.is_none(),
        };
        Box::pin(async move {
            match self.place {
                Place::Live(live) => live.end(&history, record).await,
                Place::New(new) => {
                    let New {
                        owned,
                        id,
                        conversation,
                        previous,
                    } = *new;
                    let slots = record.slots()?;
                    let stored = (&history, &slots[..]);
                    owned
                        .create(&id, conversation, previous.as_ref(), stored)
                        .await?;
                    Ok(Written::Stored)
                }
            }
        })
    }
}

impl New {
    async fn begin(self, response: &Bytes) -> Result<Live, StoreError> {
        let Self {
            owned,
            id,
            conversation,
            previous,
        } = self;
        let response = String::from_utf8_lossy(response).into_owned();
        let record = Record {
            response: response.clone(),
            system: System::default(),
            open: Vec::new(),
            renamed: Vec::new(),
            referred: String::new(),
            is_background: true,
            is_failed: false,
        };
        let [record] = record.slots()?;
        let slots = vec![owned.lease(), record];
        let history = previous.as_ref().map(|it| it.thread.history.clone());
        let history = history.unwrap_or_default();
        let stored = (&history, &slots[..]);
        let version = owned
            .create(&id, conversation, previous.as_ref(), stored)
            .await?;
        let thread = StoredThread::new(version, history, slots);
        Ok(Live::new(owned, id, thread, response))
    }
}

/// The conversation after a run, and the answer whose calls have no results yet.
fn conversation(
    finish: &Finish,
    before: Transcript,
    answer: Option<MessageBuilder>,
) -> (Transcript, Vec<Message>) {
    if let Some(state) = &finish.state {
        let open = state.open_round();
        return (
            state.transcript().clone(),
            open.as_ref().map(messages).unwrap_or_default(),
        );
    }
    if let Some(transcript) = &finish.transcript {
        return (transcript.clone(), Vec::new());
    }
    let mut history = before;
    let message = answer.map(MessageBuilder::build);
    let Some(message) = message.filter(|message| !message.parts.is_empty()) else {
        return (history, Vec::new());
    };
    match OpenRound::new(message.clone()) {
        Ok(_) => (history, vec![message]),
        Err(_) => {
            // A message that is no turn has calls with equal ids, which no request can continue.
            history.extend(Turn::message(message).ok());
            (history, Vec::new())
        }
    }
}

/// The message with the calls, and one with the results so far.
fn messages(open: &OpenRound) -> Vec<Message> {
    let results: Vec<Part> = open
        .calls()
        .filter_map(|(call, outcome)| {
            let result = ToolResult::new(call.id.clone(), call.name.clone(), outcome?.clone());
            Some(Part::new(PartKind::ToolResult(result)))
        })
        .collect();
    let mut messages = vec![open.message().clone()];
    if !results.is_empty() {
        messages.push(Message::new(Role::Tool, results));
    }
    messages
}

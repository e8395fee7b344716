//! Responses in a store of conversations.
//!
//! Each response is a conversation of its own, whose id is that of the response: a fork of the one that it
//! continues, which shares its turns.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use concentric_core::{
    Event, Finish, Message, MessageBuilder, OpenRound, Part, PartKind, ResponseHead, Role, Str,
    System, ThreadId, ToolResult, Transcript, Turn,
    run_state::{SlotPlace, StoredSlot},
    store::{StoreError, StoreFuture, StoredThread, Tenant, ThreadStore},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{answer::Answer, failure::Failure};
use crate::policy::ClientPolicy;

/// The start of the ids of responses.
pub(super) const PREFIX: &str = "resp_";

/// The maximum time that the end of a run waits for the store.
pub(super) const STORE_WITHIN: Duration = Duration::from_secs(30);

/// The slot with the response, and its version.
const SLOT: (&str, u32) = ("openai_response", 1);

/// The slot of a stored response.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The response, as text: it is returned as it was sent.
    response: String,
    /// The system text at the start of the conversation.
    system: System,
    /// The answer whose calls have no results yet, and the results of the others.
    open: Vec<Message>,
    /// The ids of calls in the response that differ from those in the conversation, and the latter.
    renamed: Vec<(Str, Str)>,
}

/// A stored response.
pub(super) struct StoredResponse {
    id: ThreadId,
    thread: StoredThread,
    record: Record,
}

/// What precedes the messages of a request.
#[derive(Default)]
pub(super) struct Before {
    pub(super) history: Transcript,
    pub(super) system: System,
    pub(super) open: Vec<Message>,
    pub(super) renamed: Vec<(Str, Str)>,
}

impl StoredResponse {
    /// Finds a response; `None` if there is none with this id.
    pub(super) async fn find(
        store: &dyn ThreadStore,
        tenant: &Tenant,
        policy: &ClientPolicy,
        id: &str,
    ) -> Result<Option<Self>, Failure> {
        // Not all stores accept a NUL character.
        if !id.starts_with(PREFIX) || !policy.is_id(id) || id.contains('\0') {
            return Ok(None);
        }
        let id = ThreadId::new(id);
        let thread = store.load(tenant.clone(), id.clone()).await;
        let thread = thread.map_err(|error| failed(&error))?;
        Ok(thread.and_then(|thread| {
            // The store may have other conversations.
            let slot = thread.slots.iter().find(|slot| slot.slot == SLOT.0)?;
            let record = Record::deserialize(&slot.value).ok()?;
            Some(Self { id, thread, record })
        }))
    }

    pub(super) fn into_json(self) -> Bytes {
        self.record.response.into()
    }

    pub(super) fn before(&self) -> Before {
        Before {
            history: self.thread.history.clone(),
            system: self.record.system.clone(),
            open: self.record.open.clone(),
            renamed: self.record.renamed.clone(),
        }
    }

    /// The first response of the conversation.
    pub(super) fn root(&self) -> &ThreadId {
        self.thread.session.as_ref().unwrap_or(&self.id)
    }
}

/// Deletes a response, and returns whether it existed.
pub(super) async fn delete(
    store: &dyn ThreadStore,
    tenant: Tenant,
    response: StoredResponse,
) -> Result<bool, Failure> {
    let deleted = store.delete(tenant, response.id).await;
    deleted.map_err(|error| failed(&error))
}

fn failed(error: &StoreError) -> Failure {
    tracing::error!(error = ?error, "the store of the OpenAI server failed");
    Failure::internal()
}

/// Stores the response of a run.
pub(super) struct Keep {
    store: Arc<dyn ThreadStore>,
    tenant: Tenant,
    id: ThreadId,
    root: ThreadId,
    previous: Option<StoredResponse>,
    system: System,
    transcript: Transcript,
    // The answer of a plain model.
    answer: Option<MessageBuilder>,
}

impl Keep {
    /// `system` and `transcript` are those of the request, without instructions.
    pub(super) fn new(
        (store, tenant): (Arc<dyn ThreadStore>, Tenant),
        (id, root): (ThreadId, ThreadId),
        previous: Option<StoredResponse>,
        (system, transcript): (System, Transcript),
    ) -> Self {
        Self {
            store,
            tenant,
            id,
            root,
            previous,
            system,
            transcript,
            answer: Some(MessageBuilder::new(&ResponseHead::default())),
        }
    }

    /// Sets the model that has written the answer.
    pub(super) fn begin(&mut self, head: &ResponseHead) {
        self.answer = Some(MessageBuilder::new(head));
    }

    pub(super) fn push(&mut self, event: &Event) {
        if matches!(event, Event::StepStart(_)) {
            // An agent emits its conversation at the end.
            self.answer = None;
        }
        if let Some(answer) = &mut self.answer {
            answer.push(event);
        }
    }

    /// Stores `response`, the JSON of the response that `finish` ends.
    pub(super) fn write(
        self,
        finish: &Finish,
        answer: &Answer,
        response: &Bytes,
    ) -> StoreFuture<u64> {
        let (history, open) = conversation(finish, self.transcript, self.answer);
        let record = Record {
            response: String::from_utf8_lossy(response).into_owned(),
            system: self.system,
            open,
            renamed: answer.renamed().to_vec(),
        };
        let (store, tenant, id, root) = (self.store, self.tenant, self.id, self.root);
        let previous = self.previous;
        Box::pin(async move {
            let value = serde_json::to_value(record);
            let value = value.map_err(|error| StoreError::Unwritable(Arc::new(error)))?;
            let slots = [StoredSlot::new(SLOT.0, SLOT.1, value, SlotPlace::Whole)];
            if let Some(StoredResponse {
                id: from, thread, ..
            }) = previous
            {
                let change = thread.change_to(&history, &slots);
                let to = id.clone();
                let fork = store.fork(tenant.clone(), from, thread.version, to, change);
                match fork.await {
                    // The previous response was deleted during the run.
                    Err(StoreError::Moved { .. } | StoreError::NotFound) => {}
                    written => return written,
                }
            }
            let mut change = StoredThread::default().change_to(&history, &slots);
            change.session = Some(root);
            store.append(tenant, id, 0, change).await
        })
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

/// The body of the answer to a deletion.
pub(super) fn deleted(id: &str) -> Value {
    serde_json::json!({"id": id, "object": "response", "deleted": true})
}

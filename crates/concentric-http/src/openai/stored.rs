//! Responses in a store of conversations.
//!
//! Each response is a conversation of its own, whose id is that of the response: a fork of the one that it
//! continues, which shares its turns.
//!
//! A background response is stored before its run begins, with a lease. The first write that removes the lease ends
//! the response: that of the run, of a request that cancels it, or of one that finds the lease expired.

mod keep;
mod live;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use concentric_core::{
    Environment, Message, Str, System, ThreadId, Transcript,
    run_state::{SlotPlace, StoredSlot},
    store::{StoreError, StoreFuture, StoredThread, Tenant, ThreadChange, ThreadStore},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::failure::Failure;
use crate::policy::ClientPolicy;

pub(super) use self::{
    keep::Keep,
    live::{Live, Written},
};

/// The start of the ids of responses.
pub(super) const PREFIX: &str = "resp_";

/// The start of the ids of conversations, which are the threads of their runs. No response has such an id: the deletion
/// of a response would delete these runs from a store that has both.
const CONVERSATION: &str = "conv_";

/// The maximum time that the end of a run waits for the store.
pub(super) const STORE_WITHIN: Duration = Duration::from_secs(30);

/// The slot with the response, and its version.
const SLOT: (&str, u32) = ("openai_response", 1);

/// The slot with the end of the lease of a background response, in milliseconds since 1970. A response that has
/// ended does not have it.
const LEASE: (&str, u32) = ("openai_lease", 1);

/// The duration of a lease. The clocks of two processes may differ by all of it but the time between two renewals and
/// [`STORE_WITHIN`], in which an end is written and nothing renewed.
const LEASE_FOR: Duration = Duration::from_secs(60);

/// The time between two renewals of a lease, and the maximum time that one takes.
pub(super) const RENEW_AFTER: Duration = Duration::from_secs(10);

/// How many times a response is read again that another process changes.
const ATTEMPTS: usize = 8;

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
    /// The items that the request has referred to, as a JSON array.
    #[serde(default)]
    referred: String,
    #[serde(default)]
    is_background: bool,
    /// Whether the run has failed or was cancelled.
    #[serde(default)]
    is_failed: bool,
}

/// A stored response.
pub(super) struct StoredResponse {
    id: ThreadId,
    thread: StoredThread,
    record: Record,
    // Until the response has ended.
    lease: Option<u64>,
}

/// The responses of an owner.
#[derive(Clone)]
pub(super) struct Owned {
    pub(super) store: Arc<dyn ThreadStore>,
    pub(super) tenant: Tenant,
    pub(super) environment: Environment,
}

/// The reason for which a request ends a response that a process still drives, or has driven.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum EndedBy {
    /// A client has cancelled it.
    Cancel,
    /// Its lease has expired.
    Expiry,
    /// The store does not accept its result.
    Unwritable,
}

/// What precedes the messages of a request.
#[derive(Default)]
pub(super) struct Before {
    pub(super) history: Transcript,
    pub(super) system: System,
    pub(super) open: Vec<Message>,
    pub(super) renamed: Vec<(Str, Str)>,
}

impl Owned {
    /// Finds a response; `None` if there is none with this id. Ends it if its lease has expired.
    pub(super) async fn find(
        &self,
        policy: &ClientPolicy,
        id: &str,
    ) -> Result<Option<StoredResponse>, Failure> {
        // Not all stores accept a NUL character.
        if !id.starts_with(PREFIX) || !policy.is_id(id) || id.contains('\0') {
            return Ok(None);
        }
        match self.load(ThreadId::new(id)).await {
            Ok(Some(found)) => self.end(found, EndedBy::Expiry).await,
            Ok(None) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn load(&self, id: ThreadId) -> Result<Option<StoredResponse>, StoreError> {
        let thread = self.store.load(self.tenant.clone(), id.clone()).await?;
        Ok(thread.and_then(|thread| {
            // The store may have other conversations.
            let value_of = |name| Some(&thread.slots.iter().find(|slot| slot.slot == name)?.value);
            let record = Record::deserialize(value_of(SLOT.0)?).ok()?;
            // An unreadable lease has expired.
            let lease = value_of(LEASE.0).map(|until| until.as_u64().unwrap_or(0));
            Some(StoredResponse {
                id,
                thread,
                record,
                lease,
            })
        }))
    }

    /// Ends a response that has not ended, with [`EndedBy::Expiry`] if its lease has expired. Returns the stored
    /// response; `None` if it was deleted.
    pub(super) async fn end(
        &self,
        mut response: StoredResponse,
        by: EndedBy,
    ) -> Result<Option<StoredResponse>, Failure> {
        for _ in 0..ATTEMPTS {
            let Some(until) = response.lease else {
                return Ok(Some(response));
            };
            if by == EndedBy::Expiry && until > millis(self.now()) {
                return Ok(Some(response));
            }
            response.record.end(by);
            let slots = response.record.slots();
            let slots = slots.map_err(|error| failed(&error))?;
            let change = response.thread.change_to(&response.thread.history, &slots);
            let version = response.thread.version;
            match self.append(&response.id, version, change).await {
                Ok(_) => {
                    response.lease = None;
                    return Ok(Some(response));
                }
                // Its process has renewed the lease, or the response has ended.
                Err(StoreError::Moved { .. } | StoreError::NotFound) => {}
                Err(error) => return Err(failed(&error)),
            }
            let current = self.load(response.id).await;
            match current.map_err(|error| failed(&error))? {
                Some(current) => response = current,
                None => return Ok(None),
            }
        }
        Err(Failure::busy("the response changes too often"))
    }

    /// Deletes a response, and returns whether it existed.
    pub(super) async fn delete(&self, id: ThreadId) -> Result<bool, Failure> {
        let deleted = self.store.delete(self.tenant.clone(), id).await;
        deleted.map_err(|error| failed(&error))
    }

    fn append(&self, id: &ThreadId, version: u64, change: ThreadChange) -> StoreFuture<u64> {
        let (tenant, id) = (self.tenant.clone(), id.clone());
        self.store.append(tenant, id, version, change)
    }

    /// Creates a response, as a fork of `previous` if there is one.
    async fn create(
        &self,
        id: &ThreadId,
        conversation: ThreadId,
        previous: Option<&StoredResponse>,
        (history, slots): (&Transcript, &[StoredSlot]),
    ) -> Result<u64, StoreError> {
        if let Some(StoredResponse {
            id: from, thread, ..
        }) = previous
        {
            let change = thread.change_to(history, slots);
            let (tenant, from) = (self.tenant.clone(), from.clone());
            let fork = self
                .store
                .fork(tenant, from, thread.version, id.clone(), change);
            match fork.await {
                // The previous response was deleted during the run.
                Err(StoreError::Moved { .. } | StoreError::NotFound) => {}
                written => return written,
            }
        }
        let mut change = StoredThread::default().change_to(history, slots);
        change.session = Some(conversation);
        self.append(id, 0, change).await
    }

    fn now(&self) -> SystemTime {
        self.environment.clock().now()
    }

    /// The slot of a lease that begins now.
    fn lease(&self) -> StoredSlot {
        let until = millis(self.now() + LEASE_FOR);
        StoredSlot::new(LEASE.0, LEASE.1, until.into(), SlotPlace::Whole)
    }
}

/// A time in milliseconds since 1970.
fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

impl Record {
    fn slots(&self) -> Result<[StoredSlot; 1], StoreError> {
        let value = serde_json::to_value(self);
        let value = value.map_err(|error| StoreError::Unwritable(Arc::new(error)))?;
        Ok([StoredSlot::new(SLOT.0, SLOT.1, value, SlotPlace::Whole)])
    }

    /// Ends the response of a run without its result.
    fn end(&mut self, by: EndedBy) {
        self.is_failed = true;
        let (status, error) = match by {
            EndedBy::Cancel => ("cancelled", None),
            EndedBy::Expiry => ("failed", Some("The process of the response has stopped.")),
            EndedBy::Unwritable => ("failed", Some("The response could not be stored.")),
        };
        let error = error.map(|message| json!({"code": "server_error", "message": message}));
        if let Ok(Value::Object(mut response)) = serde_json::from_str(&self.response) {
            response.insert("status".to_owned(), status.into());
            response.insert("error".to_owned(), error.into());
            self.response = Value::Object(response).to_string();
        }
    }
}

impl StoredResponse {
    pub(super) const fn id(&self) -> &ThreadId {
        &self.id
    }

    /// Whether the run was started in the background.
    pub(super) const fn is_background(&self) -> bool {
        self.record.is_background
    }

    /// Whether a request can continue the conversation with the response.
    pub(super) const fn is_continuable(&self) -> bool {
        self.lease.is_none() && !self.record.is_failed
    }

    pub(super) fn into_json(self) -> Bytes {
        self.record.response.into()
    }

    /// The response as JSON, and the items that its request has referred to.
    pub(super) fn into_items(self) -> (String, String) {
        (self.record.response, self.record.referred)
    }

    pub(super) fn before(&self) -> Before {
        Before {
            history: self.thread.history.clone(),
            system: self.record.system.clone(),
            open: self.record.open.clone(),
            renamed: self.record.renamed.clone(),
        }
    }

    /// The id of the conversation.
    pub(super) fn conversation(&self) -> ThreadId {
        let id = self.thread.session.as_ref().unwrap_or(&self.id);
        id.clone()
    }
}

/// The id of the conversation that begins with the run `key`.
pub(super) fn conversation(key: &str) -> ThreadId {
    ThreadId::new(Str::concat([CONVERSATION, key]))
}

/// The run that a conversation begins with.
pub(super) fn conversation_key(id: &str) -> &str {
    id.strip_prefix(CONVERSATION).unwrap_or(id)
}

fn failed(error: &StoreError) -> Failure {
    tracing::error!(error = ?error, "the store of the OpenAI server failed");
    Failure::internal()
}

/// The body of the answer to a deletion.
pub(super) fn deleted(id: &str) -> Value {
    json!({"id": id, "object": "response", "deleted": true})
}

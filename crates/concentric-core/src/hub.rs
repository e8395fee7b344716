//! Interrupts that are answered while their runs continue.

use crate::{outbox::EmitError, run_key::Tenant};
use concentric_proto::{Interrupt, InterruptId, Reply, ReplyError};
use std::{
    collections::{HashMap, hash_map::Entry},
    error::Error as StdError,
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::SystemTime,
};
use tokio::sync::oneshot;

/// The open interrupts of runs that continue while they wait, and the entry point for replies.
///
/// A handle: clones share the same interrupts. Each run has [its own](crate::Context::live);
/// several runs can share one to accept all replies in one place.
///
/// An interrupt is emitted into its run's stream as an [`Event::Custom`](crate::Event::Custom)
/// named `interrupt`, whose value is the [`Interrupt`]. The consumer passes the reply to
/// [`reply`](Self::reply).
///
/// Open interrupts have unique ids: while one is open, another with the same id and tenant is
/// rejected, since a reply would be ambiguous.
#[derive(Clone, Default)]
pub struct InterruptHub(Arc<Mutex<HashMap<(Tenant, InterruptId), Waiting>>>);

struct Waiting {
    interrupt: Interrupt,
    check: Option<Arc<Check>>,
    // Taken by the reply. The id stays reserved until the waiting future removes the entry.
    reply: Option<oneshot::Sender<Reply>>,
}

/// A check of a reply in addition to the form that its interrupt requires.
pub(crate) type Check = dyn Fn(&Reply) -> Result<(), ReplyError> + Send + Sync;

/// The reason why an interrupt has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// No reply arrived before the timeout or the run's deadline.
    TimedOut,
    /// The run was cancelled.
    Cancelled,
    /// Another interrupt with this id is open.
    DuplicateId(InterruptId),
    /// The interrupt was not emitted into the run's stream.
    NotDelivered(EmitError),
    /// The reply does not have the required form.
    Malformed(ReplyError),
}

impl InterruptHub {
    /// Creates a handle without open interrupts.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Tenant, InterruptId), Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open interrupts of a tenant, in no particular order.
    pub fn interrupts(&self, tenant: &Tenant) -> Vec<Interrupt> {
        self.lock()
            .iter()
            .filter(|((of, _), waiting)| of == tenant && waiting.reply.is_some())
            .map(|(_, waiting)| waiting.interrupt.clone())
            .collect()
    }

    /// Delivers a reply to the future that waits for it. `now` is the current time.
    ///
    /// # Errors
    ///
    /// No such interrupt is open, or the reply has the wrong form; then the interrupt stays open.
    pub fn reply(&self, tenant: &Tenant, reply: Reply, now: SystemTime) -> Result<(), ReplyError> {
        let id = reply.interrupt_id.clone();
        let key = (tenant.clone(), id.clone());
        let unknown = || ReplyError::Unknown(id.clone());
        let mut waiting = self.lock();
        let asked = waiting.get_mut(&key).filter(|asked| asked.reply.is_some());
        let mut asked = asked.ok_or_else(unknown)?;
        asked.interrupt.check(&reply, now)?;
        if let Some(check) = asked.check.clone() {
            // The check is foreign code and may be slow, so it runs without the lock.
            drop(waiting);
            check(&reply)?;
            waiting = self.lock();
            // Another interrupt may have been opened with the same id.
            let is_same = |asked: &&mut Waiting| {
                let known = asked.check.as_ref();
                asked.reply.is_some() && known.is_some_and(|known| Arc::ptr_eq(known, &check))
            };
            asked = waiting.get_mut(&key).filter(is_same).ok_or_else(unknown)?;
        }
        let asker = asked.reply.take();
        drop(waiting);
        let taken = asker.and_then(|asker| asker.send(reply).ok());
        taken.ok_or(ReplyError::Unknown(id))
    }

    /// Registers an interrupt of a tenant and waits for a reply that `check` accepts. `shown`
    /// resolves once the interrupt is emitted, `ended` with the reason when the wait is over.
    ///
    /// # Errors
    ///
    /// There is no reply.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the interrupt.
    pub(crate) async fn wait(
        &self,
        tenant: Tenant,
        interrupt: Interrupt,
        check: Option<Arc<Check>>,
        shown: impl Future<Output = Result<(), EmitError>>,
        ended: impl Future<Output = AskError>,
    ) -> Result<Reply, AskError> {
        let key = (tenant, interrupt.id.clone());
        let (sender, mut receiver) = oneshot::channel();
        match self.lock().entry(key.clone()) {
            Entry::Occupied(_) => return Err(AskError::DuplicateId(interrupt.id)),
            Entry::Vacant(free) => free.insert(Waiting {
                interrupt,
                check,
                reply: Some(sender),
            }),
        };
        let _asked = Asked { of: self, key };
        let unanswered = {
            let mut answered = pin!(async {
                shown.await.map_err(AskError::NotDelivered)?;
                (&mut receiver).await.map_err(|_| AskError::TimedOut)
            });
            let mut ended = pin!(ended);
            // The code below checks for a reply that arrived by the end of the wait.
            let answered = poll_fn(|cx| match ended.as_mut().poll(cx) {
                Poll::Pending => answered.as_mut().poll(cx),
                Poll::Ready(unanswered) => Poll::Ready(Err(unanswered)),
            });
            match answered.await {
                Ok(reply) => return Ok(reply),
                Err(unanswered) => unanswered,
            }
        };
        // A reply that was accepted in the meantime is not lost; after this no reply is accepted.
        receiver.close();
        receiver.try_recv().map_err(|_| unanswered)
    }
}

/// Withdraws an interrupt when its future is dropped.
struct Asked<'a> {
    of: &'a InterruptHub,
    key: (Tenant, InterruptId),
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.of.lock().remove(&self.key);
    }
}

impl fmt::Debug for InterruptHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterruptHub")
            .field("waiting", &self.lock().len())
            .finish()
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no reply arrived in time"),
            Self::Cancelled => f.write_str("the run was cancelled before a reply arrived"),
            Self::DuplicateId(id) => write!(f, "another interrupt with the id `{id}` is open"),
            Self::NotDelivered(error) => write!(f, "the interrupt was not emitted: {error}"),
            Self::Malformed(error) => error.fmt(f),
        }
    }
}

impl StdError for AskError {}

impl From<ReplyError> for AskError {
    fn from(error: ReplyError) -> Self {
        Self::Malformed(error)
    }
}

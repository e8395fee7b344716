//! The pending interrupts of runs that stay open.

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

/// Takes replies to questions of runs that stay open.
///
/// It is a handle: clones speak of the same questions. Each run has [one](crate::Context::live) of its own;
/// one that several runs ask by is for whoever takes the replies of all of them in one place.
///
/// A question goes into its run's stream as an [`Event::Custom`](crate::Event::Custom) named `interrupt`, whose value is
/// the [`Interrupt`]; whoever shows it hands the reply to [`reply`](Self::reply).
///
/// An id names one question. While it waits, another of the same id and tenant is not asked, since a
/// reply could be to either.
#[derive(Clone, Default)]
pub struct LiveInterrupts(Arc<Mutex<HashMap<(Tenant, InterruptId), Waiting>>>);

struct Waiting {
    interrupt: Interrupt,
    check: Option<Arc<Check>>,
    // Taken by the reply. Whoever asked takes the question back, and nobody else asks under its id
    // before that.
    reply: Option<oneshot::Sender<Reply>>,
}

/// What a reply must meet beside the form that its question asks for.
pub(crate) type Check = dyn Fn(&Reply) -> Result<(), ReplyError> + Send + Sync;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unanswered {
    /// There was no reply before the timeout or the run's deadline.
    Late,
    /// The run was cancelled.
    Cancelled,
    /// Another question waits under its id.
    Asked(InterruptId),
    /// It did not go into the run's stream.
    NotShown(EmitError),
    /// It was answered, and not by what was asked for.
    Malformed(ReplyError),
}

impl LiveInterrupts {
    /// Creates a handle that nobody waits on.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Tenant, InterruptId), Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is asked of a tenant now, in no order.
    pub fn interrupts(&self, tenant: &Tenant) -> Vec<Interrupt> {
        self.lock()
            .iter()
            .filter(|((of, _), waiting)| of == tenant && waiting.reply.is_some())
            .map(|(_, waiting)| waiting.interrupt.clone())
            .collect()
    }

    /// Hands a reply to whoever waits for it. It is `now`.
    ///
    /// # Errors
    ///
    /// Nobody waits for it (any more), or the reply is not of a form that answers it; the question
    /// then goes on waiting.
    pub fn reply(&self, tenant: &Tenant, reply: Reply, now: SystemTime) -> Result<(), ReplyError> {
        let id = reply.interrupt_id.clone();
        let key = (tenant.clone(), id.clone());
        let unknown = || ReplyError::Unknown(id.clone());
        let mut waiting = self.lock();
        let asked = waiting.get_mut(&key).filter(|asked| asked.reply.is_some());
        let mut asked = asked.ok_or_else(unknown)?;
        asked.interrupt.check(&reply, now)?;
        if let Some(check) = asked.check.clone() {
            // It is not ours, and may take its time.
            drop(waiting);
            check(&reply)?;
            waiting = self.lock();
            // Another question may wait under its id by now.
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

    /// Registers an interrupt of a tenant and waits for a reply that `check` accepts. `shown` resolves
    /// once the interrupt is in the run's stream, `ended` when the wait is over, with the reason.
    ///
    /// # Errors
    ///
    /// There is no reply.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub(crate) async fn wait(
        &self,
        tenant: Tenant,
        interrupt: Interrupt,
        check: Option<Arc<Check>>,
        shown: impl Future<Output = Result<(), EmitError>>,
        ended: impl Future<Output = Unanswered>,
    ) -> Result<Reply, Unanswered> {
        let key = (tenant, interrupt.id.clone());
        let (sender, mut receiver) = oneshot::channel();
        match self.lock().entry(key.clone()) {
            Entry::Occupied(_) => return Err(Unanswered::Asked(interrupt.id)),
            Entry::Vacant(free) => free.insert(Waiting {
                interrupt,
                check,
                reply: Some(sender),
            }),
        };
        let _asked = Asked { of: self, key };
        let unanswered = {
            let mut answered = pin!(async {
                shown.await.map_err(Unanswered::NotShown)?;
                (&mut receiver).await.map_err(|_| Unanswered::Late)
            });
            let mut ended = pin!(ended);
            // A reply that has arrived by the end of the wait is looked for below.
            let answered = poll_fn(|cx| match ended.as_mut().poll(cx) {
                Poll::Pending => answered.as_mut().poll(cx),
                Poll::Ready(unanswered) => Poll::Ready(Err(unanswered)),
            });
            match answered.await {
                Ok(reply) => return Ok(reply),
                Err(unanswered) => unanswered,
            }
        };
        // One that was accepted meanwhile is not lost; after this none is.
        receiver.close();
        receiver.try_recv().map_err(|_| unanswered)
    }
}

/// Takes a question back that nobody waits for any more.
struct Asked<'a> {
    of: &'a LiveInterrupts,
    key: (Tenant, InterruptId),
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.of.lock().remove(&self.key);
    }
}

impl fmt::Debug for LiveInterrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveInterrupts")
            .field("waiting", &self.lock().len())
            .finish()
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => f.write_str("nobody has answered in time"),
            Self::Cancelled => f.write_str("the run was cancelled before anybody answered"),
            Self::Asked(id) => write!(f, "another question waits under the id `{id}`"),
            Self::NotShown(error) => write!(f, "the question was not asked: {error}"),
            Self::Malformed(error) => error.fmt(f),
        }
    }
}

impl StdError for Unanswered {}

impl From<ReplyError> for Unanswered {
    fn from(error: ReplyError) -> Self {
        Self::Malformed(error)
    }
}

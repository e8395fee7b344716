use concentric_core::{
    Context, Custom, Event, Interrupt, InterruptId, Reply, ReplyError, store::Tenant,
};
use futures_util::future::{Either, select};
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::sync::oneshot;

/// Takes replies to calls that wait in runs which stay open.
///
/// It is a handle: clones speak of the same calls. A question goes into the run's stream as an
/// [`Event::Custom`] named `interrupt`, whose value is the [`Interrupt`]; whoever shows it hands the
/// reply to [`reply`](Self::reply).
///
/// An id names one question. While it waits, another of the same id and tenant is not asked, since a
/// reply could be to either; its call is denied.
///
/// ```
/// use concentric_tools::{Approval, LiveApprovals, Toolset};
/// use std::time::Duration;
///
/// let live = LiveApprovals::new();
/// let approval = Approval::for_tools("refund").live(&live, Duration::from_secs(120));
/// let tools = Toolset::new().gate(approval);
/// // Elsewhere: live.reply(&tenant, reply)
/// # let _ = tools;
/// ```
#[derive(Clone, Default)]
pub struct LiveApprovals(Arc<Mutex<HashMap<(Tenant, InterruptId), Waiting>>>);

struct Waiting {
    interrupt: Interrupt,
    // Taken by the reply. Whoever asked takes the question back, and nobody else asks under its id
    // before that.
    reply: Option<oneshot::Sender<Reply>>,
}

impl LiveApprovals {
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

    /// Hands a reply to the call that waits for it. It is `now`.
    ///
    /// # Errors
    ///
    /// No call waits for it (any more), or the reply is not of a form that answers it; the call
    /// then goes on waiting.
    pub fn reply(&self, tenant: &Tenant, reply: Reply, now: SystemTime) -> Result<(), ReplyError> {
        let id = reply.interrupt_id.clone();
        let key = (tenant.clone(), id.clone());
        let mut waiting = self.lock();
        let asked = waiting.get_mut(&key).filter(|asked| asked.reply.is_some());
        let asked = asked.ok_or_else(|| ReplyError::Unknown(id.clone()))?;
        asked.interrupt.check(&reply, now)?;
        let asker = asked.reply.take();
        drop(waiting);
        let taken = asker.and_then(|asker| asker.send(reply).ok());
        taken.ok_or(ReplyError::Unknown(id))
    }

    /// Asks, and waits for the reply; `None` when `timeout` has passed, the run was cancelled, or
    /// something else is asked under this id.
    pub(crate) async fn ask(
        &self,
        interrupt: Interrupt,
        timeout: Duration,
        context: &Context,
    ) -> Option<Reply> {
        let key = (Tenant::of(context), interrupt.id.clone());
        let (sender, receiver) = oneshot::channel();
        let mut event = Custom::new(
            "interrupt",
            serde_json::to_value(&interrupt).unwrap_or_default(),
        );
        event.call_id.clone_from(&interrupt.call_id);
        match self.lock().entry(key.clone()) {
            Entry::Occupied(_) => {
                tracing::error!(id = %interrupt.id, "two questions have one id, so one is not asked");
                return None;
            }
            Entry::Vacant(free) => free.insert(Waiting {
                interrupt,
                reply: Some(sender),
            }),
        };
        let _guard = Guard { of: self, key };
        if context.send(Event::Custom(Box::new(event))).await.is_err() {
            return None;
        }
        let timeout = pin!(context.sleep(timeout));
        match select(receiver, timeout).await {
            Either::Left((reply, _)) => reply.ok(),
            Either::Right(_) => None,
        }
    }
}

/// Takes a question back that nobody waits for any more.
struct Guard<'a> {
    of: &'a LiveApprovals,
    key: (Tenant, InterruptId),
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.of.lock().remove(&self.key);
    }
}

impl fmt::Debug for LiveApprovals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveApprovals")
            .field("waiting", &self.lock().len())
            .finish()
    }
}

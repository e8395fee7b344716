use super::{
    Hooks, Interest, Summary,
    at::At,
    call::{Until, notify},
    failures::report,
    round::Closing,
};
use crate::{
    context::Context as RunContext,
    end::End,
    marks::MarkKind,
    panic::{CaughtPanic, catch},
    request::ChatRequest,
};
use concentric_proto::{Error, Event, Finish, Phase, ResponseHead, ToolResult};
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

/// The points before a call and after it; those of one place, by [`At::interest`].
pub(super) const BEFORE: Interest = Interest::BEFORE_RUN.union(Interest::BEFORE_MODEL);
pub(super) const AFTER: Interest = Interest::AFTER_RUN.union(Interest::AFTER_MODEL);

/// The points whose methods receive a summary.
const SUMMARIZED: Interest = AFTER
    .union(Interest::STEP_STARTED)
    .union(Interest::STEP_FINISHED)
    .union(Interest::ROUND_FINISHED);

/// An item of a body.
pub(super) type Item = Option<Result<Event, Error>>;

/// Returns whether `item` is the last one.
#[inline]
pub(super) const fn is_terminal(item: &Item) -> bool {
    matches!(item, None | Some(Err(_) | Ok(Event::Finish(_))))
}

/// Calls the hooks of one call, and reports its end exactly once, on drop at the latest.
pub(super) struct Watch<H>
where
    H: Hooks,
{
    at: At<H>,
    context: RunContext,
    calls: Calls,
    progress: Option<Box<Progress>>,
}

/// The event method that is called; none after it has panicked.
#[derive(Clone, Copy)]
enum Calls {
    Nothing,
    Event,
    ModelEvent,
}

/// The state of a call whose steps or end are passed to the hook.
struct Progress {
    interest: Interest,
    observes_end: bool,
    // The end shared with the other hooks of the call, and whether there are outer ones.
    ends: Option<(Ends, bool)>,
    has_body: bool,
    // Shared with running methods, which have ended when the summary is changed.
    summary: Arc<Summary>,
    closing: Closing,
    // The running methods, which return the item after they end.
    running: Option<Running>,
    // Whether the end has been passed to the hook.
    ended: bool,
}

type Running = Pin<Box<dyn Future<Output = Item> + Send>>;

/// The end that the innermost hooks of a call received, for outer hooks whose consumer may
/// disconnect while the inner ones are running.
#[derive(Clone)]
pub(super) struct Ends {
    // Identifies the call; that of an agent that is used as a model is a different one.
    phase: Phase,
    depth: u32,
    ended: Arc<Mutex<Option<Ended>>>,
}

#[derive(Clone)]
enum Ended {
    Finished(Box<Finish>),
    Failed(Error),
    Truncated,
}

impl Ends {
    /// Joins the shared end of the call's hooks. Also returns whether there are outer hooks.
    pub(super) fn join(context: &mut RunContext, phase: Phase) -> (Self, bool) {
        let depth = context.depth();
        let outer = context.marks().iter().find_map(|mark| match mark {
            MarkKind::Shares(value) => value.downcast_ref::<Self>(),
            _ => None,
        });
        if let Some(ends) = outer
            && (ends.phase, ends.depth) == (phase, depth)
        {
            // An earlier attempt may have ended.
            *ends.lock() = None;
            return (ends.clone(), true);
        }
        let ends = Self {
            phase,
            depth,
            ended: Arc::default(),
        };
        let shared = Arc::new(ends.clone());
        context.marks_mut().push(MarkKind::Shares(shared));
        (ends, false)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, item: &Item) {
        let ended = match item {
            Some(Ok(Event::Finish(finish))) => Ended::Finished(finish.clone()),
            Some(Ok(_)) => return,
            Some(Err(error)) => Ended::Failed(error.clone()),
            None => Ended::Truncated,
        };
        self.lock().get_or_insert(ended);
    }

    fn take(&self) -> Option<Ended> {
        self.lock().clone()
    }
}

impl<H> Watch<H>
where
    H: Hooks,
{
    pub(super) fn new(
        at: At<H>,
        interest: Interest,
        request: &ChatRequest,
        ends: Option<(Ends, bool)>,
    ) -> Self {
        let context = request.context.clone();
        let progress = interest.intersects(SUMMARIZED).then(|| {
            Box::new(Progress {
                interest,
                observes_end: interest.intersects(AFTER),
                ends,
                has_body: false,
                summary: Arc::new(Summary::new(context.clone(), request.transcript.clone())),
                closing: Closing::default(),
                running: None,
                ended: false,
            })
        });
        Self {
            at,
            context,
            calls: match interest {
                _ if interest.contains(Interest::EVENT) => Calls::Event,
                _ if interest.contains(Interest::MODEL_EVENT) => Calls::ModelEvent,
                _ => Calls::Nothing,
            },
            progress,
        }
    }

    /// Records that the call has a body.
    pub(super) fn answered(&mut self, head: &ResponseHead) {
        if let Some(progress) = &mut self.progress {
            progress.has_body = true;
            Arc::make_mut(&mut progress.summary).of_model(head);
        }
    }

    /// Returns whether an item is held until the running methods end.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        self.progress
            .as_ref()
            .is_some_and(|progress| progress.running.is_some())
    }

    /// Passes `item` to the hook's event method, and returns whether it must be held for further
    /// methods.
    #[inline]
    pub(super) fn record_item(&mut self, item: &Item) -> bool {
        if let Some(Ok(event)) = item {
            self.event(event);
        }
        match &mut self.progress {
            Some(progress) => progress.record_item(item),
            None => false,
        }
    }

    /// Passes an event to the hook's event method.
    #[inline]
    pub(super) fn event(&mut self, event: &Event) {
        let (at, context) = (&self.at, &self.context);
        let (method, called) = match self.calls {
            Calls::Nothing => return,
            Calls::Event => ("event", catch(|| at.event(event, context))),
            Calls::ModelEvent => ("model_event", catch(|| at.model_event(event, context))),
        };
        if let Err(panic) = called {
            self.event_panicked(method, &panic);
        }
    }

    // A separate function, to keep the event path small.
    #[cold]
    fn event_panicked(&mut self, method: &'static str, panic: &CaughtPanic) {
        self.calls = Calls::Nothing;
        report(self.at.id(), method, panic.error(), &self.context);
    }

    /// Returns whether steps or the end are passed to the hook.
    pub(super) const fn observes(&self) -> bool {
        self.progress.is_some()
    }

    /// Returns whether the hook has methods for the end.
    pub(super) fn awaits_end(&self) -> bool {
        self.progress
            .as_ref()
            .is_some_and(|progress| progress.awaits_end())
    }

    /// Starts the methods for `item`.
    pub(super) fn start(&mut self, item: Item) {
        if let Some(progress) = &mut self.progress {
            progress.ended |= is_terminal(&item);
            // A call that failed before it had a body may be retried.
            if let Some((ends, true)) = &progress.ends
                && progress.ended
                && progress.has_body
            {
                ends.record(&item);
            }
            let (summary, results) = (progress.summary(), progress.closing.take());
            let running = notify_item(self.at.clone(), progress.interest, summary, item, results);
            progress.running = Some(Box::pin(running));
        }
    }

    /// Waits until the methods have ended, and returns the held item.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Item> {
        let Some(progress) = &mut self.progress else {
            return Poll::Pending;
        };
        let Some(running) = &mut progress.running else {
            return Poll::Pending;
        };
        let item = ready!(running.as_mut().poll(cx));
        progress.running = None;
        Poll::Ready(item)
    }
}

impl Progress {
    #[inline]
    fn record_item(&mut self, item: &Item) -> bool {
        let Some(Ok(event)) = item else {
            return self.awaits_end();
        };
        Arc::make_mut(&mut self.summary).push(event);
        // A fast path, because nearly all events are deltas.
        if matches!(event, Event::TextDelta(_) | Event::ReasoningDelta(_)) {
            return false;
        }
        let is_closed =
            self.interest.contains(Interest::ROUND_FINISHED) && self.closing.record(event);
        is_closed
            || match event {
                Event::StepStart(_) => self.interest.contains(Interest::STEP_STARTED),
                Event::StepFinish(_) => self.interest.contains(Interest::STEP_FINISHED),
                Event::Finish(_) => self.observes_end,
                _ => false,
            }
    }

    const fn awaits_end(&self) -> bool {
        self.observes_end || self.closing.is_due()
    }

    fn summary(&mut self) -> Arc<Summary> {
        Arc::make_mut(&mut self.summary).stop_the_clock();
        Arc::clone(&self.summary)
    }
}

impl<H> Drop for Watch<H>
where
    H: Hooks,
{
    fn drop(&mut self) {
        let Some(mut progress) = self.progress.take() else {
            return;
        };
        let running = progress.running.take();
        if progress.ended {
            if let Some(running) = running {
                complete(running);
            }
            return;
        }
        drop(running);
        if progress.observes_end {
            let ended = progress.ends.as_ref().and_then(|(ends, _)| ends.take());
            complete(Box::pin(dropped(
                self.at.clone(),
                progress.summary(),
                ended,
            )));
        }
    }
}

/// Completes methods after the consumer has dropped the call.
fn complete(mut running: Running) {
    let mut cx = Context::from_waker(Waker::noop());
    if running.as_mut().poll(&mut cx).is_ready() {
        return;
    }
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn(running);
        }
        Err(_) => tracing::warn!("a hook was dropped before it completed: no tokio runtime"),
    }
}

async fn notify_item<H>(
    at: At<H>,
    interest: Interest,
    summary: Arc<Summary>,
    item: Item,
    results: Vec<ToolResult>,
) -> Item
where
    H: Hooks,
{
    let (id, context) = (at.id(), summary.context());
    let until = match is_terminal(&item) {
        true => Until::Limit,
        false => Until::Stopped,
    };
    if !results.is_empty() {
        let call = || at.round_finished(&results, &summary);
        notify(id, "round_finished", context, until, call).await;
    }
    let end: End<'_> = match &item {
        Some(Ok(Event::StepStart(step))) => {
            if interest.contains(Interest::STEP_STARTED) {
                let call = || at.step_started(step, &summary);
                notify(id, "step_started", context, until, call).await;
            }
            return item;
        }
        Some(Ok(Event::StepFinish(step))) => {
            let call = || at.step_finished(step, &summary);
            notify(id, "step_finished", context, until, call).await;
            return item;
        }
        Some(Ok(Event::Finish(finish))) => End::Finished(finish),
        Some(Ok(_)) => return item,
        Some(Err(error)) => End::Failed(error),
        None => End::Truncated,
    };
    if interest.intersects(AFTER) {
        notify(id, at.after_name(), context, until, || {
            at.after(end, &summary)
        })
        .await;
    }
    item
}

async fn dropped<H>(at: At<H>, summary: Arc<Summary>, ended: Option<Ended>) -> Item
where
    H: Hooks,
{
    let end: End<'_> = match &ended {
        // The end that the inner hooks received.
        Some(Ended::Finished(finish)) => End::Finished(finish),
        Some(Ended::Failed(error)) => End::Failed(error),
        Some(Ended::Truncated) => End::Truncated,
        None => End::Dropped,
    };
    let call = || at.after(end, &summary);
    notify(
        at.id(),
        at.after_name(),
        summary.context(),
        Until::Limit,
        call,
    )
    .await;
    None
}

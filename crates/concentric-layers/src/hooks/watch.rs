use super::{
    Summary,
    failures::report,
    method::{Until, tell},
    place::{Has, Place},
    round::Closing,
};
use crate::on_end::End;
use concentric_core::{
    Context as RunContext, Error, Event, Finish, Head, Phase, ToolResult,
    method::{Panic, catch},
};
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

/// An item of a body.
pub(super) type Item = Option<Result<Event, Error>>;

/// Returns whether `item` is the last one.
#[inline]
pub(super) const fn is_terminal(item: &Item) -> bool {
    matches!(item, None | Some(Err(_) | Ok(Event::Finish(_))))
}

/// Calls the hooks of one call, and reports its end exactly once, on drop at the latest.
pub(super) struct Watch<P>
where
    P: Place,
{
    place: P,
    context: RunContext,
    // Whether the hook panicked in its event method, which is then not called again.
    panicked: bool,
    told: Option<Box<Told>>,
}

/// The state of a call whose steps or end are passed to the hook.
struct Told {
    has: Has,
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
        if let Some(ends) = context.own().get::<Self>()
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
        context.own_mut().insert(ends.clone());
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

impl<P> Watch<P>
where
    P: Place,
{
    pub(super) fn new(place: P, has: Has, context: RunContext, ends: Option<(Ends, bool)>) -> Self {
        let told = has.is_told().then(|| {
            Box::new(Told {
                has,
                ends,
                has_body: false,
                summary: Arc::new(Summary::new(context.clone())),
                closing: Closing::default(),
                running: None,
                ended: false,
            })
        });
        Self {
            place,
            context,
            panicked: false,
            told,
        }
    }

    /// Records that the call has a body.
    pub(super) fn answered(&mut self, head: &Head) {
        if let Some(told) = &mut self.told {
            told.has_body = true;
            Arc::make_mut(&mut told.summary).of_model(head);
        }
    }

    /// Returns whether an item is held until the running methods end.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        self.told
            .as_ref()
            .is_some_and(|told| told.running.is_some())
    }

    /// Passes `item` to the hook's event method, and returns whether it must be held for further
    /// methods.
    #[inline]
    pub(super) fn see(&mut self, item: &Item) -> bool {
        if let Some(Ok(event)) = item {
            self.see_event(event);
        }
        match &mut self.told {
            Some(told) => told.see(item),
            None => false,
        }
    }

    /// Passes an event to the hook's event method.
    #[inline]
    pub(super) fn see_event(&mut self, event: &Event) {
        if self.panicked {
            return;
        }
        let (place, context) = (&self.place, &self.context);
        if let Err(panic) = catch(|| place.event(event, context)) {
            self.event_panicked(&panic);
        }
    }

    // A separate function, to keep the event path small.
    #[cold]
    fn event_panicked(&mut self, panic: &Panic) {
        self.panicked = true;
        report(self.place.id(), P::EVENT, panic.error(), &self.context);
    }

    /// Returns whether steps or the end are passed to the hook.
    pub(super) const fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Returns whether the hook has methods for the end.
    pub(super) fn is_told_of_end(&self) -> bool {
        self.told.as_ref().is_some_and(|told| told.is_told_of_end())
    }

    /// Starts the methods for `item`.
    pub(super) fn start(&mut self, item: Item) {
        if let Some(told) = &mut self.told {
            told.ended |= is_terminal(&item);
            // A call that failed before it had a body may be retried.
            if let Some((ends, true)) = &told.ends
                && told.ended
                && told.has_body
            {
                ends.record(&item);
            }
            let (summary, results) = (told.summary(), told.closing.take());
            let running = tell_of(self.place.clone(), told.has, summary, item, results);
            told.running = Some(Box::pin(running));
        }
    }

    /// Waits until the methods have ended, and returns the held item.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Item> {
        let Some(told) = &mut self.told else {
            return Poll::Pending;
        };
        let Some(running) = &mut told.running else {
            return Poll::Pending;
        };
        let item = ready!(running.as_mut().poll(cx));
        told.running = None;
        Poll::Ready(item)
    }
}

impl Told {
    #[inline]
    fn see(&mut self, item: &Item) -> bool {
        let Some(Ok(event)) = item else {
            return self.is_told_of_end();
        };
        Arc::make_mut(&mut self.summary).push(event);
        // A fast path, because nearly all events are deltas.
        if matches!(event, Event::TextDelta(_) | Event::ReasoningDelta(_)) {
            return false;
        }
        let is_closed = self.has.round_finished && self.closing.see(event);
        is_closed
            || match event {
                Event::StepStart(_) => self.has.step_started,
                Event::StepFinish(_) => self.has.step_finished,
                Event::Finish(_) => self.has.after,
                _ => false,
            }
    }

    const fn is_told_of_end(&self) -> bool {
        self.has.after || self.closing.is_due()
    }

    fn summary(&mut self) -> Arc<Summary> {
        Arc::make_mut(&mut self.summary).stop_the_clock();
        Arc::clone(&self.summary)
    }
}

impl<P> Drop for Watch<P>
where
    P: Place,
{
    fn drop(&mut self) {
        let Some(mut told) = self.told.take() else {
            return;
        };
        let running = told.running.take();
        if told.ended {
            if let Some(running) = running {
                go_on(running);
            }
            return;
        }
        drop(running);
        if told.has.after {
            let ended = told.ends.as_ref().and_then(|(ends, _)| ends.take());
            go_on(Box::pin(dropped(self.place.clone(), told.summary(), ended)));
        }
    }
}

/// Completes methods after the consumer has dropped the call.
fn go_on(mut running: Running) {
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

async fn tell_of<P>(
    place: P,
    has: Has,
    summary: Arc<Summary>,
    item: Item,
    results: Vec<ToolResult>,
) -> Item
where
    P: Place,
{
    let (id, context) = (place.id(), summary.context());
    let until = match is_terminal(&item) {
        true => Until::Limit,
        false => Until::Stopped,
    };
    if !results.is_empty() {
        let call = || place.round_finished(&results, &summary);
        tell(id, "round_finished", context, until, call).await;
    }
    let end = match &item {
        Some(Ok(Event::StepStart(step))) => {
            if has.step_started {
                let call = || place.step_started(step, &summary);
                tell(id, "step_started", context, until, call).await;
            }
            return item;
        }
        Some(Ok(Event::StepFinish(step))) => {
            let call = || place.step_finished(step, &summary);
            tell(id, "step_finished", context, until, call).await;
            return item;
        }
        Some(Ok(Event::Finish(finish))) => End::Finished(finish),
        Some(Ok(_)) => return item,
        Some(Err(error)) => End::Failed(error),
        None => End::Truncated,
    };
    if has.after {
        tell(id, P::AFTER, context, until, || place.after(end, &summary)).await;
    }
    item
}

async fn dropped<P>(place: P, summary: Arc<Summary>, ended: Option<Ended>) -> Item
where
    P: Place,
{
    let end = match &ended {
        // The end that the inner hooks received.
        Some(Ended::Finished(finish)) => End::Finished(finish),
        Some(Ended::Failed(error)) => End::Failed(error),
        Some(Ended::Truncated) => End::Truncated,
        None => End::Dropped,
    };
    let call = || place.after(end, &summary);
    tell(place.id(), P::AFTER, summary.context(), Until::Limit, call).await;
    None
}

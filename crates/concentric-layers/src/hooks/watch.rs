use super::{
    Summary,
    failures::report,
    method::{Until, tell},
    place::{Has, Place},
    round::Closing,
};
use concentric_core::{
    Context as RunContext, Error, Event, Finish, Head, Phase, ToolResult,
    layers::End,
    method::{Panic, catch},
};
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

/// What a body yields.
pub(super) type Item = Option<Result<Event, Error>>;

/// Whether nothing follows `item`.
#[inline]
pub(super) const fn is_terminal(item: &Item) -> bool {
    matches!(item, None | Some(Err(_) | Ok(Event::Finish(_))))
}

/// Tells hooks of one call, and of its end exactly once: at the latest when it is dropped.
pub(super) struct Watch<P>
where
    P: Place,
{
    place: P,
    context: RunContext,
    // Whether an event made the hook panic; it is shown no more of them.
    panicked: bool,
    told: Option<Box<Told>>,
}

/// Of a call whose steps, or whose end, the hook is told.
struct Told {
    has: Has,
    // Shared with the other hooks of the call; whether some of them are outside.
    ends: Option<(Ends, bool)>,
    has_body: bool,
    // Shared with methods that run; they are gone when it changes.
    summary: Arc<Summary>,
    closing: Closing,
    // Methods that run; the item they were told of waits for them.
    running: Option<Running>,
    // Whether the end was, or is being told.
    ended: bool,
}

type Running = Pin<Box<dyn Future<Output = Item> + Send>>;

/// How a call ended, as the innermost of its hooks was told; for those outside of it, whose consumer
/// may leave while inner ones are told.
#[derive(Clone)]
pub(super) struct Ends {
    // Of which call: that of an agent in the model's place is another one.
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
    /// Shares the end with the hooks outside and inside of this one; returns also whether there are
    /// some outside.
    pub(super) fn join(context: &mut RunContext, phase: Phase) -> (Self, bool) {
        let depth = context.depth();
        if let Some(ends) = context.own().get::<Self>()
            && (ends.phase, ends.depth) == (phase, depth)
        {
            // Another attempt may have ended before.
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

    /// Says that the call is answered.
    pub(super) fn answered(&mut self, head: &Head) {
        if let Some(told) = &mut self.told {
            told.has_body = true;
            Arc::make_mut(&mut told.summary).of_model(head);
        }
    }

    /// Whether an item waits for methods that run.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        self.told
            .as_ref()
            .is_some_and(|told| told.running.is_some())
    }

    /// Shows `item` to the hook, and returns whether it is to wait for methods.
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

    /// Shows an event to the hook, and nothing more.
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

    // Apart, so that little stands where events go by.
    #[cold]
    fn event_panicked(&mut self, panic: &Panic) {
        self.panicked = true;
        report(self.place.id(), P::EVENT, panic.error(), &self.context);
    }

    /// Whether the hook is told of steps, or of the end.
    pub(super) const fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Whether the hook has methods for the end.
    pub(super) fn is_told_of_end(&self) -> bool {
        self.told.as_ref().is_some_and(|told| told.is_told_of_end())
    }

    /// Begins to tell the hook of `item`.
    pub(super) fn start(&mut self, item: Item) {
        if let Some(told) = &mut self.told {
            told.ended |= is_terminal(&item);
            // A call that failed before it had a body may have another attempt.
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

    /// Waits until the hook was told, and returns the item it was told of.
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
        // Nearly all events are deltas.
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

/// Does what the consumer of a call no longer waits for.
fn go_on(mut running: Running) {
    let mut cx = Context::from_waker(Waker::noop());
    if running.as_mut().poll(&mut cx).is_ready() {
        return;
    }
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn(running);
        }
        Err(_) => tracing::warn!("no runtime for a hook to go on with, so it is given up"),
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
        // Inner hooks were told so already.
        Some(Ended::Finished(finish)) => End::Finished(finish),
        Some(Ended::Failed(error)) => End::Failed(error),
        Some(Ended::Truncated) => End::Truncated,
        None => End::Dropped,
    };
    let call = || place.after(end, &summary);
    tell(place.id(), P::AFTER, summary.context(), Until::Limit, call).await;
    None
}

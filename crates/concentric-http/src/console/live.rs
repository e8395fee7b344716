//! Streams of server-sent events.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::{
    Str,
    context::{Context as Run, Sleep},
    panic::catch,
};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    config::Config,
    fold::{last_id, ops},
    listing::{Listing, Show},
    operator::Operator,
};
use crate::{
    keep_alive::KeepAlive,
    run::{Read, Reader},
    shutdown::Guard,
};

/// The time between two looks at a list.
const EVERY: Duration = Duration::from_secs(2);

/// The time after which a stream ends. The browser connects again, and the operator is found again.
const LONGEST: Duration = Duration::from_secs(5 * 60);

/// What all streams have.
pub(super) struct Stream {
    // For its clock.
    context: Run,
    keep_alive: Option<KeepAlive>,
    shutdown: Option<Guard>,
    until: Sleep,
    _permit: OwnedSemaphorePermit,
    source: Option<Source>,
}

pub(super) enum Source {
    Run(RunEvents),
    List(Changes),
}

/// The events of a run.
pub(super) struct RunEvents {
    pub(super) reader: Reader,
    pub(super) content: bool,
    /// The tag of the log that the page has events of.
    pub(super) tag: Option<Str>,
}

/// The changes of a list.
pub(super) struct Changes {
    config: Arc<Config>,
    operator: Operator,
    show: Show,
    stage: Stage,
    last: Option<String>,
}

enum Stage {
    Sleeping(Sleep),
    Reading(Pin<Box<dyn Future<Output = Option<Value>> + Send>>),
}

impl Stream {
    pub(super) fn new(
        config: &Config,
        source: Source,
        shutdown: Option<Guard>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let environment = config.environment.clone();
        let until = environment.clock().sleep(LONGEST);
        Self {
            context: Run::builder().environment(environment).build(),
            keep_alive: config.keep_alive.map(KeepAlive::new),
            shutdown,
            until,
            _permit: permit,
            source: Some(source),
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        self.source.is_none()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.source.is_none() {
            return Poll::Ready(None);
        }
        let is_list = matches!(self.source, Some(Source::List(_)));
        if let Some(shutdown) = &mut self.shutdown
            && (shutdown.poll_over(&self.context, cx).is_ready()
                // A list has no end of its own to wait for.
                || (is_list && shutdown.is_begun()))
        {
            self.source = None;
            self.shutdown = None;
        } else if self.until.as_mut().poll(cx).is_ready() {
            self.source = None;
        }
        let polled = match &mut self.source {
            None => return Poll::Ready(None),
            Some(Source::Run(events)) => events.poll(cx),
            Some(Source::List(changes)) => changes.poll(cx),
        };
        match polled {
            Poll::Ready(chunk) => {
                if chunk.is_none() {
                    self.source = None;
                }
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.sent(self.context.environment().clock().monotonic());
                }
                Poll::Ready(chunk)
            }
            Poll::Pending => KeepAlive::poll(&mut self.keep_alive, &self.context, cx).map(Some),
        }
    }
}

impl RunEvents {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let frames = match ready!(self.reader.poll(cx)) {
                Read::Frames(frames) => frames,
                Read::Gap => return Poll::Ready(None),
                Read::End => return Poll::Ready(None),
            };
            let mut all: Vec<Value> = Vec::new();
            let tag = self.reader.log().tag();
            if self.tag.as_ref().is_some_and(|known| known != tag) {
                // The run was resumed, and has other events.
                all.push(json!(["reset"]));
            }
            self.tag = Some(tag.clone());
            all.extend(
                ops(&frames, self.content)
                    .iter()
                    .map(super::fold::Op::to_json),
            );
            let Some(id) = last_id(&frames).filter(|_| !all.is_empty()) else {
                continue;
            };
            let data = Value::from(all);
            return Poll::Ready(Some(format!("id: {id}\ndata: {data}\n\n").into()));
        }
    }
}

impl Changes {
    pub(super) fn new(config: Arc<Config>, operator: Operator, show: Show) -> Self {
        let stage = Stage::Sleeping(config.environment.clock().sleep(Duration::ZERO));
        Self {
            config,
            operator,
            show,
            stage,
            last: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match &mut self.stage {
                Stage::Sleeping(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    let (config, operator) = (Arc::clone(&self.config), self.operator.clone());
                    let show = self.show;
                    self.stage = Stage::Reading(Box::pin(async move {
                        let listing = Listing::read(&config, &operator).await.ok()?;
                        let counts = Show::ALL.map(|list| (list.name(), listing.count(list)));
                        let counts: Value = counts
                            .into_iter()
                            .map(|(name, count)| (name.to_owned(), Value::from(count)))
                            .collect();
                        Some(json!({"counts": counts, "list": listing.fingerprint(show)}))
                    }));
                }
                Stage::Reading(reading) => {
                    // The store may panic, and is not polled again.
                    let read = match catch(|| reading.as_mut().poll(cx)) {
                        Ok(polled) => ready!(polled),
                        Err(_) => return Poll::Ready(None),
                    };
                    self.stage = Stage::Sleeping(self.config.environment.clock().sleep(EVERY));
                    // A store that fails may recover.
                    let Some(read) = read.map(|read| read.to_string()) else {
                        continue;
                    };
                    if self.last.as_ref() != Some(&read) {
                        let frame = format!("data: {read}\n\n");
                        self.last = Some(read);
                        return Poll::Ready(Some(frame.into()));
                    }
                }
            }
        }
    }
}

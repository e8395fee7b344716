use super::VALUE_FOLLOWS;
use concentric_core::{CustomEvent, Error, Event, Str};
use futures_core::Stream;
use pin_project_lite::pin_project;
use serde_json::json;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`WithOutput`](super::WithOutput).
    #[must_use = "streams do nothing unless polled"]
    pub struct OutputBody<B> {
        #[pin]
        inner: B,
        // The schema's name, if the answer is the typed value.
        schema: Option<Str>,
        // Whether the event has yet to be emitted.
        due: bool,
    }
}

impl<B> OutputBody<B> {
    pub(super) const fn new(inner: B, schema: Option<Str>) -> Self {
        Self {
            inner,
            due: schema.is_some(),
            schema,
        }
    }
}

impl<B> Stream for OutputBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if *this.due {
            *this.due = false;
            let value = json!({ "schema": this.schema });
            let event = CustomEvent::new(VALUE_FOLLOWS, value);
            return Poll::Ready(Some(Ok(Event::Custom(Box::new(event)))));
        }
        let polled = this.inner.poll_next(cx);
        // Earlier text is void, or belongs to the previous step of an agent in the model's place.
        if let Poll::Ready(Some(Ok(Event::Reset | Event::StepStart(_)))) = &polled {
            *this.due = this.schema.is_some();
        }
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.inner.size_hint();
        match &self.schema {
            Some(_) => (least.saturating_add(usize::from(self.due)), None),
            None => (least, most),
        }
    }
}

impl<B> fmt::Debug for OutputBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputBody")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

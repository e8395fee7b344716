use super::MapEvents;
use concentric_core::Event;
use tower_layer::Layer;

/// Creates a layer that passes each event to `f`, which may change it in place.
///
/// See the [module docs](super) for an example.
pub const fn map_events<F>(f: F) -> MapEventsLayer<F>
where
    F: FnMut(&mut Event) + Clone,
{
    MapEventsLayer { f }
}

/// Creates a layer that passes a reference to each event to `f`.
///
/// See the [module docs](super) for an example.
pub fn inspect_events<F>(mut f: F) -> MapEventsLayer<impl FnMut(&mut Event) + Clone>
where
    F: FnMut(&Event) + Clone,
{
    map_events(
        #[inline]
        move |event: &mut Event| f(event),
    )
}

/// [`Layer`] that inspects or changes each event ([`MapEvents`]).
#[derive(Clone, Copy)]
pub struct MapEventsLayer<F> {
    f: F,
}

impl<S, F> Layer<S> for MapEventsLayer<F>
where
    F: Clone,
{
    type Service = MapEvents<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        MapEvents::new(inner, self.f.clone())
    }
}

concentric_core::opaque_debug!(MapEventsLayer<F>);

//! Hooks in runs that stream text as in W1: hooks that receive each event, and empty hooks. They
//! are compared with generic layers at the same place, or with none.
//!
//! In these works, "bare" is Concentric as well.

use super::{
    counters, drive,
    script::{CHUNK, Model, Script},
    stream::{count, expected},
};
use concentric_core::{AgentLayer, Context as RunContext, Event, NoTools};
use concentric_layers::hooks::{Hooks, hooks};
use concentric_layers::inspect_events;
use tower::ServiceBuilder;

/// Hooks that count the bytes of the text, outside and inside the loop.
struct Count<const I: usize>;

impl<const I: usize> Hooks for Count<I> {
    fn id(&self) -> &str {
        "count"
    }

    #[inline]
    fn event(&self, event: &Event, _: &RunContext) {
        count::<I>(event);
    }

    #[inline]
    fn model_event(&self, event: &Event, _: &RunContext) {
        count::<I>(event);
    }
}

/// Hooks that implement nothing.
struct Nothing;

impl Hooks for Nothing {
    fn id(&self) -> &str {
        "nothing"
    }
}

/// An agent with layers outside and inside the loop.
macro_rules! agent {
    ([$($run:expr),*], [$($model:expr),*]) => {
        ServiceBuilder::new()
            $(.layer($run))*
            .layer(AgentLayer::new(NoTools))
            $(.layer($model))*
            .service(Model(Script::Text(CHUNKS)))
    };
}

/// Defines one side of a work, with the number of counters and the layers.
macro_rules! sides {
    ($($name:ident: $k:literal, $run:tt, $model:tt;)*) => {
        $(
            pub(crate) fn $name<const CHUNKS: usize>(count: u64) {
                counters::reset();
                drive::concentric(agent!($run, $model), count, expected(CHUNKS));
                counters::assert($k, count * (CHUNKS * CHUNK) as u64, 0);
            }
        )*
    };
}

sides! {
    none: 0, [], [];
    run_layers: 10,
        [
            inspect_events(count::<0>), inspect_events(count::<1>),
            inspect_events(count::<2>), inspect_events(count::<3>),
            inspect_events(count::<4>), inspect_events(count::<5>),
            inspect_events(count::<6>), inspect_events(count::<7>),
            inspect_events(count::<8>), inspect_events(count::<9>)
        ],
        [];
    run_hooks: 10,
        [
            hooks(Count::<0>).run(), hooks(Count::<1>).run(),
            hooks(Count::<2>).run(), hooks(Count::<3>).run(),
            hooks(Count::<4>).run(), hooks(Count::<5>).run(),
            hooks(Count::<6>).run(), hooks(Count::<7>).run(),
            hooks(Count::<8>).run(), hooks(Count::<9>).run()
        ],
        [];
    run_empty: 0,
        [
            hooks(Nothing).run(), hooks(Nothing).run(), hooks(Nothing).run(),
            hooks(Nothing).run(), hooks(Nothing).run(), hooks(Nothing).run(),
            hooks(Nothing).run(), hooks(Nothing).run(), hooks(Nothing).run(),
            hooks(Nothing).run()
        ],
        [];
    model_layers: 10,
        [],
        [
            inspect_events(count::<0>), inspect_events(count::<1>),
            inspect_events(count::<2>), inspect_events(count::<3>),
            inspect_events(count::<4>), inspect_events(count::<5>),
            inspect_events(count::<6>), inspect_events(count::<7>),
            inspect_events(count::<8>), inspect_events(count::<9>)
        ];
    model_hooks: 10,
        [],
        [
            hooks(Count::<0>).model(), hooks(Count::<1>).model(),
            hooks(Count::<2>).model(), hooks(Count::<3>).model(),
            hooks(Count::<4>).model(), hooks(Count::<5>).model(),
            hooks(Count::<6>).model(), hooks(Count::<7>).model(),
            hooks(Count::<8>).model(), hooks(Count::<9>).model()
        ];
    one_run_empty: 0, [hooks(Nothing).run()], [];
    model_empty: 0,
        [],
        [
            hooks(Nothing).model(), hooks(Nothing).model(), hooks(Nothing).model(),
            hooks(Nothing).model(), hooks(Nothing).model(), hooks(Nothing).model(),
            hooks(Nothing).model(), hooks(Nothing).model(), hooks(Nothing).model(),
            hooks(Nothing).model()
        ];
    // One value at both places.
    one_empty: 0, [hooks(Nothing).run()], [hooks(Nothing).model()];
}

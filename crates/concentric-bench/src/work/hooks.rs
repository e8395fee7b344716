//! Hooks in runs that stream text as in W1: hooks that receive each event, and empty hooks. They
//! are compared with generic layers at the same place, or with none.
//!
//! In these works, "bare" is Concentric as well.

use super::{
    counters, drive,
    script::{CHUNK, Model, Script},
    stream::{count, expected},
};
use concentric_core::hooks::{self, Hooks, Interest};
use concentric_core::{AgentLayer, Context as RunContext, Event, NoTools};
use concentric_layers::inspect_events;
use std::sync::Arc;
use tower::ServiceBuilder;

/// Hooks that count the bytes of the text, outside and inside the loop.
struct Count<const I: usize>;

impl<const I: usize> Hooks for Count<I> {
    fn id(&self) -> &str {
        "count"
    }

    fn interest(&self) -> Interest {
        Interest::EVENT | Interest::MODEL_EVENT
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

    fn interest(&self) -> Interest {
        Interest::NONE
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
            hooks::run(Arc::new(Count::<0>)), hooks::run(Arc::new(Count::<1>)),
            hooks::run(Arc::new(Count::<2>)), hooks::run(Arc::new(Count::<3>)),
            hooks::run(Arc::new(Count::<4>)), hooks::run(Arc::new(Count::<5>)),
            hooks::run(Arc::new(Count::<6>)), hooks::run(Arc::new(Count::<7>)),
            hooks::run(Arc::new(Count::<8>)), hooks::run(Arc::new(Count::<9>))
        ],
        [];
    run_empty: 0,
        [
            hooks::run(Arc::new(Nothing)), hooks::run(Arc::new(Nothing)), hooks::run(Arc::new(Nothing)),
            hooks::run(Arc::new(Nothing)), hooks::run(Arc::new(Nothing)), hooks::run(Arc::new(Nothing)),
            hooks::run(Arc::new(Nothing)), hooks::run(Arc::new(Nothing)), hooks::run(Arc::new(Nothing)),
            hooks::run(Arc::new(Nothing))
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
            hooks::model(Arc::new(Count::<0>)), hooks::model(Arc::new(Count::<1>)),
            hooks::model(Arc::new(Count::<2>)), hooks::model(Arc::new(Count::<3>)),
            hooks::model(Arc::new(Count::<4>)), hooks::model(Arc::new(Count::<5>)),
            hooks::model(Arc::new(Count::<6>)), hooks::model(Arc::new(Count::<7>)),
            hooks::model(Arc::new(Count::<8>)), hooks::model(Arc::new(Count::<9>))
        ];
    one_run_empty: 0, [hooks::run(Arc::new(Nothing))], [];
    model_empty: 0,
        [],
        [
            hooks::model(Arc::new(Nothing)), hooks::model(Arc::new(Nothing)), hooks::model(Arc::new(Nothing)),
            hooks::model(Arc::new(Nothing)), hooks::model(Arc::new(Nothing)), hooks::model(Arc::new(Nothing)),
            hooks::model(Arc::new(Nothing)), hooks::model(Arc::new(Nothing)), hooks::model(Arc::new(Nothing)),
            hooks::model(Arc::new(Nothing))
        ];
    // One value at both places.
    one_empty: 0, [hooks::run(Arc::new(Nothing))], [hooks::model(Arc::new(Nothing))];
}

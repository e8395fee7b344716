//! W1 with five layers, over a boxed model.

use super::{
    counters, drive,
    script::{CHUNK, Model, Script},
    stream::{count, expected},
};
use concentric_core::{AgentLayer, BoxModel, NoTools};
use concentric_layers::inspect_events;
use tower::ServiceBuilder;

pub(crate) fn concentric<const CHUNKS: usize>(count_: u64) {
    let model = ServiceBuilder::new()
        .layer(inspect_events(count::<0>))
        .layer(inspect_events(count::<1>))
        .layer(inspect_events(count::<2>))
        .layer(inspect_events(count::<3>))
        .layer(inspect_events(count::<4>))
        .service(Model(Script::Text(CHUNKS)));
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .service(BoxModel::new(model));
    counters::reset();
    drive::concentric(agent, count_, expected(CHUNKS));
    counters::assert(5, count_ * (CHUNKS * CHUNK) as u64, 0);
}

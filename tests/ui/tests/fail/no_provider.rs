//! Without a provider layer, an HTTP client is no model.
use bytes::Bytes;
use concentric_core::{AgentLayer, BoxModel, NoTools};
use http::{Request, Response};
use http_body_util::Full;
use tower::{BoxError, ServiceBuilder, util::BoxCloneSyncService};

type Client = BoxCloneSyncService<Request<Full<Bytes>>, Response<Full<Bytes>>, BoxError>;

fn agent(client: Client) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .service(client),
    )
}

fn main() {
    let _ = agent;
}

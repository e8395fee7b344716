//! A layer for HTTP stands below the provider.
use bytes::Bytes;
use concentric_core::{AgentLayer, BoxModel, NoTools};
use concentric_providers::{ApiKey, OpenAiLayer};
use http::{Request, Response};
use http_body_util::Full;
use tower::{BoxError, ServiceBuilder, util::BoxCloneSyncService};
use tower_http::trace::TraceLayer;

type Client = BoxCloneSyncService<Request<Full<Bytes>>, Response<Full<Bytes>>, BoxError>;

fn agent(client: Client) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .layer(TraceLayer::new_for_http())
            .layer(OpenAiLayer::new("gpt-5.5", ApiKey::new("key")))
            .service(client),
    )
}

fn main() {
    let _ = agent;
}

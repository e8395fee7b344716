//! A provider layer stands below the agent.
use bytes::Bytes;
use concentric_core::{AgentLayer, BoxModel, NoTools};
use concentric_providers::{ApiKey, OpenAiLayer};
use http::{Request, Response};
use http_body_util::Full;
use tower::{BoxError, ServiceBuilder, util::BoxCloneSyncService};

type Client = BoxCloneSyncService<Request<Full<Bytes>>, Response<Full<Bytes>>, BoxError>;

fn agent(client: Client) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(OpenAiLayer::new("gpt-5.5", ApiKey::new("key")))
            .layer(AgentLayer::new(NoTools))
            .service(client),
    )
}

fn main() {
    let _ = agent;
}

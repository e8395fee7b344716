//! The tools and the routes of the application.

use crate::upstream::Upstream;
use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use concentric::{
    BoxModel,
    context::Context,
    http::{admission::AdmissionLayer, ag_ui::AgUiLayer},
    store::Tenant,
    tools::{Json, Tool, ToolError, Toolset, blocking_tool, blocking_tool_with_context, tool},
};
use http::{StatusCode, header};
use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{path::Path, sync::Arc, sync::Mutex};
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt};
use tower_http::{
    catch_panic::CatchPanicLayer, compression::CompressionLayer, cors::CorsLayer, trace::TraceLayer,
};

#[derive(Deserialize, JsonSchema)]
struct Order {
    id: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Item {
    item: String,
}

#[derive(Deserialize, JsonSchema)]
struct Refund {
    order: u32,
    #[schemars(range(min = 1, max = 500))]
    euros: u32,
}

#[derive(Serialize)]
struct Paid {
    euros: u32,
}

/// Reads an order from SQLite, reads the stock from an HTTP service, and refunds an order.
pub fn tools(db: &Path, http: Upstream) -> Result<Toolset, BoxError> {
    let shop = Connection::open(db)?;
    shop.execute_batch(
        "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, text TEXT);
         CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, shop_order INTEGER, euros INTEGER);
         INSERT OR IGNORE INTO orders VALUES (7, 'one lamp, paid with 4111 1111 1111 1111');",
    )?;
    let shop = Arc::new(Mutex::new(shop));
    Ok(Toolset::new()
        .tool(order(Arc::clone(&shop)))
        .tool(stock(http))
        .tool(refund(shop)))
}

fn order(shop: Arc<Mutex<Connection>>) -> Tool {
    blocking_tool("order", "Reads an order.", move |order: Order| {
        let shop = shop
            .lock()
            .map_err(|_| ToolError::new("The shop is closed."))?;
        let text = "SELECT text FROM orders WHERE id = ?1";
        Ok::<String, ToolError>(shop.query_row(text, [order.id], |row| row.get(0))?)
    })
    .read_only()
}

fn stock(http: Upstream) -> Tool {
    tool("stock", "Counts an item in stock.", move |item: Item| {
        let request = http::Request::get(format!("http://stock/{}", item.item));
        let http = http.clone();
        async move {
            let response = http.oneshot(request.body(Default::default())?).await?;
            let bytes = http_body_util::BodyExt::collect(response.into_body()).await?;
            Ok::<String, ToolError>(String::from_utf8(bytes.to_bytes().into())?)
        }
    })
    .read_only()
}

fn refund(shop: Arc<Mutex<Connection>>) -> Tool {
    let pay = move |refund: Refund, context: Context| {
        let key = context.idempotency_key().unwrap_or_default();
        let shop = shop
            .lock()
            .map_err(|_| ToolError::new("The shop is closed."))?;
        let sql = "INSERT OR IGNORE INTO refunds VALUES (?1, ?2, ?3)";
        shop.execute(sql, params![&*key, refund.order, refund.euros])?;
        Ok::<_, ToolError>(Json(Paid {
            euros: refund.euros,
        }))
    };
    blocking_tool_with_context("refund", "Refunds a part of an order.", pay).keyed()
}

/// The agent as a route, for the users that it knows.
pub fn app(agent: BoxModel) -> Router {
    let agent = AdmissionLayer::new(500).layer(AgUiLayer::new().layer(agent));
    Router::new().route_service("/agent", agent).layer(
        ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(CorsLayer::permissive())
            .layer(CompressionLayer::new())
            .layer(CatchPanicLayer::new())
            .layer(middleware::from_fn(authenticate)),
    )
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = match request.headers().get(header::AUTHORIZATION) {
        Some(key) if key == "Bearer ann-secret" => "ann",
        Some(key) if key == "Bearer eve-secret" => "eve",
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(Tenant(user.into()));
    next.run(request).await
}

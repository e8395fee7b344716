//! Lists the tools of a server.

use crate::{
    config::Config,
    definition::{RefusedTool, convert},
    http_client::transport_error,
    link::Link,
    request::Failed,
    text,
};
use concentric_core::{Error, ErrorKind, Str, ToolCall, ToolOutcome, ToolSpec};
use concentric_tools::Tool;
use rmcp::{
    model::{self, PaginatedRequestParams},
    service::ServiceError,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    sync::Arc,
};

/// The tools of a server, by the names that a model receives.
pub(crate) type Definitions = BTreeMap<Str, Definition>;

/// A tool of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Definition {
    /// The name that the server gave it.
    pub(crate) remote: Str,
    pub(crate) spec: Arc<ToolSpec>,
}

/// The tools of a listing.
pub(crate) struct Listing {
    pub(crate) offered: Definitions,
    pub(crate) refused: Vec<RefusedTool>,
}

/// Lists and checks the tools of a server.
pub(crate) async fn list(link: &Link, config: &Config) -> Result<Listing, Error> {
    let listed = pages(link, config).await?;
    let mut counts = HashMap::<&str, usize>::new();
    for tool in &listed {
        *counts.entry(&*tool.name).or_default() += 1;
    }
    let mut listing = Listing {
        offered: Definitions::new(),
        refused: Vec::new(),
    };
    for tool in &listed {
        let is_unique = counts.get(&*tool.name) == Some(&1);
        if let Err(reason) = add(tool, is_unique, config, &mut listing.offered) {
            let name = text::cut(text::visible(&tool.name), 128);
            let server = config.name.as_str();
            tracing::warn!(target: "concentric::mcp", parent: None, server, tool = name, reason, "a tool of a server was refused");
            listing.refused.push(RefusedTool {
                name: name.into(),
                reason: reason.into(),
            });
        }
    }
    Ok(listing)
}

fn add(
    tool: &model::Tool,
    is_unique: bool,
    config: &Config,
    offered: &mut Definitions,
) -> Result<(), String> {
    if !is_unique {
        return Err("the server has several tools of this name".to_owned());
    }
    let mut spec = convert(&config.name, tool, &config.limits)?;
    let annotations = config
        .annotate
        .as_ref()
        .and_then(|annotate| annotate(&spec));
    spec.annotations = annotations.unwrap_or_default();
    check(&spec)?;
    match offered.entry(spec.name.clone()) {
        Entry::Occupied(_) => Err("another tool has the same name".to_owned()),
        Entry::Vacant(entry) => {
            entry.insert(Definition {
                remote: (&*tool.name).into(),
                spec: Arc::new(spec),
            });
            Ok(())
        }
    }
}

/// Checks that the schemas can be enforced.
fn check(spec: &ToolSpec) -> Result<(), String> {
    let service = tower::service_fn(|_: ToolCall| async {
        Ok::<_, Error>(ToolOutcome::failed("The tool is not connected."))
    });
    let checked = Tool::new(spec.clone(), service).check();
    checked.map_err(|error| text::cut(text::visible(&error.to_string()), 512))
}

/// The error of the HTTP client, if the server requires another token.
fn refusal(error: &ServiceError) -> Option<&Error> {
    let ServiceError::TransportSend(error) = error else {
        return None;
    };
    match transport_error(&*error.error)? {
        Failed::Client(error) => Some(error)
            .filter(|it| matches!(it.kind(), ErrorKind::Authentication | ErrorKind::Permission)),
        _ => None,
    }
}

/// The longest cursor (bytes); all are kept until the listing ends.
const MAX_CURSOR: usize = 4 << 10;

/// Reads all pages of a listing.
async fn pages(link: &Link, config: &Config) -> Result<Vec<model::Tool>, Error> {
    let limits = &config.limits;
    let too_long = |what: String| {
        let what = format!("the tools of the MCP server `{}` {what}", config.name);
        Error::new(ErrorKind::TooLarge, what)
    };
    let (mut tools, mut bytes) = (Vec::new(), 0);
    let (mut cursor, mut seen) = (None, HashSet::new());
    for _ in 0..limits.max_pages {
        let mut request = PaginatedRequestParams::default();
        request.cursor = cursor;
        let page = link.peer.list_tools(Some(request)).await.map_err(|error| {
            let what = format!("the MCP server `{}` did not list its tools", config.name);
            match refusal(&error) {
                Some(refusal) => Error::new(refusal.kind(), what).with_source(refusal.clone()),
                None => Error::new(ErrorKind::Protocol, what).with_source(error),
            }
        })?;
        let sizes = page.tools.iter().map(|tool| {
            let json = serde_json::to_vec(tool);
            json.map_or(0, |json| json.len())
        });
        bytes += sizes.sum::<usize>();
        tools.extend(page.tools);
        if bytes > limits.max_listing_bytes {
            return Err(too_long(format!(
                "have more than {} bytes",
                limits.max_listing_bytes
            )));
        }
        if tools.len() > limits.max_tools {
            return Err(too_long(format!("are more than {}", limits.max_tools)));
        }
        cursor = page.next_cursor;
        bytes += cursor.as_ref().map_or(0, String::len);
        match &cursor {
            None => return Ok(tools),
            Some(next) if next.len() > MAX_CURSOR => {
                return Err(too_long(format!(
                    "have a cursor of more than {MAX_CURSOR} bytes"
                )));
            }
            Some(next) if !seen.insert(next.clone()) => {
                let what = format!(
                    "the MCP server `{}` repeats a page of its tools",
                    config.name
                );
                return Err(Error::new(ErrorKind::Protocol, what).with_code("repeated_cursor"));
            }
            Some(_) => {}
        }
    }
    Err(too_long(format!(
        "fill more than {} pages",
        limits.max_pages
    )))
}

use super::{OfferToolsLayer, Place, is_about, offer, search::Index};
use crate::{Matcher, Tool, Toolset, error::no_toolset};
use concentric_core::{
    ChatRequest, Str, ToolCall, ToolChoice, ToolOutcome, ToolSpec, ToolStatus, Transcript,
    agent::{Installer, Plugin},
    state::{Scope, Slot, Transient},
};
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
    fmt::Write,
    future::ready,
    sync::Arc,
};
use tower::service_fn;

/// Default limit of the tools in a search result.
const MAX_RESULTS: usize = 8;

/// The number of lines that are read of a search result, if [`LazyTools::max_results`] is not
/// larger. A client's history may contain results of any length.
const MAX_LINES: usize = 1000;

/// The limit of the groups in the description of the discovery tool.
const MAX_GROUPS: usize = 20;

/// Tools that are hidden until the model has found them.
///
/// See the [module docs](super).
#[derive(Clone, Debug)]
pub struct LazyTools {
    hidden: Matcher,
    tool: Str,
    max_results: usize,
}

impl LazyTools {
    /// Hides the tools selected by name, pattern or group.
    ///
    /// A matcher that depends on the call is evaluated with the arguments `{}`; if it fails or is
    /// asynchronous, the tool is not hidden.
    pub fn new(hidden: impl Into<Matcher>) -> Self {
        Self {
            hidden: hidden.into(),
            tool: Str::from_static("find_tools"),
            max_results: MAX_RESULTS,
        }
    }

    /// Sets the name of the discovery tool; the default is `find_tools`.
    ///
    /// Tools that were found under another name are hidden again.
    #[must_use]
    pub fn tool_name(mut self, name: impl Into<Str>) -> Self {
        self.tool = name.into();
        self
    }

    /// Limits the tools that a search returns; the default is 8. Zero counts as 1.
    #[must_use]
    pub fn max_results(mut self, results: usize) -> Self {
        self.max_results = results.max(1);
        self
    }

    /// Adds the discovery tool to `tools`; returns the layer that hides tools until they are found.
    ///
    /// The layer must be inside of the [`AgentLayer`](concentric_core::AgentLayer) that receives
    /// the toolset. Tools that are added to the toolset later are not hidden. If there is nothing
    /// to hide, the toolset is unchanged.
    pub fn wrap(self, tools: Toolset) -> (Toolset, OfferToolsLayer) {
        // Tools that make others available are always offered.
        let specs = tools.iter().filter(|tool| !tool.reveals()).map(Tool::spec);
        let specs: Vec<_> = specs.filter(|spec| is_about(&self.hidden, spec)).collect();
        let mut groups: Vec<_> = specs.iter().flat_map(|spec| &spec.groups).collect();
        groups.sort();
        groups.dedup();
        groups.truncate(MAX_GROUPS);
        let description = description(specs.len(), &groups);

        let hidden = Arc::new(Hidden {
            index: Index::new(specs.iter().map(|spec| &***spec)),
            tool: self.tool,
            max_results: self.max_results,
        });
        let hides = Arc::clone(&hidden);
        let layer = OfferToolsLayer::new(move |request| hides.hide(request));
        if hidden.index.len() == 0 {
            return (tools, layer);
        }
        let tools = tools
            .tool(discovery(Arc::clone(&hidden), description))
            .hint(move |call| hidden.hint(call));
        (tools, layer)
    }
}

/// Hides tools of the agent's [`Toolset`]; an agent without one fails.
impl Plugin for LazyTools {
    fn install(self, at: &mut Installer<'_>) {
        let Some(tools) = at.tools_mut::<Toolset>() else {
            return at.fault(no_toolset("LazyTools"));
        };
        let (wrapped, layer) = self.wrap(std::mem::take(tools));
        *tools = wrapped;
        at.model_layer(layer);
    }
}

fn description(tools: usize, groups: &[&Str]) -> String {
    let mut text = format!(
        "Finds tools by keywords or exact names. {tools} tools become available only after a \
         search. Search before you report that a task is impossible."
    );
    for (at, group) in groups.iter().enumerate() {
        let before = if at == 0 { " Tool groups: " } else { ", " };
        let _ = write!(text, "{before}{group}");
    }
    if !groups.is_empty() {
        text.push('.');
    }
    text
}

/// Creates the discovery tool.
fn discovery(hidden: Arc<Hidden>, description: String) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "Keywords for what the tool does, or exact names of tools.",
                "maxLength": 1000,
            },
        },
        "required": ["query"],
    });
    let spec = ToolSpec::new(hidden.tool.clone(), description, schema);
    Tool::new(
        spec,
        service_fn(move |call| ready(Ok::<_, Infallible>(hidden.find(&call)))),
    )
    .read_only()
    .revealing()
}

#[derive(Deserialize)]
struct Query {
    query: String,
}

/// The names that were found before a round, by discovery tool: all calls of the round need them,
/// and the history may be long.
struct FoundBefore;

impl Slot for FoundBefore {
    type Value = BTreeMap<Str, Arc<HashSet<Str>>>;
    type Keep = Transient;
    const NAME: &'static str = "concentric-tools/found-before";
    const SCOPE: Scope = Scope::Round;
}

/// The tools that are hidden until they are found.
#[derive(Debug)]
pub(super) struct Hidden {
    index: Index,
    // The name of the discovery tool.
    tool: Str,
    max_results: usize,
}

impl Hidden {
    /// Removes tools that were not found from a request; returns the names of the offered tools, if
    /// not all.
    pub(super) fn hide(&self, request: &mut ChatRequest) -> Option<Arc<[Str]>> {
        // Without the discovery tool no tool can be found.
        request.tools.get(&self.tool)?;
        let found = self.found(&request.transcript);
        let found: HashMap<&str, usize> = found.iter().map(Str::as_str).zip(0..).collect();
        let forced = match &request.options.tool_choice {
            Some(ToolChoice::Tool(name)) => Some(name),
            _ => None,
        };
        offer(&mut request.tools, |spec| {
            if !self.index.contains(&spec.name) || forced == Some(&spec.name) {
                return Place::Always;
            }
            let found = found.get(spec.name.as_str());
            found.map_or(Place::Hidden, |at| Place::Revealed(*at))
        })
    }

    /// The hidden tools that were found in `transcript`, without duplicates, in the order they were
    /// found.
    fn found(&self, transcript: &Transcript) -> Vec<Str> {
        let mut found: Vec<Str> = Vec::new();
        let mut seen: HashSet<Str> = HashSet::new();
        // The first line introduces the list.
        let lines = self.max_results.saturating_add(1).max(MAX_LINES);
        for turn in transcript {
            for result in turn.results() {
                if result.name != self.tool || result.outcome.status != ToolStatus::Done {
                    continue;
                }
                // A history may contain any names, and repeat them.
                each_listed(&result.outcome, lines, |name| {
                    if self.index.contains(name) && !seen.contains(name) {
                        let name = Str::from(name);
                        seen.insert(name.clone());
                        found.push(name);
                    }
                });
            }
        }
        found
    }

    /// The hidden tools that were found before the round of `call`.
    fn found_before(&self, call: &ToolCall) -> Arc<HashSet<Str>> {
        if let Ok(known) = call.context.state::<FoundBefore>()
            && let Some(found) = known.get(&self.tool)
        {
            return Arc::clone(found);
        }
        let found: Arc<HashSet<Str>> =
            Arc::new(self.found(call.transcript()).into_iter().collect());
        // Outside of a round the result is not stored.
        let _ = call.context.update_state::<FoundBefore>(|known| {
            let mut known = known.clone();
            known.insert(self.tool.clone(), Arc::clone(&found));
            known
        });
        found
    }

    /// Executes a call of the discovery tool.
    fn find(&self, call: &ToolCall) -> ToolOutcome {
        let Ok(Query { query }) = serde_json::from_str(call.arguments().as_str()) else {
            return ToolOutcome::failed("The arguments are not `{\"query\": \"…\"}`.");
        };
        let (tools, more) = self.index.find(&query, self.max_results);
        if tools.is_empty() {
            return ToolOutcome::done(format!(
                "None of {} tools matches. Try other keywords.",
                self.index.len()
            ));
        }
        let mut text = String::from("Found these tools, available from the next step:");
        for tool in &tools {
            let _ = write!(text, "\n- {}", tool.name);
            if !tool.summary.is_empty() {
                let _ = write!(text, ": {}", tool.summary);
            }
        }
        if more {
            text.push_str("\nMore tools match. Use more specific keywords.");
        }
        let names: Vec<&Str> = tools.iter().map(|tool| &tool.name).collect();
        let before = self.found_before(call);
        let outcome = ToolOutcome::done(text).with_data(json!({ "tools": names }));
        // Only if something new was found, so that repeated searches reach the step limit.
        match names.iter().all(|name| before.contains(*name)) {
            true => outcome,
            false => outcome.free_of_charge(),
        }
    }

    /// The hint for a call of a tool that was not found.
    fn hint(&self, call: &ToolCall) -> Option<Str> {
        let name = call.name();
        if !self.index.contains(name) || self.found_before(call).contains(name) {
            return None;
        }
        let arguments = json!({ "query": name });
        let hint = format!(
            "The call was not run: `{name}` is not available yet. Call `{}` with `{arguments}` first, \
             then call `{name}` with the parameters of its definition.",
            self.tool
        );
        Some(hint.into())
    }
}

/// Calls `read` with each tool of a search result: from its data or, in a history without it, from
/// the first `lines` of the text.
fn each_listed(outcome: &ToolOutcome, lines: usize, read: impl FnMut(&str)) {
    let data = outcome.data.as_ref().and_then(|data| data.get("tools"));
    if let Some(names) = data.and_then(|names| names.as_array()) {
        names.iter().filter_map(|name| name.as_str()).for_each(read);
        return;
    }
    let text = outcome.content.text();
    let lines = text.lines().take(lines);
    let lines = lines.filter_map(|line| line.strip_prefix("- "));
    lines
        .map(|line| line.split_once(": ").map_or(line, |(name, _)| name))
        .for_each(read);
}

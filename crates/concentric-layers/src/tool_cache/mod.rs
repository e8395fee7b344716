//! A layer that answers repeated tool calls from earlier results.
//!
//! ```
//! use concentric_core::{AgentLayer, Annotations, ChatRequest, Error};
//! use concentric_layers::tool_cache::{CacheScope, ToolCacheLayer};
//! use concentric_test::ScriptedModel;
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use serde_json::json;
//! use std::{sync::atomic::{AtomicUsize, Ordering}, time::Duration};
//! use tower::{Layer, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! static LOOKED: AtomicUsize = AtomicUsize::new(0);
//! let rates = tool("rates", "Reads the exchange rates.", |NoArguments {}| async {
//!     LOOKED.fetch_add(1, Ordering::Relaxed);
//!     "1 EUR = 1.1 USD"
//! });
//! let cache = ToolCacheLayer::new(CacheScope::Shared).ttl(Duration::from_secs(60));
//! let tools = Toolset::new().tool(rates.annotations(Annotations::read_only())).layer(cache);
//! let model = ScriptedModel::new()
//!     .tool_call("rates", json!({}))
//!     .then()
//!     .tool_call("rates", json!({}))
//!     .then()
//!     .text("1.1");
//! let agent = AgentLayer::new(tools).layer(model);
//! agent.oneshot(ChatRequest::user("1 EUR?")).await?.collect().await?;
//! assert_eq!(LOOKED.load(Ordering::Relaxed), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Which calls are cached
//!
//! | call | |
//! |---|---|
//! | of a [read-only](concentric_core::Annotations::read_only) tool | cached |
//! | of another tool | executed, unless [`tools`](ToolCacheLayer::tools) names it |
//! | refused, denied or executed elsewhere ([`settled`](concentric_core::ToolCall::settled)) | passed to the inner service |
//! | resumed with replies to a question of the tool itself | executed, since its result depends on them |
//! | resumed after an approval | cached |
//! | outside the [scope](CacheScope), such as `Thread` without a thread id or `Tenant` without a tenant | executed |
//!
//! # Which results are stored
//!
//! Outcomes with [`ToolStatus::Done`](concentric_core::ToolStatus::Done) that do not halt the run, were
//! supplied by the tool, and are within [`max_bytes`](ToolCacheLayer::max_bytes). A hit has the whole
//! outcome, with its structured data, and emits a custom event `concentric.tool_cache` with the value
//! `{"tool": name}`. A call that is executed emits none, since it has the events of its execution.
//!
//! Two calls are equal if their scope, their tool's name and input schema, and their arguments are equal.
//! The order of keys in the arguments does not matter, at any depth; properties that are absent have the
//! default of the schema. Numbers are equal if their text is. Arguments with duplicate keys are not cached. [`key`](ToolCacheLayer::key) replaces the arguments in this comparison.
//!
//! # Concurrent calls
//!
//! Concurrent equal calls share one execution. If its result is not stored, or the execution is dropped,
//! another of the calls executes, one at a time: a failure is not shared. No option executes them side by side: a
//! later call would get the same result, and [`key`](ToolCacheLayer::key) keeps calls apart whose results may differ.
//! A call that a cached call makes while
//! it executes, such as a tool of an agent that is a tool, uses stored results and waits for no other call, which
//! might wait for it.
//!
//! # A store for several processes
//!
//! With [`store`](ToolCacheLayer::store), results are also in a
//! [`CacheStore`](concentric_core::store::CacheStore), for other processes and later ones.
//!
//! ```
//! use concentric_layers::tool_cache::{CacheScope, ToolCacheLayer};
//! use concentric_store::SqliteStore;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), concentric_store::Fault> {
//! let store = SqliteStore::open_in_memory()?;
//! let cache = ToolCacheLayer::new(CacheScope::Tenant)
//!     .ttl(Duration::from_secs(60))
//!     .store(store, "exchange rates, API 2");
//! # let _ = cache;
//! # Ok(())
//! # }
//! ```
//!
//! | moment | effect |
//! |---|---|
//! | the process has neither a result nor an equal call in execution | one lookup in the store, for all calls that wait |
//! | the store has a result | a hit; it expires [`ttl`](ToolCacheLayer::ttl) after it was written, by the clock of the store |
//! | the store fails, panics, or does not respond within [`store_wait`](ToolCacheLayer::store_wait) (250 milliseconds) | the call is executed, and a warning is logged; with [`store_required`](ToolCacheLayer::store_required), the call fails and is not executed |
//! | the entry is of another version, is damaged, or is one that this layer would not store | the call is executed, and replaces it; a warning is logged |
//! | a result that is stored is there | it is written in a task, for which the call does not wait. The write is given up after 10 seconds, or if 64 others are in progress |
//!
//! A call is executed at most once, whatever the store does. Concurrent calls of different processes are executed
//! once each. The check of an entry detects accidents, not tampering: a writer of the store controls the results.
//! A result of the store may be one that the tool no longer returns: `space` names the service and its version.
//! [`CacheStore::remove_entries`](concentric_core::store::CacheStore::remove_entries) removes entries, those of
//! [`Shared`](CacheScope::Shared) with the default tenant; those of [`Run`](CacheScope::Run) and
//! [`Thread`](CacheScope::Thread) are deleted with their conversation.
//!
//! # Place in the stack
//!
//! A layer of tools, outside retries, timeouts and budgets, so that hits are free, and inside hooks and
//! logs. Gates decide before the layers, so that a hit requires a call that is allowed. A change of the
//! arguments outside the layer is part of the comparison.
//!
//! See the [recommended order](crate::order).
//!
//! # Limits
//!
//! | option | default |
//! |---|---|
//! | [`entries`](ToolCacheLayer::entries), the least recently used are evicted | 1,000 |
//! | [`ttl`](ToolCacheLayer::ttl) since the result was stored; hits do not extend it | 5 minutes |
//! | [`max_bytes`](ToolCacheLayer::max_bytes) of content and data | 256 KiB |
//! | [`store_wait`](ToolCacheLayer::store_wait) for the store, if there is one | 250 milliseconds |
//!
//! Clones of the layer and their services share one cache, in memory. Time is that of the
//! [environment](concentric_core::Environment) of the runs, which must be the same for all of them.
//!
//! # Backpressure, errors and cancellation
//!
//! Always ready; the future waits for the inner service, since a hit does not reach it. It is boxed, one
//! allocation per call. Errors pass unchanged; with [`store_required`](ToolCacheLayer::store_required), a failure of
//! the store is [`Server`](concentric_core::ErrorKind::Server) with the code `store_failed`. Dropping it drops its execution.

mod call;
mod key;
mod layer;
mod service;

pub use self::{layer::ToolCacheLayer, service::ToolCache};
pub use crate::caching::CacheScope;

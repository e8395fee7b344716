//! A console for operators: runs as they go, approvals, and the layers of stacks.
//!
//! [`Console`] is a service for any tower-based HTTP server. Its pages are HTML; they work without a script, and
//! with a keyboard alone. The example has an operator for each session that the host knows:
//!
//! ```no_run
//! use axum::Router;
//! use concentric_core::{BoxModel, describe::describe, store::Tenant};
//! use concentric_http::{ag_ui::EventLogLayer, console::{Console, Operator}};
//! use concentric_store::SqliteStore;
//!
//! # struct Login { name: String, id: String, is_approver: bool }
//! # async fn login(_: http::request::Parts) -> Option<Login> { None }
//! fn app(agent: BoxModel, store: SqliteStore, log: &EventLogLayer) -> Router {
//!     let console = Console::authorize(|request| async move {
//!         let login = login(request).await?;
//!         let operator = Operator::new(login.name, [Tenant::default()]).session(login.id);
//!         Some(match login.is_approver {
//!             true => operator.content().decide().cancel(),
//!             false => operator,
//!         })
//!     })
//!     .host("ops.example.com")
//!     .runs(store.clone())
//!     .threads(store)
//!     .events(log)
//!     .stack("clerk", describe(&agent))
//!     .replies(agent);
//!     Router::new().nest_service("/console", console)
//! }
//! # let _ = app;
//! ```
//!
//! No constructor leaves the host's decision out:
//!
//! ```compile_fail,E0599
//! # use concentric_http::console::Console;
//! let console = Console::new();
//! ```
//!
//! # Pages
//!
//! | path | shows | reads |
//! |---|---|---|
//! | `/` | live, waiting and ended runs, 50 on a page | live and ended ones from the [log](Console::events) of this process, waiting ones from the [store](Console::runs) |
//! | `/run` | one run: its state, the layers that it is in, its events as they come, its outcome and tokens, its questions; cancels it, or releases it if it is quarantined | the log; of a run without one, the messages in the store |
//! | `/approvals` | the questions of all waiting runs: tool, exact arguments and their digest, reason, expiry; approves, denies, edits, supplies a result; for further calls as well, if the question allows that and the operator [may](Operator::remember) | the store |
//! | `/threads` | the conversations of a tenant, those written last first, 50 on a page | the [store of conversations](Console::threads) |
//! | `/thread` | one conversation: its turns, 200 on a page, and its runs that have not ended | the stores |
//! | `/decisions` | the decisions of a tenant that apply to further calls, newest first, 200 on a page; revokes one, if the operator [may](Operator::remember) | the [store of decisions](Console::decisions) |
//! | `/stacks` | the layers of each [stack](Console::stack), as rings and as a list | |
//! | `/usage` | the tokens of the runs that the log keeps, by agent and by model, and their [cost](Console::cost) | the log |
//!
//! A reply resumes the run: the agent that [`replies`](Console::replies) sets is called with it, and driven to the end
//! of the run whether or not the operator stays connected. Of two operators who answer at once, the second reads that the
//! question is answered. A reply [states](concentric_core::Reply::by) the operator's name. Decisions, revocations, cancellations and
//! each access to content are events of `tracing`, with the target `concentric::console` and the operator's name.
//!
//! # Security
//!
//! | request | response |
//! |---|---|
//! | with a `Host` that is not [listed](Console::host) | `421`, which prevents DNS rebinding |
//! | without an operator | `403` |
//! | for a run of another tenant | `404`, as for an unknown one |
//! | that changes something, and that another site has sent (`Sec-Fetch-Site`, `Origin`) | `403` |
//! | with the token of another operator, session, run, question or form, or one that is older than 12 hours | `403` |
//! | that decides, cancels, releases or revokes, without the right | `403` |
//! | with a reply to a question that is answered, or about another call than the page had | `409` |
//! | with a form that is incomplete, or arguments that are no JSON object | `400` |
//! | with a reply that the question does not accept, such as arguments that the schema forbids | `422`, or the error of the run |
//!
//! Texts of models, tools and users are never markup. Controls and characters that are invisible or change the
//! direction of text are shown by their numbers (`⟦U+202E⟧`), and in JSON as escapes. A strict
//! `Content-Security-Policy` allows the console's own script and styles only, no framing, and no other origin.
//!
//! Browsers state the origin of a form over HTTPS and on this machine, not over plain HTTP to another host.
//!
//! # Place in the stack
//!
//! Beside the endpoints of the agent. The agent of [`replies`](Console::replies) has an
//! [`EventLogLayer`](crate::ag_ui::EventLogLayer), so that the resumed run is seen, and a `SuspendLayer` inside it.
//!
//! # Backpressure
//!
//! The service is always ready. At most 200 streams follow runs and lists at a time; a reader that is too slow loses
//! its stream, and never slows a run down. A stream ends after 5 minutes, and the browser opens it again where it ended,
//! so that an operator who has lost a right follows no run for longer.

mod access;
mod approvals;
mod body;
mod config;
mod decisions;
mod fold;
mod form;
mod html;
mod layout;
mod listing;
mod live;
mod operator;
mod reply;
mod respond;
mod run;
mod runs;
mod service;
mod stacks;
mod threads;
mod usage;

pub use self::{body::ResponseBody, operator::Operator, service::Console};

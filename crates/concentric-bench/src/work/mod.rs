//! The works, each with a Concentric side and a bare side.

mod boxed;
mod calls;
mod codec;
pub(crate) mod counters;
pub(crate) mod disconnect;
mod drive;
pub(crate) mod gateway;
mod growth;
mod hooks;
mod idle;
mod noop;
pub(crate) mod recorded;
mod script;
mod services;
pub(crate) mod state;
mod stream;
pub(crate) mod suspended;
mod tasks;
mod tools;
mod waiting;
mod window;
mod wire;

pub(crate) use self::wire::Wire;

/// A work with its two sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The title in the table.
    pub(crate) title: &'static str,
    /// The number of operations in a run.
    pub(crate) ops: u64,
    /// Executes the given number of runs, and asserts the output of each.
    pub(crate) bare: fn(u64),
    pub(crate) concentric: fn(u64),
    /// The sides with half of the operations in a run, if the cost of a run is measured apart.
    pub(crate) half: Option<[fn(u64); 2]>,
    /// The responses to read, if a vendor's SDK can read them as well.
    pub(crate) answers: Option<Answers>,
}

/// The responses of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    /// The API, such as `openai-chat`.
    pub(crate) api: &'static str,
    pub(crate) wires: fn() -> &'static [Wire],
}

impl Work {
    const fn reads(mut self, api: &'static str, wires: fn() -> &'static [Wire]) -> Self {
        self.answers = Some(Answers { api, wires });
        self
    }
}

/// Returns the work named `name`.
pub(crate) fn find(name: &str) -> Option<Work> {
    let named = |work: &Work| work.name == name;
    let known = ALL.iter().copied().find(named);
    known.or_else(|| recorded::all().into_iter().find(named))
}

const fn work(
    name: &'static str,
    title: &'static str,
    ops: u64,
    bare: fn(u64),
    concentric: fn(u64),
) -> Work {
    Work {
        name,
        title,
        ops,
        bare,
        concentric,
        half: None,
        answers: None,
    }
}

/// The work of [`idle`] with all events, and with half of them.
macro_rules! both {
    ($name:ident) => {
        [
            idle::$name::<{ idle::EVENTS }>,
            idle::$name::<{ idle::HALF }>,
        ]
    };
}

/// A layer around a model that has nothing to do, compared with no layer.
const fn idle(name: &'static str, title: &'static str, layer: [fn(u64); 2]) -> Work {
    compared(name, title, both!(none), layer)
}

/// The same around an agent.
const fn idle_around(name: &'static str, title: &'static str, layer: [fn(u64); 2]) -> Work {
    compared(name, title, both!(none_around), layer)
}

const fn compared(
    name: &'static str,
    title: &'static str,
    [none, half_none]: [fn(u64); 2],
    [layer, half_layer]: [fn(u64); 2],
) -> Work {
    let mut work = work(name, title, idle::EVENTS as u64, none, layer);
    work.half = Some([half_none, half_layer]);
    work
}

/// The works whose instructions, time and allocations are measured.
pub(crate) const ALL: &[Work] = {
    use stream::{k0, k1, k5, k10};
    use tools::*;
    &[
        work(
            "w1-k0",
            "W1 event, K=0",
            1_000,
            k0::bare::<1_000>,
            k0::concentric::<1_000>,
        ),
        work(
            "w1-k1",
            "W1 event, K=1",
            1_000,
            k1::bare::<1_000>,
            k1::concentric::<1_000>,
        ),
        work(
            "w1-k5",
            "W1 event, K=5",
            1_000,
            k5::bare::<1_000>,
            k5::concentric::<1_000>,
        ),
        work(
            "w1-k10",
            "W1 event, K=10",
            1_000,
            k10::bare::<1_000>,
            k10::concentric::<1_000>,
        ),
        work(
            "w1-n100",
            "W1 event, K=0, N=100",
            100,
            k0::bare::<100>,
            k0::concentric::<100>,
        ),
        work(
            "w1-n4000",
            "W1 event, K=0, N=4,000",
            4_000,
            k0::bare::<4_000>,
            k0::concentric::<4_000>,
        ),
        // In these works, "bare" is the same without a box or without extensions.
        work(
            "w1-box",
            "W1 event, K=5, BoxModel; bare: none",
            1_000,
            k5::concentric::<1_000>,
            boxed::concentric::<1_000>,
        ),
        work(
            "w4b-box",
            "W4b trivial run, K=5, BoxModel; bare: none",
            1,
            k5::concentric::<1>,
            boxed::concentric::<1>,
        ),
        work(
            "w6-extensions",
            "W6 step with 10 extensions; bare: none",
            10,
            growth::without_budgets::<0>,
            growth::with_extensions,
        ),
        // In these works, "bare" is the same without budgets.
        work(
            "w6-budgets-10",
            "W6 step, budgets, 10 messages; bare: none",
            10,
            growth::without_budgets::<10>,
            growth::with_budgets::<10>,
        ),
        work(
            "w6-budgets-100",
            "W6 step, budgets, 100 messages; bare: none",
            10,
            growth::without_budgets::<100>,
            growth::with_budgets::<100>,
        ),
        work(
            "w6-budgets-1000",
            "W6 step, budgets, 1,000 messages; bare: none",
            10,
            growth::without_budgets::<1_000>,
            growth::with_budgets::<1_000>,
        ),
        work(
            "w6-budgets-10000",
            "W6 step, budgets, 10,000 messages; bare: none",
            10,
            growth::without_budgets::<10_000>,
            growth::with_budgets::<10_000>,
        ),
        work(
            "w2-k0",
            "W2 step, K=0",
            10,
            bare_k0::<10, 1>,
            by_k0::<10, 1>,
        ),
        work(
            "w2-k5",
            "W2 step, K=5",
            10,
            bare_k5::<10, 1>,
            by_k5::<10, 1>,
        ),
        work(
            "w2-k5-each",
            "W2 step, K=5 one by one",
            10,
            bare_k5::<10, 1>,
            by_k5_each::<10, 1>,
        ),
        work(
            "w2-k5-fn",
            "W2 step, K=5 tool_from_fn",
            10,
            bare_k5::<10, 1>,
            by_k5_functions::<10, 1>,
        ),
        work(
            "w2-k5-100",
            "W2 step, K=5, 100 turns",
            100,
            bare_k5::<100, 1>,
            by_k5::<100, 1>,
        ),
        work(
            "w3-k0",
            "W3 call, K=0",
            100,
            bare_k0::<1, 100>,
            by_k0::<1, 100>,
        ),
        work(
            "w3-k5",
            "W3 call, K=5",
            100,
            bare_k5::<1, 100>,
            by_k5::<1, 100>,
        ),
        work(
            "w3-k5-each",
            "W3 call, K=5 one by one",
            100,
            bare_k5::<1, 100>,
            by_k5_each::<1, 100>,
        ),
        work(
            "w3-k5-fn",
            "W3 call, K=5 tool_from_fn",
            100,
            bare_k5::<1, 100>,
            by_k5_functions::<1, 100>,
        ),
        // In these works, "bare" is the same toolset without a gate and hooks.
        work(
            "gate-w2",
            "gate and hooks, one call a turn",
            10,
            by_k0::<10, 1>,
            by_gated::<10, 1>,
        ),
        work(
            "gate-w3",
            "gate and hooks, 100 calls at once",
            100,
            by_k0::<1, 100>,
            by_gated::<1, 100>,
        ),
        work(
            "w4b-k0",
            "W4b trivial run, K=0",
            1,
            k0::bare::<1>,
            k0::concentric::<1>,
        ),
        work(
            "w4b-k5",
            "W4b trivial run, K=5",
            1,
            k5::bare::<1>,
            k5::concentric::<1>,
        ),
        work(
            "decode",
            "decode an OpenAI chunk",
            codec::CHUNKS as u64,
            codec::bare_decode,
            codec::decode,
        )
        .reads("openai-chat", codec::wires),
        work(
            "decode-anthropic",
            "decode an Anthropic chunk",
            codec::CHUNKS as u64,
            services::bare_anthropic,
            services::anthropic,
        )
        .reads("anthropic-messages", services::anthropic_wires),
        work(
            "decode-responses",
            "decode a Responses chunk",
            codec::CHUNKS as u64,
            services::bare_responses,
            services::responses,
        )
        .reads("openai-responses", services::responses_wires),
        work(
            "decode-gemini",
            "decode a Gemini chunk",
            codec::CHUNKS as u64,
            services::bare_gemini,
            services::gemini,
        )
        .reads("gemini-generate", services::gemini_wires),
        work(
            "decode-ollama",
            "decode an Ollama chunk",
            codec::CHUNKS as u64,
            services::bare_ollama,
            services::ollama,
        )
        .reads("ollama-chat", services::ollama_wires),
        work(
            "encode",
            "encode an AG-UI text event",
            1,
            codec::bare_encode,
            codec::encode,
        ),
        // In these works, "bare" is Concentric with generic layers or without layers.
        work(
            "hooks-run",
            "event, 10 hooks of a run; bare: 10 layers",
            1_000,
            hooks::run_layers::<1_000>,
            hooks::run_hooks::<1_000>,
        ),
        work(
            "hooks-run-none",
            "event, 10 hooks of a run; bare: none",
            1_000,
            hooks::none::<1_000>,
            hooks::run_hooks::<1_000>,
        ),
        work(
            "hooks-model",
            "event, 10 hooks of a model; bare: 10 layers",
            1_000,
            hooks::model_layers::<1_000>,
            hooks::model_hooks::<1_000>,
        ),
        work(
            "hooks-model-none",
            "event, 10 hooks of a model; bare: none",
            1_000,
            hooks::none::<1_000>,
            hooks::model_hooks::<1_000>,
        ),
        work(
            "hooks-empty-k1",
            "event, an empty Hooks of a run; bare: none",
            1_000,
            hooks::none::<1_000>,
            hooks::one_run_empty::<1_000>,
        ),
        work(
            "hooks-empty-k10",
            "event, 10 empty Hooks of a run; bare: none",
            1_000,
            hooks::none::<1_000>,
            hooks::run_empty::<1_000>,
        ),
        work(
            "hooks-empty-model",
            "event, 10 empty Hooks of a model; bare: none",
            1_000,
            hooks::none::<1_000>,
            hooks::model_empty::<1_000>,
        ),
        work(
            "hooks-empty-trivial",
            "trivial run, an empty Hooks; bare: none",
            1,
            hooks::none::<1>,
            hooks::one_empty::<1>,
        ),
        // In these works, "bare" is the same without the layer.
        idle(
            "idle-circuit-breaker",
            "event, idle CircuitBreakerLayer; bare: none",
            both!(circuit_breaker),
        ),
        idle(
            "idle-commit",
            "event, idle CommitLayer; bare: none",
            both!(commit),
        ),
        idle(
            "idle-defaults",
            "event, idle RequestDefaultsLayer; bare: none",
            both!(defaults),
        ),
        idle(
            "idle-guard",
            "event, idle GuardLayer; bare: none",
            both!(guard),
        ),
        idle(
            "busy-guard",
            "event, GuardLayer of other parts; bare: none",
            both!(busy_guard),
        ),
        idle(
            "guard-12",
            "event, GuardLayer of 12 rules; bare: none",
            both!(twelve_rules_guard),
        ),
        compared(
            "guard-12-split",
            "event cut within words, GuardLayer of 12 rules; bare: none",
            both!(none_split),
            both!(twelve_rules_guard_split),
        ),
        idle(
            "idle-guardrail",
            "event, idle GuardrailLayer; bare: none",
            both!(guardrail),
        ),
        idle(
            "idle-in-flight",
            "event, idle InFlightLimitLayer; bare: none",
            both!(in_flight),
        ),
        idle(
            "idle-clear-results",
            "event, idle ClearToolResultsLayer; bare: none",
            both!(clear_results),
        ),
        idle(
            "idle-compaction",
            "event, idle CompactionLayer; bare: none",
            both!(compaction),
        ),
        idle("idle-log", "event, idle LogLayer; bare: none", both!(log)),
        idle(
            "idle-trim",
            "event, idle TrimLayer; bare: none",
            both!(trim),
        ),
        idle_around(
            "idle-memory",
            "event, idle DynamicMemoryLayer; bare: none",
            both!(memory),
        ),
        idle("idle-otel", "event, idle Otel; bare: none", both!(otel)),
        idle_around(
            "idle-otel-run",
            "event, idle Otel of a run; bare: none",
            both!(otel_around),
        ),
        work(
            "otel-call",
            "call, idle Otel; bare: none",
            1,
            idle::no_call,
            idle::otel_call,
        ),
        work(
            "otel-run",
            "run, idle Otel; bare: none",
            1,
            idle::no_run,
            idle::otel_run,
        ),
        work(
            "otel-tool",
            "tool call, idle Otel; bare: a layer that does nothing",
            idle::TOOL_CALLS as u64,
            idle::no_tool,
            idle::otel_tool,
        ),
        work(
            "log-call",
            "call, idle LogLayer; bare: none",
            1,
            idle::no_call,
            idle::log_call,
        ),
        work(
            "retry-call",
            "call, RetryModel without a retry; bare: none",
            1,
            calls::none,
            calls::retry,
        ),
        work(
            "cache-hit",
            "call, answered by ResponseCacheLayer; bare: none",
            1,
            calls::none,
            calls::cache_hit,
        ),
        work(
            "cache-miss",
            "call, stored by ResponseCacheLayer; bare: none",
            1,
            calls::none,
            calls::cache_miss,
        ),
        work(
            "cache-shared",
            "event, of two readers of ResponseCacheLayer; bare: of two calls",
            2 * calls::SHARED as u64,
            calls::two_calls,
            calls::cache_shared,
        ),
        work(
            "tool-cache-hit",
            "step, answered by ToolCacheLayer; bare: none",
            10,
            tools::by_k0::<10, 1>,
            calls::tool_cache_hit::<10>,
        ),
        work(
            "tool-cache-miss",
            "step, stored by ToolCacheLayer; bare: none",
            10,
            tools::by_k0::<10, 1>,
            calls::tool_cache_miss::<10>,
        ),
        work(
            "plan-10000",
            "call, compaction planned for 10,000 turns; bare: none",
            1,
            window::none,
            window::plan,
        ),
        work(
            "trim-10000",
            "call, TrimLayer that cuts 10,000 turns; bare: none",
            1,
            window::none,
            window::trim,
        ),
        work(
            "clear-results-10000",
            "call, ClearToolResultsLayer that clears 5,000 results; bare: none",
            1,
            window::none,
            window::clear_results,
        ),
        #[cfg(feature = "tokens-openai")]
        work(
            "tokens-bpe",
            "MiB, counted by BpeCounter; bare: by Estimator",
            1,
            window::text::estimate,
            window::text::bpe,
        ),
        idle(
            "idle-rate-limit",
            "event, RateLimitLayer with a quota of requests; bare: none",
            both!(rate_limit),
        ),
        idle(
            "busy-rate-limit",
            "event, RateLimitLayer that counts output; bare: none",
            both!(busy_rate_limit),
        ),
        idle(
            "idle-response-cache",
            "event, idle ResponseCacheLayer; bare: none",
            both!(response_cache),
        ),
        idle(
            "cache-stream",
            "event, ResponseCacheLayer that stores the answer; bare: none",
            both!(storing_cache),
        ),
        idle(
            "idle-static-memory",
            "event, StaticMemoryLayer with a document; bare: none",
            both!(static_memory),
        ),
        idle(
            "idle-budget",
            "event, idle budget of run and model; bare: none",
            both!(budget),
        ),
        idle_around(
            "idle-conversation",
            "event, ConversationLayer of a nested run; bare: none",
            both!(conversation),
        ),
        idle_around(
            "busy-conversation",
            "event, ConversationLayer that stores the run; bare: none",
            both!(busy_conversation),
        ),
        idle(
            "idle-fallback",
            "event, idle FallbackLayer; bare: none",
            both!(fallback),
        ),
        idle(
            "idle-map-events",
            "event, idle map_events; bare: none",
            both!(map),
        ),
        idle("idle-on-end", "event, idle on_end; bare: none", both!(end)),
        idle_around(
            "idle-session",
            "event, idle Session; bare: none",
            both!(session),
        ),
        idle_around(
            "idle-detach",
            "event, idle DetachLayer; bare: none",
            both!(detach),
        ),
        idle_around(
            "idle-suspend",
            "event, idle SuspendLayer; bare: none",
            both!(suspend),
        ),
        idle(
            "busy-budget",
            "event, budget of output tokens; bare: none",
            both!(budget_of_tokens),
        ),
        idle(
            "busy-otel",
            "event, Otel with a subscriber; bare: none",
            both!(busy_otel),
        ),
        idle(
            "busy-transform",
            "event, Transform that passes it; bare: none",
            both!(transform),
        ),
    ]
};

/// A work whose heap use is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Returns the heap bytes of a waiting run.
    pub(crate) bare: fn() -> f64,
    pub(crate) concentric: fn() -> f64,
}

pub(crate) const WAITING: &[Waiting] = &[
    Waiting {
        name: "w4a-k0",
        title: "W4a waiting run, K=0",
        bare: waiting::k0::bare,
        concentric: waiting::k0::concentric,
    },
    Waiting {
        name: "w4a-k5",
        title: "W4a waiting run, K=5",
        bare: waiting::k5::bare,
        concentric: waiting::k5::concentric,
    },
    Waiting {
        name: "w6-tasks",
        title: "W6 waiting run as a task, K=5",
        bare: tasks::bare,
        concentric: tasks::concentric,
    },
];

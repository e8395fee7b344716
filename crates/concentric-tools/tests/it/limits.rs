//! Panics, timeouts and long results.

use crate::common::{Log, hook, one, paced, text, tool};
use concentric_core::{
    ErrorKind, Media, MediaSource, Part, PartKind, Phase, ToolCall, ToolContent, ToolOutcome,
    ToolStatus,
};
use concentric_tools::{NoArguments, Tool, ToolError, Toolset, Truncation};
use proptest::prelude::*;
use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;
use tower::{layer::layer_fn, service_fn};

const UNKNOWN: &str =
    "This call was started earlier and its outcome is unknown. It was not retried.";

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("secret");
        }
    }
}

paced!(c042_f023_a_panic_is_an_outcome_and_the_run_goes_on);
async fn c042_f023_a_panic_is_an_outcome_and_the_run_goes_on() {
    // When the function is called, polled first, polled later, and dropped.
    let tools = Toolset::new()
        .tool(tool("call", "", |NoArguments {}| {
            if true {
                panic!("secret");
            }
            async {}
        }))
        .tool(tool("poll", "", |NoArguments {}| async {
            panic!("secret") as ()
        }))
        .tool(tool("later", "", |NoArguments {}| async {
            tokio::task::yield_now().await;
            panic!("secret") as ()
        }))
        .tool(
            tool("drop", "", |NoArguments {}| async {
                let _guard = PanicOnDrop;
                pending::<()>().await;
            })
            .timeout(Duration::ZERO),
        )
        .tool(tool("ok", "", |NoArguments {}| async { "ok" }));
    let calls = vec![
        ("call", ""),
        ("poll", ""),
        ("later", ""),
        ("drop", ""),
        ("ok", ""),
    ];
    let answer = crate::common::agent(tools.clone(), vec![calls])
        .await
        .unwrap();
    assert_eq!(
        crate::common::results(&answer),
        [
            format!("call-0-0: {UNKNOWN} The tool failed unexpectedly."),
            format!("call-0-1: {UNKNOWN} The tool failed unexpectedly."),
            format!("call-0-2: {UNKNOWN} The tool failed unexpectedly."),
            format!("call-0-3: {UNKNOWN} The tool timed out after 0ns."),
            "call-0-4: ok".to_owned(),
        ]
    );
    assert_eq!(answer.text(), "done");
    for name in ["call", "poll", "later"] {
        assert_eq!(one(&tools, name, "").await.status, ToolStatus::Unknown);
    }
}

paced!(a_panic_of_a_layer_fails_its_call_alone);
async fn a_panic_of_a_layer_fails_its_call_alone() {
    let tools = || Toolset::new().tool(tool("t", "", |NoArguments {}| async { "ok" }));
    let in_future = tools().layer(hook(|call: ToolCall| {
        assert!(call.id().as_str() != "call-0", "secret");
        crate::common::Hook::Call(call)
    }));
    let in_call = tools().layer(layer_fn(|inner: concentric_core::BoxTool| {
        service_fn(move |call: ToolCall| {
            assert!(call.id().as_str() != "call-0", "secret");
            tower::ServiceExt::oneshot(inner.clone(), call)
        })
    }));
    for tools in [in_future, in_call] {
        let all = crate::common::run(&tools, &[("t", ""), ("t", "")]).await;
        let mut all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
        all.sort_by_key(|settled| settled.index);
        assert_eq!(
            all[0].outcome.content.text(),
            "The tool failed unexpectedly."
        );
        assert_eq!(all[1].outcome.content.text(), "ok");
    }
}

fn slow() -> Tool {
    tool("slow", "", |NoArguments {}| pending::<()>()).timeout(Duration::from_secs(30))
}

paced!(paused c043_f024_f031_a_timeout_is_an_outcome_and_its_siblings_are_kept);
async fn c043_f024_f031_a_timeout_is_an_outcome_and_its_siblings_are_kept() {
    let tools = Toolset::new()
        .tool(slow())
        .tool(tool("quick", "", |NoArguments {}| async {
            sleep(Duration::from_secs(29)).await;
            "quick"
        }))
        .tool(tool("fails", "", |NoArguments {}| async {
            Err::<(), _>(ToolError::new("no"))
        }));
    let script = vec![vec![("slow", ""), ("quick", ""), ("fails", "")]];
    let answer = crate::common::agent(tools, script).await.unwrap();
    assert_eq!(
        crate::common::results(&answer),
        [
            format!("call-0-0: {UNKNOWN} The tool timed out after 30s."),
            "call-0-1: quick".to_owned(),
            "call-0-2: no".to_owned()
        ]
    );
}

paced!(paused c044_a_fatal_timeout_fails_the_run);
async fn c044_a_fatal_timeout_fails_the_run() {
    let tools = Toolset::new().tool(slow().timeout_is_fatal());
    let error = crate::common::agent(tools, vec![vec![("slow", "")]])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.phase(), Some(Phase::Call));
    assert_eq!(error.message(), "the tool `slow` timed out after 30s");
}

paced!(a_blocking_tool_is_left_behind_by_its_timeout);
async fn a_blocking_tool_is_left_behind_by_its_timeout() {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let tool = concentric_tools::blocking_tool("t", "", move |NoArguments {}| {
        let _ = ended.lock().unwrap().recv();
    });
    // Long enough for the tool's thread to start on a busy machine.
    let tools = Toolset::new().tool(tool.timeout(Duration::from_millis(500)));
    assert_eq!(
        text(&tools, "t", "").await,
        format!("{UNKNOWN} The tool timed out after 500ms.")
    );
    drop(end);
}

fn long(text: &'static str, max: usize) -> Tool {
    tool("t", "", move |NoArguments {}| async move { text }).max_result_bytes(max)
}

paced!(c045_f025_of_a_long_result_the_model_reads_the_head_and_the_tail);
async fn c045_f025_of_a_long_result_the_model_reads_the_head_and_the_tail() {
    let whole: &'static str = String::leak("0123456789".repeat(100));
    let short = text(&Toolset::new().tool(long(whole, 300)), "t", "").await;
    assert!(short.len() <= 300, "{}", short.len());
    let (head, rest) = short
        .split_once("\n[... cut here: the whole result has ")
        .unwrap();
    let (size, tail) = rest.split_once(" bytes ...]\n").unwrap();
    assert_eq!(size, "1000");
    assert!(whole.starts_with(head) && whole.ends_with(tail));
    let left = head.len() + tail.len();
    assert_eq!(head.len(), left - left / 5);

    let fits = text(&Toolset::new().tool(long(whole, 1000)), "t", "").await;
    assert_eq!(fits, whole);
}

paced!(a_result_over_64_kib_is_cut_unless_told_otherwise);
async fn a_result_over_64_kib_is_cut_unless_told_otherwise() {
    let tools = Toolset::new()
        .tool(tool("fits", "", |NoArguments {}| async {
            "x".repeat(64 * 1024)
        }))
        .tool(tool("huge", "", |NoArguments {}| async {
            "x".repeat(50_000_000)
        }))
        .tool(tool("error", "", |NoArguments {}| async {
            Err::<(), _>(ToolError::new("x".repeat(1_000_000)))
        }));
    assert_eq!(text(&tools, "fits", "").await.len(), 64 * 1024);
    for name in ["huge", "error"] {
        let text = text(&tools, name, "").await;
        assert_eq!(text.len(), 64 * 1024);
        assert!(text.contains("[... cut here"));
    }
}

paced!(whoever_wants_it_is_given_the_whole_of_a_long_result);
async fn whoever_wants_it_is_given_the_whole_of_a_long_result() {
    let whole = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&whole);
    let tool = long("0123456789", 5).on_truncation(move |truncation: Truncation| {
        let text = truncation.content.text().into_owned();
        sink.lock()
            .unwrap()
            .push((truncation.call.id.to_string(), text));
    });
    text(&Toolset::new().tool(tool), "t", "").await;
    assert_eq!(
        *whole.lock().unwrap(),
        [("call-0".to_owned(), "0123456789".to_owned())]
    );
}

paced!(a_sink_that_panics_does_not_undo_what_the_tool_did);
async fn a_sink_that_panics_does_not_undo_what_the_tool_did() {
    let tool = long("0123456789", 5).on_truncation(|_| panic!("the disk is full"));
    let outcome = one(&Toolset::new().tool(tool), "t", "").await;
    assert_eq!(outcome.status, ToolStatus::Done);
}

paced!(the_parts_of_a_long_result_are_cut_together_and_images_are_kept);
async fn the_parts_of_a_long_result_are_cut_together_and_images_are_kept() {
    let image = || Part::new(PartKind::Image(Media::new(MediaSource::Url("u".into()))));
    let tools = Toolset::new().tool(
        tool("t", "", move |NoArguments {}| async move {
            vec![
                Part::text("a".repeat(1000)),
                image(),
                Part::text("b".repeat(1000)),
                Part::text("c".repeat(1000)),
            ]
        })
        .max_result_bytes(1500),
    );
    let content = one(&tools, "t", "").await.content;
    let ToolContent::Parts(parts) = &content else {
        panic!("{content:?}");
    };
    let text = content.text();
    assert!(text.len() <= 1500);
    assert!(text.starts_with(&"a".repeat(1000)) && text.ends_with(&"c".repeat(200)));
    assert_eq!(
        text.matches("[... cut here: the whole result has 3000 bytes")
            .count(),
        1
    );
    assert_eq!(parts.len(), 4);
    assert_eq!(content.images().count(), 1);
}

paced!(a_layers_answer_is_not_cut);
async fn a_layers_answer_is_not_cut() {
    let log = Log::default();
    let tools = Toolset::new().tool(long("x", 10)).layer(hook(|_| {
        crate::common::Hook::Answer(ToolOutcome::done("y".repeat(100)))
    }));
    assert_eq!(text(&tools, "t", "").await.len(), 100);
    assert!(log.lines().is_empty());
}

proptest! {
    #[test]
    fn a_cut_result_is_text_and_short_enough(texts in prop::collection::vec("\\PC{0,60}", 0..6), max in 80_usize..300) {
        let all = texts.concat();
        let parts: Vec<_> = texts.into_iter().map(Part::text).collect();
        let tools = Toolset::new().tool(
            tool("t", "", move |NoArguments {}| {
                let parts = parts.clone();
                async move { parts }
            })
            .max_result_bytes(max),
        );
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let left = runtime.block_on(text(&tools, "t", ""));
        prop_assert!(left.len() <= max);
        if all.len() <= max {
            prop_assert_eq!(left, all);
        } else {
            let (head, rest) = left.split_once("\n[... cut here").unwrap();
            let (_, tail) = rest.split_once(" ...]\n").unwrap();
            prop_assert!(all.starts_with(head) && all.ends_with(tail));
        }
    }
}

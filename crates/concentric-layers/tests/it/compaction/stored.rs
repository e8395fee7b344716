//! Summaries that other runs and processes use.
//!
//! The test program starts itself as the other process, with [`DIRECTORY`] in its environment.

use super::*;
use concentric_core::{
    Answer, Outcome, Reply, ThreadId,
    machine::RunState,
    store::{Tenant, ThreadStore as _},
};
use concentric_layers::ConversationLayer;
use concentric_store::SqliteStore;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const DIRECTORY: &str = "CONCENTRIC_COMPACTION_DIRECTORY";

/// A stack with stores in a directory. All of it is new in each process.
struct Stack {
    directory: PathBuf,
    summarizer: ScriptedModel,
    model: ScriptedModel,
    commits: bool,
}

impl Stack {
    fn new(directory: &Path, summarizer: ScriptedModel, commits: bool) -> Self {
        let pays = ScriptedModel::new().tool_call("pay", json!({}));
        Self {
            directory: directory.to_owned(),
            summarizer,
            model: pays.then().text("Yes.").repeat(),
            commits,
        }
    }

    fn store(&self) -> SqliteStore {
        SqliteStore::open(self.directory.join("threads.db")).unwrap()
    }

    async fn run(&self, request: ChatRequest) -> Answer {
        let layer = match self.commits {
            true => layer(&self.summarizer).commit(),
            false => layer(&self.summarizer),
        };
        let agent = ServiceBuilder::new()
            .layer(ConversationLayer::new(self.store()))
            .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
            .layer(layer)
            .service(self.model.clone());
        let context = Context::builder().thread_id(ThreadId::new("t")).build();
        let request = request.with_context(context);
        let answer = agent.oneshot(request).await.unwrap();
        answer.collect().await.unwrap()
    }

    async fn history(&self) -> Transcript {
        let stored = self.store().load(Tenant::default(), ThreadId::new("t"));
        stored.await.unwrap().unwrap().history
    }
}

#[tokio::test]
async fn a_summary_is_used_by_a_run_that_another_process_resumes() {
    for commits in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let stack = Stack::new(directory.path(), summarizer(), commits);
        let answer = stack.run(ChatRequest::new(exchanges(10))).await;
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);
        assert_eq!((stack.summarizer.calls(), stack.model.calls()), (1, 1));
        let state = answer.finish.state.unwrap().to_json().unwrap();
        fs::write(directory.path().join("state"), state).unwrap();
        let name = if commits { "committed" } else { "view" };
        fs::write(directory.path().join("kind"), name).unwrap();

        let output = Command::new(std::env::current_exe().unwrap())
            .args(["compaction::stored::the_other_process", "--exact"])
            .args(["--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {text} {errors}");
        assert!(text.contains("1 passed"), "{text}");
    }
}

#[tokio::test]
#[ignore = "started by another test"]
async fn the_other_process() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let commits = fs::read_to_string(directory.join("kind")).unwrap() == "committed";
    let state = fs::read(directory.join("state")).unwrap();
    let state = RunState::from_json(&state, state.len()).unwrap();
    // Fails the summaries that are not needed.
    let summarizer = ScriptedModel::new().error(overflow()).repeat();
    let stack = Stack::new(&directory, summarizer, commits);
    let sent = ["0?", NOTE, "9?", ".", "Now?"];

    let reply = Reply::approve(state.interrupts()[0].id.clone());
    let yes = ScriptedModel::new().text("Yes.").repeat();
    let stack = Stack {
        model: yes,
        ..stack
    };
    let answer = stack.run(ChatRequest::resume(state, vec![reply])).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    let request = stack.model.request(0).transcript;
    assert_eq!(
        (texts(&request.prefix(5)), request.len()),
        (sent.map(String::from).to_vec(), 6)
    );
    let history = stack.history().await;
    match commits {
        true => assert_eq!((history.prefix(6), history.len()), (request, 7)),
        false => assert_eq!((history.prefix(21), history.len()), (exchanges(10), 23)),
    }

    // A later run of the thread, whose history is that of the store.
    stack.run(ChatRequest::user("And?")).await;
    let request = stack.model.request(1).transcript;
    assert_eq!(
        (texts(&request.prefix(5)), request.len()),
        (sent.map(String::from).to_vec(), 8)
    );
    assert_eq!(stack.summarizer.calls(), 0);
}

#[tokio::test]
async fn a_summary_is_used_by_resumed_and_later_runs_of_its_thread() {
    let summarizer = summarizer();
    let layer = layer(&summarizer);
    let thread = Slots::new();
    let in_thread = |slots: &Slots| {
        let mut context = Context::new();
        context.set_thread_slots(slots.clone());
        context
    };
    let mut all = exchanges(10);
    let first = view_in(&layer, &all, &in_thread(&thread)).await;
    assert_eq!(summarizer.calls(), 1);
    // Another run in another process, with a history that was loaded.
    let stored = serde_json::to_string(&thread.snapshot().unwrap()).unwrap();
    let restored = Slots::restore(serde_json::from_str::<Vec<_>>(&stored).unwrap());
    let json = serde_json::to_string(&all).unwrap();
    all = serde_json::from_str(&json).unwrap();
    assert_eq!(view_in(&layer, &all, &in_thread(&restored)).await, first);
    all.push(assistant("Yes."));
    all.push(user("And?"));
    let more = view_in(&layer, &all, &in_thread(&restored)).await;
    assert_eq!((more.prefix(first.len()), summarizer.calls()), (first, 1));

    // A run that is resumed without a thread.
    let context = Context::new();
    view_in(&layer, &all, &context).await;
    let resumed = Context::new();
    resumed.restore_state(&context.stored_state().unwrap());
    view_in(&layer, &all, &resumed).await;
    assert_eq!(summarizer.calls(), 2);

    // A covered turn was edited.
    let edited = all.iter().enumerate().map(|(index, turn)| match index {
        3 => assistant(long("another answer")),
        _ => turn.clone(),
    });
    let edited: Transcript = edited.collect();
    view_in(&layer, &edited, &in_thread(&restored)).await;
    assert_eq!(summarizer.calls(), 3);
    // A shorter history is below the trigger.
    let short = exchanges(2);
    assert_eq!(view_in(&layer, &short, &in_thread(&restored)).await, short);
}

#[tokio::test]
async fn nested_runs_do_not_use_the_summary_of_their_thread() {
    let summarizer = summarizer();
    let layer = layer(&summarizer);
    let thread = Slots::new();
    let mut context = Context::new();
    context.set_thread_slots(thread.clone());
    let all = exchanges(10);
    let sent = view_in(&layer, &all, &context).await;
    let nested = context.child().build();
    let other: Transcript = exchanges(12);
    view_in(&layer, &other, &nested).await;
    assert_eq!(summarizer.calls(), 2);
    // The parent's is still there.
    assert_eq!(view_in(&layer, &all, &context).await, sent);
    let mut later = Context::new();
    later.set_thread_slots(thread);
    assert_eq!(view_in(&layer, &all, &later).await, sent);
    assert_eq!(summarizer.calls(), 2);
}

#[tokio::test]
async fn parallel_runs_of_a_thread_have_valid_views() {
    let summarizer = ScriptedModel::new().pause().text("The summary.").repeat();
    let layer = layer(&summarizer);
    let thread = Slots::new();
    let runs = (0..8).map(|run| {
        let (layer, thread) = (&layer, &thread);
        async move {
            let mut context = Context::new();
            context.set_thread_slots(thread.clone());
            let mut all = exchanges(10 + run);
            for _ in 0..3 {
                let sent = view_in(layer, &all, &context).await;
                assert_view(&all, &sent);
                assert_subsequence(&all, &sent);
                all.push(assistant("Yes."));
                all.push(user("And?"));
            }
        }
    });
    join_all(runs).await;
    assert!(summarizer.calls() <= 8);
}

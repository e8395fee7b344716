//! Skills: loaded, active, suspended and resumed, and hostile.

use crate::common::{Script, pace, paced, results, tool};
use concentric_core::{
    AgentLayer, CallId, ChatRequest, ChatResponse, Error, ErrorKind, Event, EventStream, Finish,
    Message, Outcome, Part, PartKind, Repair, Reply, Role, Stability, SystemSegment, ToolCallPart,
    ToolOutcome, ToolResult, ToolStatus, Transcript,
    machine::RunState,
    state::{Slots, StoredSlot},
};
use concentric_tools::{
    Approval, LazyTools, Matcher, NoArguments, Skill, Skills, Tool, Toolset, skills::SkillError,
};
use futures_util::StreamExt;
use proptest::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

/// What a model was asked.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<ChatRequest>>>);

impl Seen {
    fn model(
        &self,
        script: Script,
    ) -> impl Service<ChatRequest, Response = ChatResponse<EventStream>, Error = Error, Future: Send>
    + Clone
    + Send
    + 'static {
        let (seen, model) = (self.clone(), crate::common::model(script));
        service_fn(move |request: ChatRequest| {
            seen.0.lock().unwrap().push(request.clone());
            let model = model.clone();
            async move { Ok(model.oneshot(request).await?.map_body(EventStream::new)) }
        })
    }

    /// The names of the tools of each step.
    fn tools(&self) -> Vec<Vec<String>> {
        let seen = self.0.lock().unwrap();
        let names = |request: &ChatRequest| {
            let tools = request.tools.iter();
            tools.map(|tool| tool.name.to_string()).collect()
        };
        seen.iter().map(names).collect()
    }

    /// The system prompt of each step.
    fn system(&self) -> Vec<String> {
        let seen = self.0.lock().unwrap();
        seen.iter().map(|request| request.system.text()).collect()
    }
}

fn named(name: &'static str) -> Tool {
    tool(name, "", move |NoArguments {}| async move {
        format!("{name} ran")
    })
}

fn toolset() -> Toolset {
    let tools = ["pdf_fill", "refund", "now", "orders_find"].map(named);
    Toolset::new().tools(tools)
}

fn skills() -> Skills {
    Skills::new()
        .skill(
            Skill::new("refunds", "Pays orders\nback.", "Look the order up.")
                .unlocks(["refund", "orders_*"]),
        )
        .skill(
            Skill::new("pdf", "Fills forms.", "Use pdf_fill.")
                .unlocks("pdf_*")
                .file("reference/forms.md", "All forms."),
        )
        .skill(Skill::new("haiku", "Writes haiku.", "5, 7, 5.").tool(named("count_syllables")))
}

async fn run(
    seen: &Seen,
    skills: Skills,
    request: ChatRequest,
    script: Script,
    limit: u32,
) -> (Vec<Event>, Finish) {
    run_with(seen, skills, toolset(), request, script, limit).await
}

async fn run_with(
    seen: &Seen,
    skills: Skills,
    tools: Toolset,
    request: ChatRequest,
    script: Script,
    limit: u32,
) -> (Vec<Event>, Finish) {
    let (tools, skills) = skills.wrap(tools).unwrap();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools).step_limit(limit))
        .layer(skills)
        .service(seen.model(script));
    let mut body = pin!(agent.oneshot(request).await.unwrap().body);
    let mut events = Vec::new();
    while let Some(event) = body.next().await {
        match event.unwrap() {
            Event::Finish(finish) => return (events, *finish),
            event => events.push(event),
        }
    }
    panic!("the run does not finish");
}

fn said(events: &[Event]) -> Vec<String> {
    let results = events.iter().filter_map(|event| match event {
        Event::ToolResult(result) => Some(format!(
            "{}: {}",
            result.call_id,
            result.outcome.content.text()
        )),
        _ => None,
    });
    results.collect()
}

const LOAD_PDF: (&str, &str) = ("load_skill", r#"{"name":"pdf"}"#);
const LOAD_REFUNDS: (&str, &str) = ("load_skill", r#"{"name":"refunds"}"#);
const LOAD_HAIKU: (&str, &str) = ("load_skill", r#"{"name":"haiku"}"#);

const CATALOGUE: &str = "The following skills provide instructions for particular tasks. If a \
    task matches a skill, call `load_skill` with its name first, and follow its instructions.\n\n\
    - haiku: Writes haiku.\n- pdf: Fills forms.\n- refunds: Pays orders back.";

paced!(c129_tools_of_a_skill_are_offered_from_the_next_step_on_and_loading_costs_no_step);
async fn c129_tools_of_a_skill_are_offered_from_the_next_step_on_and_loading_costs_no_step() {
    let seen = Seen::default();
    let script = vec![
        vec![LOAD_REFUNDS],
        vec![LOAD_PDF, LOAD_HAIKU],
        vec![
            ("refund", "{}"),
            ("pdf_fill", "{}"),
            ("count_syllables", "{}"),
        ],
    ];
    // One step for the calls, one for the last word.
    let (events, finish) = run(&seen, skills(), ChatRequest::user("hi"), script, 2).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    let always = ["now", "load_skill", "read_skill_file"];
    let refunds = ["refund", "orders_find"];
    assert_eq!(
        seen.tools(),
        [
            always.to_vec(),
            [&always[..], &refunds].concat(),
            [&always[..], &refunds, &["pdf_fill", "count_syllables"]].concat(),
            [&always[..], &refunds, &["pdf_fill", "count_syllables"]].concat(),
        ]
    );
    assert_eq!(
        said(&events),
        [
            "call-0-0: The skill `refunds` is active.\n\nLook the order up.\n\nTools, available \
             from the next step:\n- orders_find\n- refund",
            "call-1-0: The skill `pdf` is active.\n\nUse pdf_fill.\n\nFiles, readable with \
             `read_skill_file`:\n- reference/forms.md\n\nTools, available from the next \
             step:\n- pdf_fill",
            "call-1-1: The skill `haiku` is active.\n\n5, 7, 5.\n\nTools, available from the next \
             step:\n- count_syllables",
            "call-2-0: refund ran",
            "call-2-1: pdf_fill ran",
            "call-2-2: count_syllables ran",
        ]
    );
}

paced!(the_tools_of_skills_may_have_other_names);
async fn the_tools_of_skills_may_have_other_names() {
    let seen = Seen::default();
    let skills = skills().load_tool_name("open").read_tool_name("page");
    let page = ("page", r#"{"skill":"pdf","path":"reference/forms.md"}"#);
    let script = vec![vec![("open", r#"{"name":"pdf"}"#)], vec![page]];
    let (events, _) = run(&seen, skills, ChatRequest::user("hi"), script, 3).await;
    assert!(seen.system()[0].contains("call `open` with its name"));
    assert_eq!(seen.tools()[1], ["now", "open", "page", "pdf_fill"]);
    let said = said(&events);
    assert!(said[0].contains("readable with `page`"), "{said:?}");
    assert_eq!(said[1], "call-1-0: All forms.");
}

paced!(c129_loading_again_or_beside_another_call_or_in_vain_is_charged);
async fn c129_loading_again_or_beside_another_call_or_in_vain_is_charged() {
    for round in [
        vec![LOAD_PDF, ("now", "{}")],
        vec![("load_skill", r#"{"name":"nothing"}"#)],
        vec![("load_skill", "{}")],
    ] {
        let seen = Seen::default();
        let script = vec![round];
        let (_, finish) = run(&seen, skills(), ChatRequest::user("hi"), script, 1).await;
        assert_eq!(finish.outcome, Outcome::StepLimit);
    }
    // Once is free, and it can't be loaded for ever.
    let seen = Seen::default();
    let script = (0..9).map(|_| vec![LOAD_PDF]).collect();
    let (_, finish) = run(&seen, skills(), ChatRequest::user("hi"), script, 2).await;
    assert_eq!(finish.outcome, Outcome::StepLimit);
    assert_eq!(seen.tools().len(), 3);
    // Both of one round, and then no more.
    let seen = Seen::default();
    let script = (0..9).map(|_| vec![LOAD_PDF, LOAD_PDF]).collect();
    run(&seen, skills(), ChatRequest::user("hi"), script, 2).await;
    assert_eq!(seen.tools().len(), 3);
}

paced!(c130_a_call_of_a_hidden_tool_says_which_skill_to_load);
async fn c130_a_call_of_a_hidden_tool_says_which_skill_to_load() {
    let seen = Seen::default();
    let skills = skills().skill(Skill::new("shop", "Sells.", "").unlocks("orders_*"));
    let script = vec![
        // Loaded beside it is too late for this step.
        vec![("refund", "{}"), LOAD_REFUNDS],
        vec![("pdf_fill", "{}"), ("nothing", "{}"), ("refund", "{}")],
    ];
    let (events, _) = run(&seen, skills, ChatRequest::user("hi"), script, 9).await;
    let said = said(&events);
    assert_eq!(
        said[0],
        "call-0-0: The call was not run: `refund` belongs to the skill `refunds`, which is not \
         loaded. Load it with `load_skill` first."
    );
    assert!(said[2].contains("the skill `pdf`, which is not loaded"));
    assert!(said[3].starts_with("call-1-1: There is no tool `nothing`. Available tools: now, "));
    assert_eq!(said[4], "call-1-2: refund ran");

    let seen = Seen::default();
    let shop = Skill::new("shop", "Sells.", "").unlocks("orders_*");
    let script = vec![vec![("orders_find", "{}")]];
    let (events, _) = run(
        &seen,
        self::skills().skill(shop),
        ChatRequest::user("hi"),
        script,
        9,
    )
    .await;
    assert!(format!("{events:?}").contains("the skill `refunds` or `shop`, which"));
}

paced!(the_catalogue_is_the_same_bytes_in_every_step_and_order);
async fn the_catalogue_is_the_same_bytes_in_every_step_and_order() {
    let seen = Seen::default();
    let mut request = ChatRequest::user("hi").with_system("Be kind.");
    let now = SystemSegment::new("It is noon.").stable_for(Stability::Step);
    request.system.push(now);
    let script = vec![vec![LOAD_PDF], vec![("pdf_fill", "{}")]];
    run(&seen, skills(), request, script, 9).await;
    let mut turned: Vec<_> = skills().into_iter().collect();
    turned.reverse();
    let turned = turned.into_iter().collect();
    run(
        &seen,
        turned,
        ChatRequest::user("hi").with_system("Be kind."),
        vec![],
        9,
    )
    .await;
    let stable = format!("Be kind.\n\n{CATALOGUE}");
    let with_time = format!("{stable}\n\nIt is noon.");
    let steps = [with_time.clone(), with_time.clone(), with_time, stable];
    assert_eq!(seen.system(), steps);
    let requests = seen.0.lock().unwrap();
    let segments = requests[0].system.iter().map(|segment| segment.stability);
    assert_eq!(
        segments.collect::<Vec<_>>(),
        [Stability::Fixed, Stability::Fixed, Stability::Step]
    );
}

paced!(instructions_may_be_in_the_system_prompt_in_the_order_of_loading);
async fn instructions_may_be_in_the_system_prompt_in_the_order_of_loading() {
    let seen = Seen::default();
    let mut request = ChatRequest::user("hi");
    let now = SystemSegment::new("It is noon.").stable_for(Stability::Step);
    request.system.push(now);
    let script = vec![vec![LOAD_REFUNDS], vec![LOAD_HAIKU], vec![LOAD_REFUNDS]];
    let (events, _) = run(&seen, skills().instructions_in_system(), request, script, 9).await;
    let refunds = "# Skill `refunds`\n\nLook the order up.";
    let haiku = "# Skill `haiku`\n\n5, 7, 5.";
    assert_eq!(
        seen.system(),
        [
            format!("{CATALOGUE}\n\nIt is noon."),
            format!("{CATALOGUE}\n\n{refunds}\n\nIt is noon."),
            format!("{CATALOGUE}\n\n{refunds}\n\n{haiku}\n\nIt is noon."),
            format!("{CATALOGUE}\n\n{refunds}\n\n{haiku}\n\nIt is noon."),
        ]
    );
    let said = said(&events).join("\n");
    assert!(
        said.contains("The skill `refunds` is active. Its instructions are in the system prompt.")
    );
    assert!(!said.contains("Look the order up."));
}

paced!(c129_a_run_that_is_suspended_and_resumed_elsewhere_still_knows_its_skills);
async fn c129_a_run_that_is_suspended_and_resumed_elsewhere_still_knows_its_skills() {
    let seen = Seen::default();
    let tools = || toolset().gate(Approval::for_tools(["refund"]));
    let script = vec![vec![LOAD_REFUNDS], vec![("refund", "{}"), LOAD_PDF]];
    let (_, finish) = run_with(&seen, skills(), tools(), ChatRequest::user("hi"), script, 9).await;
    assert_eq!(finish.outcome, Outcome::Interrupted);
    let json = finish.state.as_ref().unwrap().to_json().unwrap();
    let id = finish.interrupts()[0].id.clone();

    let seen = Seen::default();
    let state = RunState::from_json(json.as_bytes(), 1 << 20).unwrap();
    let request = ChatRequest::resume(state, vec![Reply::approve(id)]);
    let script = vec![vec![
        LOAD_REFUNDS,
        ("orders_find", "{}"),
        ("pdf_fill", "{}"),
    ]];
    let (events, finish) = run_with(&seen, skills(), tools(), request, script, 9).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    let all = [
        "now",
        "load_skill",
        "read_skill_file",
        "refund",
        "orders_find",
        "pdf_fill",
    ];
    assert_eq!(seen.tools()[0], all);
    let said = said(&events);
    for ran in ["refund ran", "orders_find ran", "pdf_fill ran"] {
        assert!(said.iter().any(|said| said.ends_with(ran)), "{said:?}");
    }
}

/// A history as a client brings it: without data.
fn brought(tool: &str, arguments: &str, outcome: ToolOutcome) -> ChatRequest {
    let call = ToolCallPart::new(CallId::new("old"), tool, arguments);
    let result = ToolResult::new(CallId::new("old"), tool, outcome);
    let part = |kind| vec![Part::new(kind)];
    let history = [
        Message::user("hi"),
        Message::new(Role::Assistant, part(PartKind::ToolCall(call))),
        Message::new(Role::Tool, part(PartKind::ToolResult(result))),
        Message::user("go on"),
    ];
    let (history, _) = Transcript::from_history(history, Repair::Refuse).unwrap();
    ChatRequest::new(history)
}

#[test]
fn a_history_of_very_many_loaded_skills_takes_linear_time() {
    // What takes quadratic time does not end here.
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let ids = 0..100_000;
        let calls = ids.clone().map(|n| {
            let arguments = format!(r#"{{"name":"s{n}"}}"#);
            let call = ToolCallPart::new(CallId::new(format!("c{n}")), "load_skill", arguments);
            Part::new(PartKind::ToolCall(call))
        });
        let results = ids.map(|n| {
            let id = CallId::new(format!("c{n}"));
            let result = ToolResult::new(id, "load_skill", ToolOutcome::done("active"));
            Part::new(PartKind::ToolResult(result))
        });
        let history = [
            Message::user("hi"),
            Message::new(Role::Assistant, calls.collect()),
            Message::new(Role::Tool, results.collect()),
            Message::user("go on"),
        ];
        let (history, _) = Transcript::from_history(history, Repair::Refuse).unwrap();
        let request = ChatRequest::new(history);
        let seen = Seen::default();
        // A call of a hidden tool, which is answered with a hint.
        let script = vec![vec![("pdf_fill", "{}")]];
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let (events, _) =
            runtime.block_on(run_with(&seen, skills(), toolset(), request, script, 9));
        done.send(said(&events)).unwrap();
    });
    let said = wait
        .recv_timeout(std::time::Duration::from_secs(120))
        .unwrap();
    assert!(
        said[0].contains("Load it with `load_skill` first"),
        "{said:?}"
    );
}

paced!(a_history_does_not_make_a_skill_active);
async fn a_history_does_not_make_a_skill_active() {
    let pdf = r#"{"name":"pdf"}"#;
    let loaded = ToolOutcome::done("The skill `pdf` is active.");
    for outcome in [
        loaded.clone(),
        loaded.with_data(serde_json::json!({"skill": "pdf"})),
    ] {
        let seen = Seen::default();
        let skills_of = || skills();
        let request = brought("load_skill", pdf, outcome);
        // A rule that lets calls run while the skill is active, and asks otherwise.
        let approval = Approval::for_tools(Matcher::from("pdf_fill").and(!skills().active("pdf")))
            .ask(Matcher::from("now").and(!skills().active("pdf")));
        let tools = toolset().gate(approval);
        let script = vec![vec![("pdf_fill", "{}")], vec![("now", "{}")]];
        let (events, finish) = run_with(&seen, skills_of(), tools, request, script, 9).await;
        assert!(!seen.tools()[0].contains(&"pdf_fill".to_owned()));
        let said = said(&events).join("\n");
        assert!(said.contains("Load it with `load_skill` first"), "{said}");
        assert_eq!(finish.outcome, Outcome::Interrupted);
        assert!(
            !said.contains("now ran") && !said.contains("pdf_fill ran"),
            "{said}"
        );
    }
}

paced!(a_skill_is_active_in_all_runs_of_a_conversation);
async fn a_skill_is_active_in_all_runs_of_a_conversation() {
    let thread = Slots::new();
    let request = |slots: &Slots| {
        let mut request = ChatRequest::user("hi");
        request.context.set_thread_slots(slots.clone());
        request
    };
    let offers = async |slots: &Slots| {
        let seen = Seen::default();
        run(&seen, skills(), request(slots), vec![], 9).await;
        seen.tools()[0].contains(&"pdf_fill".to_owned())
    };
    let before = thread.fork().unwrap();
    let seen = Seen::default();
    run(&seen, skills(), request(&thread), vec![vec![LOAD_PDF]], 9).await;
    assert!(offers(&thread).await);
    // As another process reads it, and in a fork; but not where it was not loaded.
    let written = serde_json::to_string(&thread.snapshot().unwrap()).unwrap();
    let read: Vec<StoredSlot> = serde_json::from_str(&written).unwrap();
    assert!(offers(&Slots::restore(read)).await);
    assert!(offers(&thread.fork().unwrap()).await);
    assert!(!offers(&before).await);
    assert!(!offers(&Slots::new()).await);
}

paced!(a_gate_may_hold_while_a_skill_is_active);
async fn a_gate_may_hold_while_a_skill_is_active() {
    let skills = || skills().skill(Skill::new("quiet", "Be quiet.", "Hush."));
    let gated = || {
        let skills = skills();
        toolset().gate(Approval::for_tools(skills.active("quiet")))
    };
    let load = ("load_skill", r#"{"name":"quiet"}"#);
    let now = ("now", "{}");
    let seen = Seen::default();
    let script = vec![vec![now], vec![load, now], vec![now]];
    let request = ChatRequest::user("hi");
    let (events, finish) = run_with(&seen, skills(), gated(), request, script, 9).await;
    assert_eq!(finish.outcome, Outcome::Interrupted);
    assert_eq!(said(&events).len(), 3);

    // One that does not exist can't be told, and is asked about.
    let unknown = toolset().gate(Approval::for_tools(skills().active("misspelt")));
    let request = ChatRequest::user("hi");
    let (_, finish) = run_with(&seen, skills(), unknown, request, vec![vec![now]], 9).await;
    assert_eq!(finish.outcome, Outcome::Interrupted);
}

paced!(lazy_tools_and_skills_go_together);
async fn lazy_tools_and_skills_go_together() {
    let seen = Seen::default();
    let (tools, lazy) = LazyTools::new(Matcher::all()).wrap(toolset());
    let (tools, skills) = skills().wrap(tools).unwrap();
    let find = ("find_tools", r#"{"query":"refund now"}"#);
    let script = vec![vec![find], vec![LOAD_REFUNDS], vec![("refund", "{}")]];
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools).step_limit(2))
        .layer(lazy)
        .layer(skills)
        .service(seen.model(script));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert!(results(&answer)[2].ends_with("refund ran"));
    let always = ["find_tools", "load_skill", "read_skill_file"];
    assert_eq!(
        seen.tools()[..3],
        [
            always.to_vec(),
            [&always[..], &["now"]].concat(),
            // What a skill brings is no lazy tool; what both hide takes both.
            [&always[..], &["now", "refund"]].concat(),
        ]
    );
}

paced!(half_of_it_does_nothing);
async fn half_of_it_does_nothing() {
    let seen = Seen::default();
    let (_, layer) = skills().wrap(toolset()).unwrap();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(toolset()))
        .layer(layer)
        .service(seen.model(vec![]));
    agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(seen.tools()[0].len(), 4);
    assert_eq!(seen.system(), [""]);

    let (tools, _) = Skills::new().wrap(toolset()).unwrap();
    assert_eq!(tools.iter().count(), 4);
}

#[test]
fn what_is_wrong_in_code_is_said_when_it_is_wrapped() {
    let wrap = |skills: Skills| skills.wrap(toolset()).map(drop).map_err(|e| e.to_string());
    let one = || Skill::new("one", "x", "x");
    let error = wrap(Skills::new().skill(one()).skill(one())).unwrap_err();
    assert_eq!(error, "skill: two skills are named `one`");
    let error = wrap(Skills::new().skill(Skill::new("One", "x", "x"))).unwrap_err();
    assert!(error.contains("invalid field `name`"), "{error}");
    let error = Skills::new().edit("two", |skill| skill).unwrap_err();
    assert!(matches!(error.kind(), SkillError::Unknown(name) if *name == "two"));
    assert_eq!(Error::from(error).kind(), ErrorKind::Configuration);
    // A tool of that name is there already.
    let (tools, _) = skills().wrap(toolset().tool(named("load_skill"))).unwrap();
    assert!(tools.check().is_err());
}

// ---- folders ----

/// A folder for one test at its pace.
fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{:?}", pace()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Writes a skill into `root`, and returns its folder.
fn write(root: &Path, name: &str, manifest: impl AsRef<[u8]>) -> PathBuf {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("SKILL.md"), manifest).unwrap();
    folder
}

fn manifest(name: &str) -> String {
    format!("---\nname: {name}\ndescription: Does {name}: well.\n---\n\n# {name}\n")
}

fn kind(result: Result<Skill, SkillError>) -> SkillError {
    match result {
        Ok(skill) => panic!("{skill:?}"),
        Err(error) => {
            assert!(error.path().is_some() && error.to_string().starts_with("skill at `/"));
            let shown = format!("{:?}", error.kind());
            // `SkillError` is not `Clone`.
            match error.kind() {
                SkillError::Escapes => SkillError::Escapes,
                SkillError::NotUtf8 => SkillError::NotUtf8,
                SkillError::NotAFile => SkillError::NotAFile,
                _ => SkillError::FrontMatter(shown.into()),
            }
        }
    }
}

paced!(skills_of_a_folder_are_read_and_their_files_when_asked_for);
async fn skills_of_a_folder_are_read_and_their_files_when_asked_for() {
    let root = folder("read");
    let b = write(&root, "b", manifest("b"));
    write(&root, "a", manifest("a"));
    fs::create_dir_all(b.join("reference/deep")).unwrap();
    fs::write(b.join("reference/deep/x.md"), "deep").unwrap();
    fs::write(b.join("run.py"), "print()").unwrap();
    fs::write(b.join("image.png"), [0xff, 0xd8]).unwrap();
    fs::write(b.join("large.txt"), "x".repeat(256 * 1024 + 1)).unwrap();
    fs::write(b.join("whole.txt"), "x".repeat(256 * 1024)).unwrap();
    fs::write(b.join("empty.txt"), "").unwrap();
    fs::write(b.join(".hidden"), "x").unwrap();
    fs::write(root.join("README.md"), "x").unwrap();
    fs::create_dir_all(root.join("no-skill")).unwrap();

    let skills = Skills::from_dir(&root).unwrap();
    let names: Vec<_> = skills.iter().map(Skill::name).collect();
    assert_eq!(names, ["a", "b"]);
    let b = skills.iter().nth(1).unwrap();
    assert_eq!(b.description(), "Does b: well.");
    assert_eq!(b.instructions(), "# b");
    assert_eq!(
        b.files().map(|f| f.as_str()).collect::<Vec<_>>(),
        [
            "empty.txt",
            "image.png",
            "large.txt",
            "reference/deep/x.md",
            "run.py",
            "whole.txt"
        ]
    );

    let (tools, _) = skills.wrap(Toolset::new()).unwrap();
    let read = async |skill: &str, path: &str| {
        let arguments = serde_json::json!({ "skill": skill, "path": path }).to_string();
        let outcome = crate::common::one(&tools, "read_skill_file", &arguments).await;
        let text = outcome.content.text().into_owned();
        (outcome.status == ToolStatus::Done, text)
    };
    assert_eq!(read("b", "run.py").await, (true, "print()".to_owned()));
    assert_eq!(
        read("b", "./reference/deep/x.md").await,
        (true, "deep".to_owned())
    );
    assert_eq!(read("b", "whole.txt").await.1.len(), 256 * 1024);
    assert_eq!(
        read("b", "empty.txt").await,
        (true, "The file is empty.".to_owned())
    );
    let large = "The file `large.txt` has more than 262144 bytes.".to_owned();
    assert_eq!(read("b", "large.txt").await, (false, large));
    let image = "The file `image.png` is not UTF-8 text.".to_owned();
    assert_eq!(read("b", "image.png").await, (false, image));
    for path in [
        "../a/SKILL.md",
        "reference/../run.py",
        "/etc/passwd",
        "SKILL.md",
        ".hidden",
        "",
        "run.py\0",
        "reference",
    ] {
        let (done, text) = read("b", path).await;
        assert!(!done && text.contains("has no file"), "{path}: {text}");
    }
    let (_, text) = read("c", "run.py").await;
    assert_eq!(text, "There is no skill `c`. Available skills:\n- a\n- b");
}

#[test]
fn a_folder_goes_by_the_name_of_its_skill() {
    let root = folder("names");
    let other = write(&root, "other", manifest("one"));
    let error = Skill::from_dir(&other).unwrap_err();
    assert!(matches!(error.kind(), SkillError::NameMismatch { name } if *name == "one"));
    let error = Skill::from_dir(root.join("nothing")).unwrap_err();
    assert!(matches!(error.kind(), SkillError::Io(_)));
    assert!(std::error::Error::source(&error).is_some());
    // The rest is read all the same, for who asks for that.
    write(&root, "two", manifest("two"));
    assert!(Skills::from_dir(&root).is_err());
    let (skills, errors) = Skills::scan(&root);
    assert_eq!((skills.iter().count(), errors.len()), (1, 1));
    assert_eq!(Skills::scan(root.join("nothing")).1.len(), 1);
}

#[test]
fn hostile_folders_are_refused() {
    let root = folder("hostile");
    let huge = "x".repeat(10 * 1024 * 1024);
    for (name, text, said) in [
        (
            "huge",
            format!("{}{huge}", manifest("huge")).into_bytes(),
            "TooLarge",
        ),
        (
            "huge-front",
            format!("---\nname: {huge}\n---\n").into_bytes(),
            "TooLarge",
        ),
        (
            "front",
            format!("---\nx: {}\n---\n", "x".repeat(40_000)).into_bytes(),
            "FrontMatter",
        ),
        (
            "bytes",
            b"---\nname: bytes\ndescription: \xff\n---\n".to_vec(),
            "NotUtf8",
        ),
        ("utf16", b"\xff\xfe-\0-\0-\0\n\0".to_vec(), "NotUtf8"),
        ("empty", Vec::new(), "NoFrontMatter"),
    ] {
        let folder = write(&root, name, text);
        let kind = format!("{:?}", kind(Skill::from_dir(folder)));
        assert!(kind.contains(said), "{name}: {kind}");
    }
    let many = write(&root, "many", manifest("many"));
    for n in 0..257 {
        fs::write(many.join(format!("{n}.md")), "x").unwrap();
    }
    assert!(format!("{:?}", kind(Skill::from_dir(many))).contains("TooManyFiles"));
    let deep = write(&root, "deep", manifest("deep"));
    fs::create_dir_all(deep.join("d/".repeat(9))).unwrap();
    assert!(format!("{:?}", kind(Skill::from_dir(deep))).contains("TooDeep"));
    let bom = format!("\u{feff}{}", manifest("bom").replace('\n', "\r\n"));
    let bom = Skill::from_dir(write(&root, "bom", bom)).unwrap();
    assert_eq!((bom.name(), bom.instructions()), ("bom", "# bom"));
}

#[cfg(unix)]
paced!(no_link_leads_out_of_a_skill);
async fn no_link_leads_out_of_a_skill() {
    use std::os::unix::fs::symlink;

    let root = folder("links");
    let outside = folder("links-outside");
    fs::write(outside.join("secret.md"), "secret").unwrap();
    write(&outside, "far", manifest("far"));

    for (name, target) in [("file", "secret.md"), ("dir", "far"), ("root", "")] {
        let skill = write(&root, name, manifest(name));
        symlink(outside.join(target), skill.join("link")).unwrap();
        assert!(matches!(kind(Skill::from_dir(skill)), SkillError::Escapes));
    }
    // Nor the manifest itself, nor the folder.
    fs::create_dir_all(root.join("far")).unwrap();
    symlink(outside.join("far/SKILL.md"), root.join("far/SKILL.md")).unwrap();
    assert!(matches!(
        kind(Skill::from_dir(root.join("far"))),
        SkillError::Escapes
    ));
    fs::remove_dir_all(root.join("far")).unwrap();
    symlink(outside.join("far"), root.join("far")).unwrap();
    let (_, errors) = Skills::scan(&root);
    assert_eq!(errors.len(), 4);
    // Its owner may name it.
    assert!(Skill::from_dir(root.join("far")).is_ok());
    // One that is no file is not opened.
    fs::create_dir_all(root.join("tty")).unwrap();
    fs::create_dir_all(root.join("tty/SKILL.md")).unwrap();
    assert!(matches!(
        kind(Skill::from_dir(root.join("tty"))),
        SkillError::NotAFile
    ));

    // Links inside it do no harm, in a ring either.
    let inside = write(&root, "inside", manifest("inside"));
    fs::write(inside.join("a.md"), "a").unwrap();
    fs::write(inside.join("later.md"), "a").unwrap();
    symlink(inside.join("a.md"), inside.join("b.md")).unwrap();
    symlink(&inside, inside.join("ring")).unwrap();
    symlink(inside.join("gone"), inside.join("broken")).unwrap();
    let skill = Skill::from_dir(&inside).unwrap();
    assert_eq!(skill.files().count(), 2);
    // One that was put there since it was listed leads nowhere either.
    fs::remove_file(inside.join("later.md")).unwrap();
    symlink(outside.join("secret.md"), inside.join("later.md")).unwrap();
    let (tools, _) = Skills::new().skill(skill).wrap(Toolset::new()).unwrap();
    let arguments = r#"{"skill":"inside","path":"later.md"}"#;
    let text = crate::common::text(&tools, "read_skill_file", arguments).await;
    assert_eq!(text, "The file `later.md` could not be read.");
}

proptest! {
    #[test]
    fn nothing_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), text in "(?s).{0,300}") {
        let _ = Skill::parse(&String::from_utf8_lossy(&bytes));
        let _ = Skill::parse(&format!("---\n{}\n---\n", String::from_utf8_lossy(&bytes)));
        let _ = Skill::parse(&format!("---\nname: a\ndescription: {text}\n---\n{text}"));
    }

    #[test]
    fn what_parses_is_within_the_limits(name in "[a-z0-9-]{0,70}", description in "(?s).{0,40}") {
        let text = format!("---\nname: \"{name}\"\ndescription: {description}\n---\n");
        if let Ok(skill) = Skill::parse(&text) {
            prop_assert!(skill.check().is_ok());
            prop_assert_eq!(skill.name(), name);
        }
    }
}

paced!(the_history_shows_what_was_loaded);
async fn the_history_shows_what_was_loaded() {
    let (tools, _) = skills().wrap(toolset()).unwrap();
    let answer = crate::common::agent(tools, vec![vec![LOAD_HAIKU]])
        .await
        .unwrap();
    assert!(results(&answer)[0].contains("5, 7, 5."));
    let turn = answer.transcript().unwrap().iter().nth(1).unwrap();
    let outcome = &turn.results()[0].outcome;
    assert!(outcome.free);
    assert_eq!(
        **outcome.data.as_ref().unwrap(),
        serde_json::json!({ "skill": "haiku" })
    );
}

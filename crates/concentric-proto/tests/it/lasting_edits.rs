//! Lasting edits: of the request, and of the conversation.

use concentric_proto::{
    CallId, Event, Finish, FinishReason, HistoryError, Message, MessageId, Outcome, Part, PartKind,
    Role, Round, ToolCallPart, ToolOutcome, ToolResult, Transcript, Turn, Usage,
    machine::{Action, Input, Machine, ModelStart, RunLimits},
    run_state::RunEdits,
};

fn texts(transcript: &Transcript) -> Vec<String> {
    let texts = transcript.iter().map(|turn| turn.as_message().text());
    texts.collect()
}

fn assistant(text: &str) -> Turn {
    Turn::message(Message::assistant(text)).unwrap()
}

/// A message of a gate, which has the user's role.
fn of_gate(text: &str) -> Turn {
    Turn::message(Message::new(Role::User, vec![Part::text(text)])).unwrap()
}

fn round(id: &str) -> Turn {
    let call = ToolCallPart::new(CallId::new(id), "look", "{}");
    let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
    let result = ToolResult::new(CallId::new(id), "look", ToolOutcome::done("seen"));
    Round::new(message, vec![result]).unwrap().into()
}

#[test]
fn a_rewrite_keeps_the_users_last_message() {
    let whole: Transcript = [
        Turn::user("hi"),
        assistant("Hello."),
        Turn::user("Look."),
        round("a"),
        of_gate("Be quick."),
        round("b"),
    ]
    .into_iter()
    .collect();
    let note = || [assistant("Note.")];
    for (turns, expected) in [
        (
            0,
            vec!["Note.", "hi", "Hello.", "Look.", "", "Be quick.", ""],
        ),
        (2, vec!["Note.", "Look.", "", "Be quick.", ""]),
        (3, vec!["Note.", "Look.", "", "Be quick.", ""]),
        (4, vec!["Note.", "Look.", "Be quick.", ""]),
        (6, vec!["Note.", "Look."]),
    ] {
        let rewritten = whole.rewrite(turns, note()).unwrap();
        assert_eq!(texts(&rewritten), expected, "{turns} turns");
    }
    let (replaced, len) = (7, 6);
    let error = whole.rewrite(replaced, note()).unwrap_err();
    assert_eq!(error, HistoryError::TooShort { replaced, len });

    // Without a message that the user wrote, the last one of this role is kept.
    let gates: Transcript = [of_gate("a"), of_gate("b"), round("c")]
        .into_iter()
        .collect();
    assert_eq!(texts(&gates.rewrite(3, []).unwrap()), ["b"]);
    let none: Transcript = [round("c")].into_iter().collect();
    assert!(none.rewrite(1, []).unwrap().is_empty());
}

fn machine() -> Machine {
    let mut transcript = Transcript::new();
    transcript.push_user("hi");
    Machine::new(transcript, RunLimits::default())
}

#[test]
fn a_machine_is_edited_between_two_steps_only() {
    let mut machine = machine();
    assert!(matches!(machine.action(), Some(Action::CallModel { .. })));
    assert_eq!((machine.edits(), machine.turns()), (None, 1));
    let mut longer = machine.transcript().clone();
    let mut edits = RunEdits::default();
    edits.offered = Some(["look".into()].into());
    edits
        .rewrite(&mut longer, 0, [assistant("a"), assistant("b")])
        .unwrap();
    assert!(machine.edit(edits.clone()));
    let event = machine.action();
    assert!(matches!(event, Some(Action::Emit(Event::TranscriptReplaced(new))) if new == longer));
    // An edit replaces only those of the same part.
    assert!(machine.edit(RunEdits::default()));
    let stored = machine.edits().unwrap();
    assert_eq!((&stored.offered, stored.shortened_by), (&edits.offered, -2));
    assert_eq!((machine.transcript().len(), machine.turns()), (3, 1));

    machine.input(Input::ModelStarted(ModelStart::new(MessageId::new("m"))));
    let mut shorter = longer.clone();
    let mut late = RunEdits::default();
    late.rewrite(&mut shorter, 2, []).unwrap();
    assert!(!machine.edit(late.clone()));
    assert_eq!((machine.transcript(), machine.turns()), (&longer, 1));
    machine.input(Input::ModelEvent(Event::finish(
        FinishReason::Stop,
        Usage::default(),
    )));
    assert!(!machine.edit(late), "the run has ended");
}

#[test]
fn rewrites_apply_one_after_the_other_to_the_runs_conversation_only() {
    let mut machine = machine();
    machine.action();
    let mut conversation = machine.transcript().clone();
    let (mut outer, mut inner) = (RunEdits::default(), RunEdits::default());
    outer
        .rewrite(&mut conversation, 0, [assistant("a")])
        .unwrap();
    inner
        .rewrite(&mut conversation, 1, [assistant("b")])
        .unwrap();
    assert!(!machine.edit(inner.clone()), "it rewrites another");
    let mut both = outer.clone();
    both.extend(inner.clone());
    inner.extend(outer);
    assert!(!machine.edit(inner), "in the wrong order");
    assert_eq!((machine.edits(), machine.transcript().len()), (None, 1));
    assert!(machine.edit(both));
    assert_eq!(texts(machine.transcript()), ["b", "hi"]);
    // An equal conversation is the same one, though it was read from a store.
    let text = serde_json::to_string(machine.transcript()).unwrap();
    let mut read: Transcript = serde_json::from_str(&text).unwrap();
    let mut edits = RunEdits::default();
    edits.rewrite(&mut read, 1, []).unwrap();
    assert!(machine.edit(edits));
    assert_eq!(texts(machine.transcript()), ["hi"]);
}

#[test]
fn a_nested_agents_conversation_is_its_own() {
    let mut machine = machine();
    machine.action();
    machine.input(Input::ModelStarted(ModelStart::new(MessageId::new("m"))));
    let inner = Event::TranscriptReplaced(Transcript::new());
    machine.input(Input::ModelEvent(inner));
    machine.input(Input::ModelEvent(Event::text("Hello.")));
    let finish = Finish::new(FinishReason::Stop, Usage::default());
    machine.input(Input::ModelEvent(Event::Finish(Box::new(finish))));
    while let Some(action) = machine.action() {
        assert!(!matches!(
            action,
            Action::Emit(Event::TranscriptReplaced(_))
        ));
        if let Action::Emit(Event::Finish(finish)) = action {
            assert_eq!(finish.outcome, Outcome::Completed);
        }
    }
    assert_eq!(texts(machine.transcript()), ["hi", "Hello."]);
}

//! The state of a run in two parts: its turns, which are written once, and the rest.

use super::{Data, MAX_DEPTH, RunState, Stage, StateError, VERSION, Versioned, is_deeper_than};
use crate::{
    id::MessageId,
    interrupt::Interrupt,
    text::Str,
    transcript::{Transcript, Turn},
};
use serde::{Deserialize, Serialize};
use std::iter::successors;

/// A change of a stored run: its new turns, and the rest of its state.
///
/// The turns of a run are a list: those of its transcript, then those that an agent in place of its model has
/// beyond them, and so on. A store keeps this list, in which only the newest turns are replaced, and the
/// [head](RunHead). The bytes that it writes then do not depend on the length of the conversation.
///
/// ```
/// use concentric_proto::{
///     Transcript,
///     machine::{Machine, RunLimits},
///     run_state::RunChange,
/// };
///
/// let mut transcript = Transcript::new();
/// transcript.push_user("hi");
/// let stored = Machine::new(transcript.clone(), RunLimits::default()).state().unwrap();
/// transcript.push_user("and again");
/// let state = Machine::new(transcript.clone(), RunLimits::default()).state().unwrap();
///
/// let change = RunChange::since(&stored, &state);
/// assert_eq!((change.keep, change.turns.len()), (1, 1));
/// assert_eq!(change.head.with_turns(transcript.iter().cloned())?, state);
/// # Ok::<(), concentric_proto::run_state::StateError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunChange {
    /// The number of turns that the run keeps. Further stored turns are removed.
    pub keep: usize,
    /// The turns that are appended after those.
    pub turns: Vec<Turn>,
    /// The rest of the state, which replaces that of before.
    pub head: RunHead,
}

/// The [state of a run](RunState) without its turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    // All transcripts in it are empty.
    state: Data,
    // Those transcripts, the outermost first.
    turns: Vec<Place>,
}

/// The place of a transcript in the list of turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Place {
    // The number of turns with which the transcript around it begins, too.
    shared: usize,
    // The number of further turns.
    own: usize,
}

impl RunChange {
    /// The change that stores all of `state`.
    pub fn new(state: &RunState) -> Self {
        Self::between(None, state)
    }

    /// The change from `stored` to `state`.
    ///
    /// Turns are compared by value only if neither transcript [extends](Transcript::extends) the other.
    pub fn since(stored: &RunState, state: &RunState) -> Self {
        Self::between(Some(stored), state)
    }

    fn between(stored: Option<&RunState>, state: &RunState) -> Self {
        let old = stored.map(|stored| lists(&stored.0)).unwrap_or_default();
        let mut old = old.into_iter();
        let (mut keep, mut turns, mut is_same) = (0, Vec::new(), true);
        let new = lists(&state.0);
        for (place, list) in &new {
            let mut common = 0;
            if let Some((known, stored)) = old.next().filter(|_| is_same) {
                if known.shared == place.shared {
                    common = list.common_len(stored).saturating_sub(place.shared);
                }
                is_same = common == known.own;
            }
            is_same &= common == place.own;
            keep += common;
            turns.extend(list.turns_after(place.shared + common));
        }
        let mut head = state.0.clone();
        let mut next = Some(&mut head);
        while let Some(data) = next {
            data.transcript = Transcript::new();
            next = nested(data);
        }
        let head = RunHead {
            state: head,
            turns: new.into_iter().map(|(place, _)| place).collect(),
        };
        Self { keep, turns, head }
    }
}

impl From<RunState> for RunChange {
    fn from(state: RunState) -> Self {
        Self::new(&state)
    }
}

/// The transcripts of a run and of the agents in place of its model, with their places.
fn lists(state: &Data) -> Vec<(Place, &Transcript)> {
    let states = successors(Some(state), |data| match &data.stage {
        Stage::Inner(inner) => Some(&inner.state),
        _ => None,
    });
    let mut around: Option<&Transcript> = None;
    let lists = states.map(|Data { transcript, .. }| {
        let shared = around.map_or(0, |around| transcript.common_len(around));
        around = Some(transcript);
        let own = transcript.len() - shared;
        (Place { shared, own }, transcript)
    });
    lists.collect()
}

impl RunHead {
    /// Reads a head of at most `max_bytes`.
    ///
    /// # Errors
    ///
    /// Those of [`RunState::from_json`].
    pub fn from_json(json: &[u8], max_bytes: usize) -> Result<Self, StateError> {
        #[derive(Deserialize)]
        struct Stored {
            state: Versioned,
        }
        if json.len() > max_bytes {
            return Err(StateError::TooLarge(json.len()));
        }
        // A head of another version may have another form.
        let Stored { state } = serde_json::from_slice(json)?;
        match state.version {
            VERSION => Ok(serde_json::from_slice(json)?),
            version => Err(StateError::Version(version)),
        }
    }

    /// Serializes the head so that [`from_json`](Self::from_json) can read it.
    ///
    /// # Errors
    ///
    /// [`StateError::TooDeep`]: a value in the state is nested too deeply to be read.
    pub fn to_json(&self) -> Result<String, StateError> {
        let json = serde_json::to_string(self)?;
        match is_deeper_than(MAX_DEPTH, &json) {
            true => Err(StateError::TooDeep),
            false => Ok(json),
        }
    }

    /// The number of turns of the state.
    pub fn turn_count(&self) -> usize {
        let own = self.turns.iter().map(|place| place.own);
        own.fold(0, usize::saturating_add)
    }

    /// The interrupts that the run waits on.
    pub fn interrupts(&self) -> Vec<&Interrupt> {
        self.state.interrupts()
    }

    /// The id of the message whose round is open.
    pub fn open_message(&self) -> Option<&MessageId> {
        match &self.state.stage {
            Stage::Round(round) => round.message.id.as_ref(),
            _ => None,
        }
    }

    /// Returns the state with all of its turns.
    ///
    /// # Errors
    ///
    /// The number of turns is another one than that of the state, or the state is inconsistent.
    pub fn with_turns(self, turns: impl IntoIterator<Item = Turn>) -> Result<RunState, StateError> {
        let malformed = |why| StateError::Malformed(Str::from_static(why));
        let (mut state, mut turns) = (self.state, turns.into_iter());
        let (mut next, mut around) = (Some(&mut state), Transcript::new());
        for Place { shared, own } in self.turns {
            let data = next.ok_or_else(|| malformed("a transcript has no agent"))?;
            data.transcript = around.prefix(shared);
            data.transcript.extend(turns.by_ref().take(own));
            if Some(data.transcript.len()) != shared.checked_add(own) {
                return Err(malformed("turns are missing"));
            }
            around = data.transcript.clone();
            next = nested(data);
        }
        if next.is_some() || turns.next().is_some() {
            return Err(malformed("there are more turns or agents than transcripts"));
        }
        state.check()?;
        Ok(RunState(state))
    }
}

/// The state of the agent in place of the model.
fn nested(data: &mut Data) -> Option<&mut Data> {
    match &mut data.stage {
        Stage::Inner(inner) => Some(&mut inner.state),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Said, *};
    use crate::usage::Usage;

    /// The state of agents with these transcripts, each in place of the model of the one before it.
    fn state_of(transcripts: &[Transcript]) -> RunState {
        let states = transcripts.iter().rev().map(|list| Data::new(list.clone()));
        let state = states
            .map(RunState)
            .reduce(|inner, RunState(outer)| outer.around(Said::nothing(Usage::default()), inner))
            .unwrap();
        // Stored numbers of tokens are exact.
        RunState(state.0.to_stored())
    }

    /// Applies a change as a store does.
    fn apply(change: RunChange, turns: &mut Vec<Turn>) -> RunState {
        assert!(change.keep <= turns.len(), "{change:?}");
        turns.truncate(change.keep);
        turns.extend(change.turns);
        let json = change.head.to_json().unwrap();
        let head = RunHead::from_json(json.as_bytes(), json.len()).unwrap();
        assert_eq!(head.turn_count(), turns.len());
        head.with_turns(turns.iter().cloned()).unwrap()
    }

    fn step(kind: usize, at: usize, transcripts: &mut Vec<Transcript>) {
        let Some(mut last) = transcripts.pop() else {
            return;
        };
        let turn = Turn::user(format!("turn {at}"));
        match kind {
            // A step of the innermost agent.
            0 => last.push(turn),
            // An agent begins with the transcript of its caller.
            1 => transcripts.push(last.clone()),
            // The same, but a layer in between has built the transcript again, and added a turn.
            2 => {
                transcripts.push(last.clone());
                last = last.iter().cloned().chain([turn]).collect();
            }
            // An agent ends, and its caller continues.
            3 => {
                if let Some(caller) = transcripts.pop() {
                    last = caller;
                }
                last.push(turn);
            }
            // The conversation is shortened.
            _ => last = last.turns_after(1).into_iter().collect(),
        }
        transcripts.push(last);
    }

    #[test]
    fn changes_result_in_the_state_that_they_were_made_of() {
        const KINDS: usize = 5;
        const STEPS: u32 = 5;
        for order in 0..KINDS.pow(STEPS) {
            let mut transcripts = vec![["a", "b"].into_iter().map(Turn::user).collect()];
            let mut stored = state_of(&transcripts);
            let mut turns = Vec::new();
            assert_eq!(apply(RunChange::new(&stored), &mut turns), stored);
            for at in 0..STEPS {
                step(order / KINDS.pow(at) % KINDS, at as usize, &mut transcripts);
                let state = state_of(&transcripts);
                let read = apply(RunChange::since(&stored, &state), &mut turns);
                assert_eq!(read, state, "order {order}, step {at}");
                // A run that was read shares no turns with the one that was written.
                stored = if order % 2 == 0 { state } else { read };
            }
        }
    }

    #[test]
    fn a_step_writes_its_own_turn_only() {
        let mut transcripts = vec![["a", "b"].into_iter().map(Turn::user).collect()];
        for (kind, keep, new) in [(0, 2, 1), (1, 3, 0), (0, 3, 1), (0, 4, 1), (3, 3, 1)] {
            let stored = state_of(&transcripts);
            step(kind, 0, &mut transcripts);
            let change = RunChange::since(&stored, &state_of(&transcripts));
            assert_eq!((change.keep, change.turns.len()), (keep, new), "{kind}");
        }
    }

    #[test]
    fn turns_of_another_state_are_rejected() {
        let state = state_of(&[
            ["a", "b"].into_iter().map(Turn::user).collect(),
            ["a", "b", "c"].into_iter().map(Turn::user).collect(),
        ]);
        let head = RunChange::new(&state).head;
        for len in [0, 2, 4] {
            let turns = ["a", "b", "c", "d"].map(Turn::user).into_iter().take(len);
            let read = head.clone().with_turns(turns);
            assert!(matches!(read, Err(StateError::Malformed(_))), "{len}");
        }
        for (from, to) in [
            (r#""shared":2"#, r#""shared":3"#),
            (r#""shared":2"#, r#""shared":18446744073709551615"#),
            (r#""own":1"#, r#""own":18446744073709551615"#),
            (r#",{"shared":2,"own":1}"#, ""),
            (
                r#""shared":2,"own":1}"#,
                r#""shared":2,"own":1},{"shared":0,"own":0}"#,
            ),
        ] {
            let json = head.to_json().unwrap();
            let changed = json.replacen(from, to, 1);
            assert_ne!(json, changed, "{from}");
            let head = RunHead::from_json(changed.as_bytes(), usize::MAX).unwrap();
            let turns = ["a", "b", "c"].map(Turn::user);
            assert!(head.with_turns(turns).is_err(), "{to}");
        }
    }

    #[test]
    fn a_head_of_another_version_is_not_taken_for_a_damaged_one() {
        let json = r#"{"state":{"version":9,"later":[]},"turns":"elsewhere"}"#;
        let read = RunHead::from_json(json.as_bytes(), usize::MAX);
        assert_eq!(read, Err(StateError::Version(9)));
    }
}

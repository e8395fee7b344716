//! Where a conversation is cut.

use super::state::{Cut, Step};
use crate::window::{current_exchange, is_by_user, newest_messages};
use concentric_core::{Transcript, Turn};

/// The limits of a cut, in tokens that are not corrected.
pub(super) struct Limits {
    /// Of the turns after the cut.
    pub(super) keep: u64,
    /// Of the turns after the cut, if that is where an exchange begins.
    pub(super) exchange: u64,
    /// Whether the cut may be in the current exchange.
    pub(super) cuts_exchange: bool,
}

/// Returns the cut of a conversation with these turns, without its summary; `None` if it would leave out
/// nothing.
pub(super) fn cut(
    of: &Transcript,
    turns: &[&Turn],
    step: &Step,
    head: usize,
    limits: &Limits,
    weigh: impl Fn(&Turn) -> u64,
) -> Option<Cut> {
    let earlier = step.summary.as_ref().map_or(0, |summary| summary.cut.end);
    let earlier = earlier.max(step.cut.end);
    // The model has not seen the results of the last round.
    let round = turns.iter().rposition(|turn| turn.as_round().is_some());
    let last = round.unwrap_or(turns.len());
    let exchanges = [current_exchange(of), newest_messages(of, 1)];
    let first = earlier.max(head) + 1;

    let mut sum = 0;
    // The cut that keeps as much as it may, and the last ones that keep an exchange whole.
    let (mut best, mut starts) = (turns.len(), [None; 2]);
    for (index, turn) in turns.iter().enumerate().skip(first).rev() {
        sum += weigh(turn);
        if sum <= limits.keep {
            best = index;
        }
        for (exchange, start) in exchanges.iter().zip(&mut starts) {
            if index == *exchange && sum <= limits.exchange {
                *start = Some(index);
            }
        }
        if sum > limits.keep.max(limits.exchange) {
            break;
        }
    }
    let start = starts.into_iter().flatten().next();
    let end = match start {
        Some(start) => best.min(start),
        None if limits.cuts_exchange => best.min(last),
        None => return None,
    };
    if end < first {
        return None;
    }
    // The newest messages of the user are kept, and earlier ones of the exchange if there are few.
    let mut sum = 0;
    let mut messages: Vec<usize> = Vec::new();
    for (index, turn) in turns
        .iter()
        .enumerate()
        .take(end)
        .skip(exchanges[0].max(head))
        .rev()
    {
        if !is_by_user(turn) {
            continue;
        }
        sum += weigh(turn);
        if index < exchanges[1] && sum > limits.exchange / 2 {
            break;
        }
        messages.push(index);
    }
    messages.reverse();
    let cut = Cut {
        end,
        head,
        messages,
        text: None,
    };
    // At least one more turn is left out.
    let is_more = (head..end).any(|index| !cut.keeps(index) && step.cut.keeps(index));
    is_more.then_some(cut)
}

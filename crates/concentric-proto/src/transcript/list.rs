use super::{HistoryError, OpenRound, Repair, Turn};
use crate::{
    message::{Message, Role},
    text::Str,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    fmt,
    iter::{Rev, successors},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    vec,
};

/// The history of a conversation.
///
/// See the [module docs](super).
// A persistent list: appending shares the existing turns instead of copying them.
#[derive(Clone, Default)]
pub struct Transcript {
    last: Option<Arc<Node>>,
}

struct Node {
    turn: Turn,
    before: Transcript,
    len: usize,
    // The size of the transcript up to this turn, plus 1; 0 if it was not computed yet.
    size: AtomicU64,
}

impl Transcript {
    /// Creates an empty transcript.
    pub const fn new() -> Self {
        Self { last: None }
    }

    /// Creates a transcript from the history of a client.
    ///
    /// If calls of the last message have no results, that message is returned as an [`OpenRound`]. The
    /// rest must be complete, or is completed with [`Repair::Close`].
    ///
    /// # Errors
    ///
    /// With [`Repair::Refuse`], if an earlier call has no result, a result has no call, or a call
    /// or result is duplicated.
    pub fn from_history(
        messages: impl IntoIterator<Item = Message>,
        repair: Repair,
    ) -> Result<(Self, Option<OpenRound>), HistoryError> {
        super::history::read(messages, repair)
    }

    /// Appends `turn`.
    pub fn push(&mut self, turn: impl Into<Turn>) {
        let before = std::mem::take(self);
        let len = before.len() + 1;
        self.last = Some(Arc::new(Node {
            turn: turn.into(),
            before,
            len,
            size: AtomicU64::new(0),
        }));
    }

    /// Appends a user message with one text part.
    pub fn push_user(&mut self, text: impl Into<Str>) {
        self.push(Turn::user(text));
    }

    /// Returns this conversation with `by` in place of its first `turns` turns. The user's last
    /// message is kept, after `by`.
    ///
    /// # Errors
    ///
    /// [`HistoryError::TooShort`]: there are fewer turns.
    pub fn rewrite(
        &self,
        turns: usize,
        by: impl IntoIterator<Item = Turn>,
    ) -> Result<Self, HistoryError> {
        let len = self.len();
        let Some(after) = len.checked_sub(turns) else {
            let replaced = turns;
            return Err(HistoryError::TooShort { replaced, len });
        };
        // Gates and layers also add messages of this role.
        let by_user = self.rev().position(Turn::is_by_user);
        let last = by_user.or_else(|| {
            let mut roles = self.rev().map(|turn| turn.as_message().role);
            roles.position(|role| role == Role::User)
        });
        let kept = self.rev().enumerate();
        let kept = kept.filter(|(at, _)| *at < after || Some(*at) == last);
        let kept: Vec<&Turn> = kept.map(|(_, turn)| turn).collect();
        let kept = kept.into_iter().rev().cloned();
        Ok(by.into_iter().chain(kept).collect())
    }

    /// The number of turns.
    pub fn len(&self) -> usize {
        self.last.as_ref().map_or(0, |node| node.len)
    }

    /// The approximate size of the content; a token of a usual model has about four.
    ///
    /// It is the number of bytes of plain text. A character of Chinese, Japanese or Korean has one more, JSON has 40
    /// for 33 bytes, an image 4,000, an audio clip 2,000, a document 12,000, and other content 4,000.
    ///
    /// The size is kept with the turns, so only new turns are measured.
    pub fn size(&self) -> u64 {
        let (mut size, mut list) = (0, self);
        while let Some(node) = &list.last {
            if let Some(known) = node.size.load(Relaxed).checked_sub(1) {
                size += known;
                break;
            }
            size += node.turn.size();
            list = &node.before;
        }
        // All prefixes, since any of them may be shared with another transcript.
        let (mut left, mut list) = (size, self);
        while let Some(node) = &list.last
            && node.size.load(Relaxed) == 0
        {
            node.size.store(left + 1, Relaxed);
            left -= node.turn.size();
            list = &node.before;
        }
        size
    }

    /// Returns whether there are no turns.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// The newest turn.
    pub fn last(&self) -> Option<&Turn> {
        self.last.as_ref().map(|node| &node.turn)
    }

    /// The newest message of the user.
    pub fn user_message(&self) -> Option<&Message> {
        let nodes = successors(self.last.as_deref(), |node| node.before.last.as_deref());
        nodes
            .map(|node| node.turn.as_message())
            .find(|message| message.role == Role::User)
    }

    /// The transcript without its newest turn.
    pub fn before_last(&self) -> Option<&Self> {
        self.last.as_ref().map(|node| &node.before)
    }

    /// The first `len` turns, which are shared; the whole transcript if it is not longer.
    pub fn prefix(&self, len: usize) -> Self {
        let mut list = self;
        while let Some(node) = &list.last
            && node.len > len
        {
            list = &node.before;
        }
        list.clone()
    }

    /// The turns after the first `len`, the oldest first.
    pub fn turns_after(&self, len: usize) -> Vec<Turn> {
        let count = self.len().saturating_sub(len);
        let mut turns: Vec<Turn> = self.rev().take(count).cloned().collect();
        turns.reverse();
        turns
    }

    /// The number of leading turns that both transcripts have. Turns are compared by value unless
    /// one transcript [extends](Self::extends) the other.
    pub fn common_len(&self, other: &Self) -> usize {
        let len = self.len().min(other.len());
        if self.extends(other) || other.extends(self) {
            return len;
        }
        let pairs = self.iter().zip(other.iter());
        pairs.take_while(|(one, other)| one == other).count()
    }

    /// Iterates over the turns from the newest to the oldest, without allocating.
    pub fn rev(&self) -> impl Iterator<Item = &Turn> {
        std::iter::successors(self.last.as_deref(), |node| node.before.last.as_deref())
            .map(|node| &node.turn)
    }

    /// Iterates over the turns from the oldest to the newest.
    pub fn iter(&self) -> Rev<vec::IntoIter<&Turn>> {
        let mut turns: Vec<&Turn> = Vec::with_capacity(self.len());
        turns.extend(self.rev());
        turns.into_iter().rev()
    }

    /// Returns whether `other` is a shared prefix of this transcript, or this transcript itself.
    pub fn extends(&self, other: &Self) -> bool {
        let Some(target) = &other.last else {
            return true;
        };
        let mut list = self;
        while let Some(node) = &list.last {
            if node.len <= target.len {
                return Arc::ptr_eq(node, target);
            }
            list = &node.before;
        }
        false
    }
}

impl Drop for Transcript {
    // The derived implementation recurses once per turn and overflows the stack for a long history.
    fn drop(&mut self) {
        let mut next = self.last.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.before.last.take();
        }
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl PartialEq for Transcript {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.last, &other.last) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        same || (self.len() == other.len() && self.rev().eq(other.rev()))
    }
}

impl FromIterator<Turn> for Transcript {
    fn from_iter<I: IntoIterator<Item = Turn>>(turns: I) -> Self {
        let mut transcript = Self::new();
        transcript.extend(turns);
        transcript
    }
}

impl Extend<Turn> for Transcript {
    fn extend<I: IntoIterator<Item = Turn>>(&mut self, turns: I) {
        for turn in turns {
            self.push(turn);
        }
    }
}

impl<'a> IntoIterator for &'a Transcript {
    type Item = &'a Turn;
    type IntoIter = Rev<vec::IntoIter<&'a Turn>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Serialize for Transcript {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for Transcript {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Turn>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shares_existing_turns() {
        let mut a = Transcript::new();
        a.push_user("one");
        let mut b = a.clone();
        b.push_user("two");
        assert_eq!((a.len(), b.len()), (1, 2));
        assert!(b.extends(&a) && !a.extends(&b));
        assert_eq!(b.iter().next(), a.iter().next());
    }

    #[test]
    fn a_prefix_is_shared_with_its_transcript() {
        let all: Transcript = ["a", "b", "c"].into_iter().map(Turn::user).collect();
        for len in 0..5 {
            let prefix = all.prefix(len);
            assert_eq!(prefix.len(), len.min(3));
            assert!(all.extends(&prefix));
        }
    }

    #[test]
    fn the_common_turns_are_compared_by_value() {
        let of = |turns: &[&'static str]| -> Transcript {
            turns.iter().map(|turn| Turn::user(*turn)).collect()
        };
        let all = of(&["a", "b", "c"]);
        assert_eq!(all.common_len(&of(&["a", "b", "x", "y"])), 2);
        assert_eq!(all.common_len(&of(&["x", "b", "c"])), 0);
        assert_eq!(all.common_len(&of(&["a"])), 1);
        assert_eq!(all.common_len(&all.prefix(2)), 2);
        assert_eq!(Transcript::new().common_len(&all), 0);
    }

    #[test]
    fn the_size_is_that_of_all_turns() {
        let mut a = Transcript::new();
        assert_eq!(a.size(), 0);
        a.push_user("four");
        a.push_user("");
        let mut b = a.clone();
        assert_eq!(a.size(), 4);
        a.push_user("and more");
        assert_eq!((a.size(), b.size(), a.size()), (12, 4, 12));
        assert_eq!(a.before_last().unwrap().before_last().unwrap().size(), 4);
        b.push_user("fork");
        assert_eq!((a.size(), b.size()), (12, 8));
    }

    #[test]
    fn a_long_transcript_drops_without_recursion() {
        let mut transcript = Transcript::new();
        for _ in 0..1_000_000 {
            transcript.push_user("x");
        }
        drop(transcript);
    }
}

//! The actions that wait for the driver.

use super::Action;
use std::collections::VecDeque;

/// A queue of actions. Most of the time it has one action at most, which needs no allocation.
#[derive(Debug, Default)]
pub(super) struct Actions {
    // `None` only if the queue is empty.
    first: Option<Action>,
    more: VecDeque<Action>,
}

impl Actions {
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn push_front(&mut self, action: Action) {
        if let Some(second) = self.first.replace(action) {
            self.more.push_front(second);
        }
    }

    pub(super) fn push_back(&mut self, action: Action) {
        match self.first {
            None => self.first = Some(action),
            Some(_) => self.more.push_back(action),
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<Action> {
        std::mem::replace(&mut self.first, self.more.pop_front())
    }

    pub(super) fn pop_back(&mut self) -> Option<Action> {
        self.more.pop_back().or_else(|| self.first.take())
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Action) -> bool) {
        self.more.retain(&keep);
        self.first.take_if(|first| !keep(first));
        if self.first.is_none() {
            self.first = self.more.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

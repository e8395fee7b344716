use concentric_proto::{Error, Finish};

/// How an answer ended; with other types, how the call of any service ended.
// Exhaustive: a body can't end in a fifth way.
#[derive(Debug)]
pub enum End<'a, T = Finish, E = Error> {
    /// The answer is complete.
    Finished(&'a T),
    /// The answer or the call failed.
    Failed(&'a E),
    /// The answer ended without a terminal item.
    Truncated,
    /// The consumer dropped the future or the body before it ended.
    Dropped,
}

// Derived, they would require `T` and `E` to be `Copy`.
impl<T, E> Copy for End<'_, T, E> {}

impl<T, E> Clone for End<'_, T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

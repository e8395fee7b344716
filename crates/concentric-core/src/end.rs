use concentric_proto::{Error, Finish};

/// How an answer ended.
// Exhaustive: a body can't end in a fifth way.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// The answer is complete.
    Finished(&'a Finish),
    /// The answer or the call failed.
    Failed(&'a Error),
    /// The answer ended without a terminal item.
    Truncated,
    /// The consumer dropped the future or the body before it ended.
    Dropped,
}

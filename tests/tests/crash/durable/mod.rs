//! What the tests of crashes and races share: an agent over a SQLite file, an outside world that
//! its tools change, points at which its process is killed, and the processes.

pub mod actor;
pub mod agent;
pub mod check;
pub mod dice;
pub mod points;
pub mod power;
pub mod stores;
pub mod world;

pub use dice::{Dice, setting};

//! Tests that cross the crates of Concentric.

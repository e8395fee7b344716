//! Examples of Concentric.

//! The parts of the quickstart, which the other examples use too: tools over a folder of files, the
//! choice of a model, an offline model, and terminal output.

pub mod files;
pub mod model;
pub mod offline;
pub mod provider;
pub mod terminal;

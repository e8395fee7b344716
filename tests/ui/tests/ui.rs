//! What the compiler says of the likeliest mistakes; `tests/fail/*.stderr` is what a user reads.
//!
//! After a change that is for the better: `TRYBUILD=overwrite cargo test -p concentric-ui-tests`.

#[test]
fn mistakes_read_well() {
    trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
}

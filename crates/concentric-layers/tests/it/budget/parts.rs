use super::*;

#[test]
fn a_part_is_reserved_whole_and_its_rest_returned() {
    let whole = limit(100);
    let part = whole.split(Limits::new().money(70)).unwrap();
    assert_eq!(whole.reserved(), money(70));
    assert!(whole.reserve(money(31)).is_err());
    assert!(whole.split(Limits::new().money(31)).is_err());
    part.reserve(money(50)).unwrap().settle(money(20));
    assert_eq!((whole.spent(), whole.reserved()), (money(20), money(50)));
    // A handle and a lease keep it.
    let lease = part.reserve(money(10)).unwrap();
    let other = part.clone();
    drop(part);
    drop(other);
    assert_eq!(whole.reserved(), money(50));
    lease.settle(money(10));
    assert_eq!((whole.spent(), whole.reserved()), (money(30), money(0)));
}

#[test]
fn a_part_keeps_its_reservation() {
    let whole = limit(100);
    let part = whole.split(Limits::new().money(40)).unwrap();
    whole.reserve(money(60)).unwrap().settle(money(90));
    part.reserve(money(40)).unwrap().settle(money(45));
    assert_eq!((whole.spent(), whole.reserved()), (money(135), money(0)));
}

#[test]
fn unlimited_dimensions_of_a_part_charge_the_whole() {
    let whole = Budget::new(Limits::new().money(100).tool_calls(2));
    let part = whole.split(Limits::new().money(50)).unwrap();
    let call = money(10).tool_calls(1);
    let lease = part.reserve(call).unwrap();
    assert_eq!(whole.reserved(), money(50).tool_calls(1));
    lease.settle(call);
    part.charge(call);
    let over = part.reserve(call).unwrap_err();
    assert_eq!((over.dimension, over.limit), (Dimension::ToolCalls, 2));
    drop(part);
    assert_eq!(
        (whole.spent(), whole.reserved()),
        (money(20).tool_calls(2), money(0))
    );
}

#[test]
fn a_part_is_extended_from_the_whole() {
    let whole = limit(100);
    let part = whole.split(Limits::new().money(60)).unwrap();
    assert!(part.extend(money(41)).is_err());
    part.extend(money(40).tool_calls(3)).unwrap();
    assert_eq!(part.limits(), Limits::new().money(100));
    assert_eq!(whole.reserved(), money(100));
}

#[test]
fn a_nested_reservation_fits_both_budgets() {
    let outer = limit(100);
    let (a, b) = (
        outer.within(Limits::new().money(60)),
        outer.within(Limits::new().money(60)),
    );
    assert_eq!(a.reserve(money(61)).unwrap_err().limit, 60);
    let lease = a.reserve(money(60)).unwrap();
    assert_eq!(b.reserve(money(60)).unwrap_err().limit, 100);
    assert_eq!(b.reserved(), money(0));
    lease.settle(money(50));
    b.reserve(money(50)).unwrap().settle(money(50));
    assert_eq!(
        (a.spent(), b.spent(), outer.spent()),
        (money(50), money(50), money(100))
    );
}

#[test]
fn amounts_are_computed_from_a_usage() {
    let mut usage = Usage::new(10, 4);
    usage.set_cached_input_tokens(Some(8));
    let amounts = Amounts::of_usage(&usage);
    let expected = Amounts::new().input_tokens(10).output_tokens(4);
    assert_eq!(amounts, expected.total_tokens(14).cached_input_tokens(8));
    usage.set_total_tokens(Some(20));
    assert_eq!(Amounts::of_usage(&usage).total_tokens, 20);
}

#[test]
fn an_error_names_the_exhausted_limit() {
    let over = limit(100).reserve(money(120)).unwrap_err();
    let text = "budget exceeded: 0 of 100 money used, 120 more requested";
    let error = Error::from(over);
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Halted, Some(OVER_BUDGET))
    );
    assert_eq!(error.message(), text);
    assert!(!error.is_retryable());
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref(), Some(&over));
}

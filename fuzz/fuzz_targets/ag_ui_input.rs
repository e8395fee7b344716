//! What a client of AG-UI sends, through the agent to each provider's request.
//!
//! An input that begins with `{` is a body; any other describes one.
use arbitrary::{Arbitrary, Unstructured};
use concentric_fuzz::{Input, Provider, events, served, strict};
use serde_json::Value;

pub(crate) fn run(bytes: &[u8]) {
    let body = match bytes.first() {
        Some(b'{') => bytes.to_vec(),
        _ => match Input::arbitrary_take_rest(Unstructured::new(bytes)) {
            Ok(input) => input.json().to_string().into_bytes(),
            Err(_) => return,
        },
    };
    for provider in Provider::ALL {
        let came = served(provider, body.clone().into());
        assert_eq!(came.ran, 0, "a tool that no model called");
        let most = 16 * body.len() + (64 << 10);
        assert!(
            came.body.len() <= most,
            "{} bytes answered",
            came.body.len()
        );
        if came.status != 200 {
            assert!(matches!(came.status, 400 | 413 | 422), "{}", came.status);
            let error: Value = serde_json::from_slice(&came.body).expect("an error");
            assert!(error["error"]["code"].is_string(), "{error}");
            assert!(came.asked.is_empty());
            continue;
        }
        let events = events(&came.body);
        assert!(!events.is_empty());
        assert!(came.asked.len() <= 1, "asked again what is refused");
        for asked in &came.asked {
            assert!(asked.len() <= most, "{} bytes sent", asked.len());
            let asked: Value = serde_json::from_slice(asked).expect("JSON");
            let faults = strict::faults(provider.api(), &asked);
            assert!(faults.is_empty(), "{provider:?}: {faults:?}\n{asked}");
        }
    }
}

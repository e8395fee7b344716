//! What a client sends to an endpoint, through the agent to each provider's request.
//!
//! An input that begins with `{` is a body; any other describes one.
use arbitrary::{Arbitrary, Unstructured};
use concentric_fuzz::{Came, Endpoint, Input, Provider, data, events, served, strict};
use serde_json::Value;

pub(crate) fn run(endpoint: Endpoint, bytes: &[u8]) {
    let body = match bytes.first() {
        Some(b'{') => bytes.to_vec(),
        _ => match Input::arbitrary_take_rest(Unstructured::new(bytes)) {
            Ok(input) => input.body(endpoint).to_string().into_bytes(),
            Err(_) => return,
        },
    };
    for provider in Provider::ALL {
        let came = served(endpoint, provider, body.clone().into());
        assert_eq!(came.ran, 0, "a tool that no model called");
        let most = 16 * body.len() + (64 << 10);
        assert!(
            came.body.len() <= most,
            "{} bytes answered",
            came.body.len()
        );
        answered(endpoint, &came);
        assert!(came.asked.len() <= 1, "asked again what is refused");
        for asked in &came.asked {
            assert!(asked.len() <= most, "{} bytes sent", asked.len());
            // What is around a schema that a client nests as deeply as we accept is beyond the limit of this parser,
            // and not of the services.
            if nesting(asked) > 127 {
                continue;
            }
            let asked: Value = serde_json::from_slice(asked).expect("JSON");
            let faults = strict::faults(provider.api(), &asked);
            assert!(faults.is_empty(), "{provider:?}: {faults:?}\n{asked}");
        }
    }
}

/// The depth of nested lists and objects.
fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    let mut bytes = json.iter();
    let mut is_text = false;
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' => drop(bytes.next()),
            b'[' | b'{' if !is_text => depth += 1,
            b']' | b'}' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

fn answered(endpoint: Endpoint, came: &Came) {
    let is_openai = matches!(endpoint, Endpoint::Chat | Endpoint::Responses);
    if came.status != 200 {
        let error: Value = serde_json::from_slice(&came.body).expect("an error");
        let code = &error["error"]["code"];
        assert!(code.is_string(), "{error}");
        if is_openai {
            // An error of the run has a status, too.
            assert!(error["error"]["message"].is_string(), "{error}");
            assert!(error["error"]["type"].is_string(), "{error}");
            assert_ne!(code, "internal", "{error}");
        } else {
            assert!(matches!(came.status, 400 | 413 | 422), "{}", came.status);
            assert!(came.asked.is_empty());
        }
        return;
    }
    let events = match endpoint {
        Endpoint::AgUi => events(&came.body),
        Endpoint::UiMessages => data(&came.body),
        Endpoint::Chat | Endpoint::Responses => match serde_json::from_slice(&came.body) {
            Ok(whole) => vec![whole],
            Err(_) => data(&came.body),
        },
    };
    assert!(!events.is_empty());
}

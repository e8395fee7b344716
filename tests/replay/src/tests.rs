use crate::{APIS, Recording, Rng, default_dir, direct, load, model, replay, split, truncate};
use concentric_core::{ChatRequest, RateLimits};
use std::sync::Arc;
use tower::ServiceExt;

/// Complete, in random chunks, and truncated.
#[tokio::test]
async fn recordings_meet_their_expectations() {
    let Some(dir) = default_dir() else {
        eprintln!("skipped: no recordings; see CONCENTRIC_RECORDINGS");
        return;
    };
    let seed = std::process::id().into();
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    for api in APIS {
        let recordings: Arc<[Recording]> = load(&dir, api).unwrap().into();
        let mut report = replay(&recordings).await.unwrap();
        split(&recordings, 3, &mut rng, &mut report).await;
        truncate(&recordings, 3, &mut rng, &mut report).await;
        assert!(report.checked > 0, "{api}");
        assert!(report.differences.is_empty(), "{:#?}", report.differences);
    }
}

/// Every number of remaining requests or tokens in a recorded header is reported, and the time of a reset.
#[tokio::test]
async fn the_rate_limits_of_recordings_are_read() {
    let Some(dir) = default_dir() else {
        eprintln!("skipped: no recordings; see CONCENTRIC_RECORDINGS");
        return;
    };
    let mut headers = 0;
    for api in APIS {
        for recording in load(&dir, api).unwrap() {
            let http = direct(&recording, vec![recording.body.clone()]);
            let model = model(api, "http://localhost", recording.stream, http).unwrap();
            let limits = match model.oneshot(ChatRequest::user("hi")).await {
                Ok(answer) => answer.extensions.get().copied(),
                Err(error) => error.rate_limits().copied(),
            };
            let limits: RateLimits = limits.unwrap_or_default();
            let amounts = [
                limits.requests,
                limits.tokens,
                limits.input_tokens,
                limits.output_tokens,
            ];
            for (name, value) in &recording.headers {
                let (name, value) = (name.as_str(), value.to_str().unwrap_or_default());
                let is_amount = name.contains("ratelimit") && !name.contains("audio");
                let remaining = value.parse().ok().filter(|_| name.contains("remaining"));
                if let Some(remaining) = remaining.filter(|_| is_amount) {
                    let is_read = amounts.iter().any(|it| it.remaining == Some(remaining));
                    assert!(is_read, "{}: {name}: {value}: {limits:?}", recording.id);
                    headers += 1;
                }
                // Others are placeholders of the recorder, or the time of an amount without a limit.
                if is_amount
                    && name.contains("reset")
                    && value.starts_with(|c: char| c.is_ascii_digit())
                {
                    let has_reset = amounts.iter().any(|it| it.reset.is_some());
                    assert!(
                        has_reset || value == "0",
                        "{}: {name}: {value}",
                        recording.id
                    );
                    headers += 1;
                }
            }
        }
    }
    assert!(headers > 100, "{headers}");
}

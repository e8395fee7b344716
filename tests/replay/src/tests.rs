use crate::{APIS, Recording, Rng, default_dir, load, replay, split, truncate};
use std::sync::Arc;

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

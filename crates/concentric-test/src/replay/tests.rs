use super::{APIS, Recording, Rng, default_dir, load, replay, split, truncate};
use std::sync::Arc;

/// F1, F3 to F7, F14 to F16: real traffic, whole, in pieces, and cut short.
#[tokio::test]
async fn recordings_say_what_is_expected() {
    let Some(dir) = default_dir() else {
        eprintln!("skipped: no recordings; see CONCENTRIC_RECORDINGS");
        return;
    };
    let recordings = APIS.iter().flat_map(|api| load(&dir, api).unwrap());
    let recordings: Arc<[Recording]> = recordings.collect::<Vec<_>>().into();
    let seed = std::process::id().into();
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut report = replay(&recordings).await.unwrap();
    split(&recordings, 3, &mut rng, &mut report).await;
    truncate(&recordings, 3, &mut rng, &mut report).await;
    assert!(report.checked > 0);
    assert!(report.differences.is_empty(), "{:#?}", report.differences);
}

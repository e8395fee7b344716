//! Replays recorded provider traffic through the provider layers, and compares the responses with
//! the expectations.
//!
//! `replay [DIR] [--api API]... [--splits N] [--truncate] [--seed S] [--dump]`. All APIs are
//! replayed by default.

use concentric_replay::{self as replay, Recording, Rng};
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

const USAGE: &str =
    "usage: replay [DIR] [--api API]... [--splits N] [--truncate] [--seed S] [--dump]";

/// The number of random positions to truncate a body at, besides the boundaries of its events.
const RANDOM_CUTS: usize = 20;

struct Arguments {
    dir: Option<PathBuf>,
    apis: Vec<String>,
    splits: usize,
    truncate: bool,
    seed: u64,
    dump: bool,
}

fn arguments() -> Option<Arguments> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut parsed = Arguments {
        dir: None,
        apis: Vec::new(),
        splits: 0,
        truncate: false,
        seed: u64::from(since.subsec_nanos()) ^ since.as_secs(),
        dump: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--api" => parsed.apis.push(arguments.next()?),
            "--splits" => parsed.splits = arguments.next()?.parse().ok()?,
            "--seed" => parsed.seed = arguments.next()?.parse().ok()?,
            "--truncate" => parsed.truncate = true,
            "--dump" => parsed.dump = true,
            dir if !dir.starts_with('-') && parsed.dir.is_none() => parsed.dir = Some(dir.into()),
            _ => return None,
        }
    }
    if parsed.dir.is_none() {
        parsed.dir = replay::default_dir();
    }
    if parsed.apis.is_empty() {
        parsed.apis = replay::APIS.iter().map(ToString::to_string).collect();
    }
    Some(parsed)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    match run(arguments).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> io::Result<ExitCode> {
    let Some(dir) = arguments.dir else {
        return Err(io::Error::other(USAGE));
    };
    let mut recordings = Vec::new();
    for api in &arguments.apis {
        if !replay::APIS.contains(&&**api) {
            return Err(io::Error::other(format!("{api} is not supported")));
        }
        recordings.extend(replay::load(&dir, api)?);
    }
    let recordings: Arc<[Recording]> = recordings.into();
    let mut out = io::stdout().lock();
    if arguments.dump {
        for line in replay::dump(&recordings).await? {
            writeln!(out, "{line}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rng = Rng::new(arguments.seed);
    let mut report = replay::replay(&recordings).await?;
    if arguments.splits > 0 {
        replay::split(&recordings, arguments.splits, &mut rng, &mut report).await;
    }
    if arguments.truncate {
        replay::truncate(&recordings, RANDOM_CUTS, &mut rng, &mut report).await;
    }
    for difference in &report.differences {
        writeln!(out, "{difference}")?;
    }
    for deviation in replay::DEVIATIONS {
        if let Some(count) = report.deviations.get(deviation.name) {
            writeln!(
                out,
                "expected deviation, {count} times: {}: {}",
                deviation.name, deviation.reason
            )?;
        }
    }
    let mut summary = report.to_json();
    if let Some(fields) = summary.as_object_mut() {
        fields.insert("seed".to_owned(), arguments.seed.into());
    }
    writeln!(out, "{summary}")?;
    Ok(if report.differences.is_empty() && report.files > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

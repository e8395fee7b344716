//! The data of models, and the costs of their calls.

use concentric_core::{ErrorKind, ResponseHead, Usage};
use concentric_providers::{
    Capabilities, Catalogue, Sources,
    catalogue::{Cost, ModelInfo, Price},
};
use std::collections::HashSet;

fn usage(input: u64, cached: u64, written: u64, output: u64) -> Usage {
    let mut usage = Usage::new(input, output);
    usage.set_cached_input_tokens(Some(cached));
    usage.set_cache_write_tokens(Some(written));
    usage
}

fn found(provider: &str, model: &str) -> Option<String> {
    let catalogue = Catalogue::builtin();
    catalogue
        .get(provider, model)
        .map(|info| info.model.to_string())
}

#[test]
fn the_built_in_data_are_plausible() {
    let catalogue = Catalogue::builtin();
    assert_eq!(catalogue.date().len(), "2026-01-01".len());
    assert!(catalogue.sources().count() >= 2);
    let mut names = HashSet::new();
    let mut providers = HashSet::new();
    for model in catalogue.models() {
        let name = format!("{}/{}", model.provider, model.model);
        providers.insert(model.provider.to_string());
        for alias in model.aliases.iter().chain([&model.model]) {
            assert!(
                names.insert((model.provider.clone(), alias.clone())),
                "{name} twice"
            );
            // Each name resolves to its own model.
            assert_eq!(catalogue.get(&model.provider, alias), Some(model), "{name}");
        }
        let price = model.price.unwrap_or_else(|| panic!("{name} has no price"));
        // Output never costs less than input, and a million tokens cost less than a thousand
        // dollars: this detects misplaced decimal points.
        assert!(0 < price.input && price.input <= price.output, "{name}");
        assert!(price.output < 1_000_000_000, "{name}");
        assert!(
            price.cached_input.is_none_or(|cached| cached < price.input),
            "{name}"
        );
        assert!(
            price.cache_write.is_none_or(|write| write >= price.input),
            "{name}"
        );
        // Anthropic's prices: 1.25 times the input for five minutes, twice for an hour.
        let writes = |input: u64| (Some(input / 4 * 5), Some(input * 2));
        let is_anthropic = model.provider == *"anthropic";
        match is_anthropic {
            true => assert_eq!(
                (price.cache_write, price.cache_write_1h),
                writes(price.input),
                "{name}"
            ),
            false => assert_eq!(price.cache_write_1h, None, "{name}"),
        }
        let long = price.at(u64::MAX);
        if long != price {
            if is_anthropic {
                let long_writes = (long.cache_write, long.cache_write_1h);
                assert_eq!(long_writes, writes(long.input), "{name}");
            }
            assert!(long.input > price.input, "{name}");
            assert!(long.output > price.output, "{name}");
            assert!(
                long.cached_input != price.cached_input || price.cached_input.is_none(),
                "{name}"
            );
        }
        if let (Some(window), Some(output)) = (model.context_window, model.max_output) {
            assert!(0 < output && output <= window, "{name}");
        }
        if let Some(reasoning) = &model.reasoning {
            assert!(
                reasoning.supported || reasoning.efforts.is_empty(),
                "{name}"
            );
        }
    }
    let known = [
        "anthropic",
        "deepseek",
        "gcp.gemini",
        "groq",
        "mistral_ai",
        "openai",
        "x_ai",
    ];
    assert_eq!(providers, known.map(str::to_owned).into());
}

#[test]
fn a_version_suffix_is_the_same_model() {
    let same = [
        ("openai", "gpt-5.5-2026-04-23", "gpt-5.5"),
        ("openai", "GPT-5.5", "gpt-5.5"),
        ("openai", "gpt-5.6", "gpt-5.6-sol"),
        ("openai", "gpt-4o-2024-11-20", "gpt-4o"),
        // This version has its own price.
        ("openai", "gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("anthropic", "claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("anthropic", "claude-opus-4-1-20250805", "claude-opus-4-1"),
        ("anthropic", "claude-opus-4-20250514", "claude-opus-4-0"),
        ("anthropic", "claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        (
            "gcp.gemini",
            "models/gemini-2.5-pro-preview-05-06",
            "gemini-2.5-pro",
        ),
        ("google", "gemini-2.5-flash-001", "gemini-2.5-flash"),
        ("mistral", "mistral-large-latest", "mistral-large-2512"),
        ("xai", "grok-4.3-latest", "grok-4.3"),
        ("groq", "openai/gpt-oss-120b", "openai/gpt-oss-120b"),
    ];
    for (provider, model, expected) in same {
        assert_eq!(found(provider, model).as_deref(), Some(expected), "{model}");
    }
}

#[test]
fn any_other_suffix_is_another_model() {
    let other = [
        ("openai", "gpt-5.5-turbo"),
        ("openai", "gpt-5.55"),
        ("openai", "gpt-5.5-"),
        ("openai", "ft:gpt-4o-2024-08-06:us::x"),
        ("anthropic", "claude-opus-4-99"),
        ("anthropic", "claude"),
        ("openai", "claude-haiku-4-5"),
        ("nobody", "gpt-5.5"),
        ("openai", ""),
        ("", ""),
    ];
    for (provider, model) in other {
        assert_eq!(found(provider, model), None, "{provider} {model}");
    }
}

#[test]
fn the_longest_matching_name_wins() {
    let catalogue = Catalogue::default()
        .with(ModelInfo::new("p", "m"))
        .with(ModelInfo::new("p", "m-preview"))
        .with(ModelInfo::new("p", "n").alias("m-preview-2026"));
    let name = |model| catalogue.get("p", model).map(|info| info.model.to_string());
    assert_eq!(name("m-2026").as_deref(), Some("m"));
    assert_eq!(name("m-preview-0815").as_deref(), Some("m-preview"));
    assert_eq!(name("m-preview-2026-latest").as_deref(), Some("n"));
}

#[test]
fn a_response_is_matched_to_its_model() {
    let mut head = ResponseHead::default();
    assert!(Catalogue::builtin().for_response(&head).is_none());
    head.provider = Some("openai".into());
    head.model = Some("gpt-5.5-2026-04-23".into());
    let catalogue = Catalogue::builtin();
    assert_eq!(catalogue.for_response(&head).unwrap().model, "gpt-5.5");
}

#[test]
fn cached_tokens_are_part_of_the_input() {
    let price = Price::new(3_000_000, 15_000_000)
        .cached_input(300_000)
        .cache_write(3_750_000);
    let cost = price.cost(&usage(10_000, 6_000, 3_000, 500)).unwrap();
    assert_eq!(cost.input, 1_000 * 3_000_000);
    assert_eq!(cost.cached_input, 6_000 * 300_000);
    assert_eq!(cost.cache_write, 3_000 * 3_750_000);
    assert_eq!(cost.output, 500 * 15_000_000);
    assert_eq!(cost.to_string(), "$0.02355");

    // Without a cache price, they are priced as other input, and are limited to all of it.
    let plain = Price::new(3_000_000, 15_000_000);
    let same = plain.cost(&usage(10_000, 6_000, 3_000, 500)).unwrap();
    assert_eq!(
        same.total(),
        plain.cost(&Usage::new(10_000, 500)).unwrap().total()
    );
    let odd = price.cost(&usage(10, 100, 100, 0)).unwrap();
    assert_eq!(odd.total(), 10 * 300_000);
}

#[test]
fn one_hour_cache_writes_have_their_own_price() {
    let catalogue = Catalogue::builtin();
    let sonnet = catalogue.get("anthropic", "claude-sonnet-4-5").unwrap();
    let mut written = usage(10_000, 0, 3_000, 0);
    written.set_cache_write_1h_tokens(Some(1_000));
    let cost = sonnet.cost(&written).unwrap();
    assert_eq!(cost.input, 7_000 * 3_000_000);
    assert_eq!(cost.cache_write, 2_000 * 3_750_000 + 1_000 * 6_000_000);
    // It is a part of the cache writes, and is limited to all of them.
    written.set_cache_write_1h_tokens(Some(5_000));
    let cost = sonnet.cost(&written).unwrap();
    assert_eq!(cost.cache_write, 3_000 * 6_000_000);
    let mut long = usage(200_001, 0, 1, 0);
    long.set_cache_write_1h_tokens(Some(1));
    assert_eq!(sonnet.cost(&long).unwrap().cache_write, 12_000_000);

    // Without a one-hour price, other cache writes determine it.
    let price = Price::new(4, 20).cache_write(5);
    let cost = |price: Price| price.cost(&written).unwrap().cache_write;
    assert_eq!(cost(price), 3_000 * 5);
    assert_eq!(cost(price.cache_write_1h(8)), 3_000 * 8);
    assert_eq!(cost(Price::new(4, 20)), 3_000 * 4);
}

#[test]
fn reasoning_is_part_of_the_output() {
    let price = Price::new(1_000_000, 2_000_000);
    let mut usage = Usage::new(0, 100);
    usage.set_reasoning_tokens(Some(90));
    assert_eq!(price.cost(&usage).unwrap().total(), 100 * 2_000_000);
}

#[test]
fn missing_counts_have_no_cost() {
    let price = Price::new(1, 1);
    let mut usage = Usage::new(1, 1);
    usage.set_output_tokens(None);
    assert_eq!(price.cost(&usage), None);
    let mut usage = Usage::new(1, 1);
    usage.set_input_tokens(None);
    assert_eq!(price.cost(&usage), None);
    assert_eq!(ModelInfo::new("p", "m").cost(&Usage::new(1, 1)), None);
}

#[test]
fn a_long_input_raises_the_price_of_the_call() {
    let catalogue = Catalogue::builtin();
    let model = catalogue.get("openai", "gpt-5.5").unwrap();
    // 5 dollars per million, up to this length.
    assert_eq!(
        model.cost(&Usage::new(272_000, 0)).unwrap().to_string(),
        "$1.36"
    );
    // 10 per million beyond it; 45 instead of 30 for output, and 1 for cached input.
    assert_eq!(
        model
            .cost(&usage(272_001, 1, 0, 1_000))
            .unwrap()
            .to_string(),
        "$2.765001"
    );
}

#[test]
fn a_cost_is_exact_and_micros_round_up() {
    // The lowest price.
    let price = Price::new(435_000, 870_000).cached_input(3_625);
    let cost = price.cost(&usage(1, 1, 0, 0)).unwrap();
    assert_eq!(cost.to_string(), "$0.000000003625");
    assert_eq!(cost.micros(), 1);
    let cost = price.cost(&usage(1_000_000, 1_000_000, 0, 0)).unwrap();
    assert_eq!(cost.micros(), 3_625);
    assert_eq!(Cost::default().micros(), 0);
    assert_eq!(Cost::default().to_string(), "$0.00");
    // The highest possible price.
    let most = Price::new(u64::MAX, u64::MAX);
    let mut sum = Cost::default();
    for _ in 0..3 {
        sum += most.cost(&Usage::new(u64::MAX, u64::MAX)).unwrap();
    }
    assert_eq!((sum.total(), sum.micros()), (u128::MAX, u64::MAX));
}

#[test]
fn custom_entries_replace_built_in_ones() {
    let ours = ModelInfo::new("openai", "gpt-5.5").price(Price::new(1, 2));
    let catalogue = Catalogue::builtin().with(ours.clone());
    assert_eq!(catalogue.get("openai", "gpt-5.5-2026-04-23"), Some(&ours));
    assert_eq!(
        catalogue.models().count(),
        Catalogue::builtin().models().count()
    );
    // The built-in catalogue is unchanged.
    assert_ne!(Catalogue::builtin().get("openai", "gpt-5.5"), Some(&ours));

    // The alias of another model becomes the new model's name.
    let catalogue = catalogue.with(ModelInfo::new("openai", "gpt-5.6"));
    assert_eq!(catalogue.get("openai", "gpt-5.6").unwrap().price, None);
    assert!(
        catalogue
            .get("openai", "gpt-5.6-sol")
            .unwrap()
            .price
            .is_some()
    );

    let json = r#"{"version": 1, "date": "2027-01-01", "sources": ["us"], "models": [
        {"provider": "openai", "model": "gpt-5.5", "price": {"input": 7, "output": 8}}]}"#;
    let merged = Catalogue::builtin().merge(&Catalogue::from_json(json).unwrap());
    assert_eq!(
        merged.get("openai", "gpt-5.5").unwrap().price,
        Some(Price::new(7, 8))
    );
    assert_eq!(merged.date(), "2027-01-01");
    assert!(merged.sources().any(|source| source == "us"));
}

#[test]
fn provider_aliases_are_normalized() {
    let price = Price::new(1, 2);
    for provider in ["google", "Gemini", "gcp.vertex_ai", "gcp.gemini"] {
        let ours = ModelInfo::new(provider, "gemini-3.5-flash").price(price);
        let json = format!(
            r#"{{"version": 1, "date": "d", "models": [{{"provider": "{provider}",
                "model": "gemini-3.5-flash", "price": {{"input": 1, "output": 2}}}}]}}"#
        );
        let loaded = Catalogue::from_json(&json).unwrap();
        for catalogue in [
            Catalogue::builtin().with(ours),
            Catalogue::builtin().merge(&loaded),
            loaded,
        ] {
            for asked in [provider, "google", "gcp.gemini"] {
                let found = catalogue.get(asked, "gemini-3.5-flash").unwrap();
                assert_eq!(found.price, Some(price), "{provider} {asked}");
                assert_eq!(found.provider, *"gcp.gemini");
            }
        }
    }
}

#[test]
fn an_invalid_catalogue_is_rejected() {
    let model = |fields: &str| {
        format!(r#"{{"version": 1, "date": "d", "models": [{{"provider": "p", {fields}}}]}}"#)
    };
    assert!(Catalogue::from_json(&model(r#""model": "m""#)).is_ok());
    let wrong = [
        "".to_owned(),
        r#"{"version": 2, "date": "d", "models": []}"#.to_owned(),
        model(r#""model": """#),
        model(r#""model": "m", "prize": 1"#),
        model(r#""model": "m", "price": {"input": 2.5, "output": 1}"#),
        model(r#""model": "m", "price": {"input": -1, "output": 1}"#),
    ];
    for json in wrong {
        let error = Catalogue::from_json(&json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{json}");
    }
}

#[test]
fn known_limits_narrow_the_capabilities() {
    let catalogue = Catalogue::builtin();
    let of = |provider, model| {
        catalogue
            .get(provider, model)
            .unwrap()
            .narrow(Capabilities::all())
    };
    let deepseek = of("deepseek", "deepseek-v4-pro");
    assert_eq!(deepseek.images, Sources::NONE);
    assert!(deepseek.tools && deepseek.reasoning_effort && deepseek.temperature);
    let gpt = of("openai", "gpt-5.5");
    assert_eq!(gpt.images, Sources::ALL);
    assert!(!gpt.temperature);
    assert!(!of("openai", "gpt-4.1").reasoning_effort);
    // Unknown fields do not narrow anything.
    let all = Capabilities::all();
    assert_eq!(ModelInfo::new("p", "m").narrow(all), all);
}

//! A `SKILL.md`: what is read keeps to the limits, and reads the same when it is written again.
use concentric_tools::Skill;
use serde_json::Value;

pub(crate) fn run(text: &str) {
    let Ok(skill) = Skill::parse(text) else {
        return;
    };
    skill.check().expect("what is read is valid");
    let name = skill.name();
    assert!((1..=64).contains(&name.len()), "{name:?}");
    let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(name.chars().all(is_known), "{name:?}");
    let description = skill.description();
    assert!(!description.is_empty() && description.chars().count() <= 1024);
    assert!(skill.instructions().len() <= text.len());

    // JSON texts are YAML.
    let mut again = format!(
        "---\nname: {name}\ndescription: {}\n",
        Value::from(description)
    );
    for (key, value) in [
        ("license", skill.license()),
        ("compatibility", skill.compatibility()),
    ] {
        if let Some(value) = value {
            again.push_str(&format!("{key}: {}\n", Value::from(value)));
        }
    }
    again.push_str(&format!("---\n{}\n", skill.instructions()));
    for text in [again.replace('\n', "\r\n"), again] {
        let again = Skill::parse(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
        assert_eq!(again.name(), name);
        assert_eq!(again.description(), description);
        assert_eq!(again.license(), skill.license());
        assert_eq!(again.compatibility(), skill.compatibility());
        assert_eq!(again.instructions(), skill.instructions());
    }
}

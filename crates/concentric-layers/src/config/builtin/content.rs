//! Layers that change what models receive, and what they answer.

use crate::config::Registry;
#[cfg(any(
    feature = "clear-results",
    feature = "guard",
    feature = "static-memory",
    feature = "trim"
))]
use {super::set, schemars::JsonSchema, serde::Deserialize};

#[cfg(feature = "trim")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Trim {
    /// The unit of the limit.
    by: TrimBy,
    limit: u64,
    /// The number of first turns that are always sent.
    head: Option<usize>,
    /// The text where turns are left out.
    marker: Option<String>,
    /// The number of newest exchanges whose reasoning is sent.
    drop_reasoning: Option<usize>,
    /// The number of newest exchanges whose media are sent.
    drop_media: Option<usize>,
}

#[cfg(feature = "trim")]
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TrimBy {
    Turns,
    Messages,
    Tokens,
}

#[cfg(feature = "clear-results")]
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ClearResults {
    /// The tokens that a request may have.
    trigger: Option<u64>,
    /// The number of newest results that stay.
    keep: Option<usize>,
    /// The tokens that a change must reclaim.
    clear_at_least: Option<u64>,
    /// Whether the arguments of cleared calls are cleared, too.
    inputs: bool,
    /// The tools whose results stay.
    except: Option<Vec<String>>,
    placeholder: Option<String>,
}

#[cfg(feature = "static-memory")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StaticMemory {
    /// The maximum size of all documents.
    max_bytes: Option<usize>,
    /// Whether the documents are material, not instructions.
    #[serde(default)]
    reference: bool,
    documents: Vec<Document>,
}

#[cfg(feature = "static-memory")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Document {
    id: String,
    text: String,
}

#[cfg(feature = "guard")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Guard {
    /// The names of rules, in the order of their priority: `pii` and `secrets` are the rules of these modules.
    #[serde(default)]
    rules: Vec<String>,
    /// Own rules, after these, with their regular expressions.
    #[serde(default)]
    patterns: Vec<Pattern>,
    /// The names of the rules that end a call.
    #[serde(default)]
    block: Vec<String>,
    /// The names of the rules that change nothing.
    #[serde(default)]
    flag: Vec<String>,
    /// The parts of requests.
    input: Option<Vec<Part>>,
    /// The parts of answers.
    output: Option<Vec<Part>>,
    /// The answer of a call that is ended.
    block_with: Option<String>,
    /// The maximum size of a typed answer.
    limit: Option<usize>,
}

#[cfg(feature = "guard")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Pattern {
    name: String,
    pattern: String,
    /// The text in place of a match.
    replace: Option<String>,
}

#[cfg(feature = "guard")]
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Part {
    User,
    System,
    Text,
    Reasoning,
    Refusals,
    Arguments,
    Results,
    Custom,
    ProviderData,
    Transcript,
}

#[cfg(feature = "guard")]
mod guard {
    use super::{Guard, Part};
    use crate::guard::{GuardLayer, Parts, Rule, Rules, pii, secrets};
    use concentric_core::BoxError;

    impl From<Part> for Parts {
        fn from(part: Part) -> Self {
            match part {
                Part::User => Self::USER,
                Part::System => Self::SYSTEM,
                Part::Text => Self::TEXT,
                Part::Reasoning => Self::REASONING,
                Part::Refusals => Self::REFUSAL,
                Part::Arguments => Self::ARGUMENTS,
                Part::Results => Self::RESULTS,
                Part::Custom => Self::CUSTOM,
                Part::ProviderData => Self::PROVIDER_DATA,
                Part::Transcript => Self::TRANSCRIPT,
            }
        }
    }

    /// The rules with a name, which may be that of a set.
    fn rules(name: &str) -> Result<Vec<Rule>, BoxError> {
        let mut sets = [("pii", pii::all()), ("secrets", secrets::all())];
        if let Some((_, set)) = sets.iter_mut().find(|(set, _)| *set == name) {
            return Ok(std::mem::take(set));
        }
        let all = sets.into_iter().flat_map(|(_, set)| set);
        let all: Vec<Rule> = all.filter(|rule| rule.name() == name).collect();
        match all.is_empty() {
            true => Err(format!("no rule or set of rules is named `{name}`").into()),
            false => Ok(all),
        }
    }

    type Action = fn(Rule) -> Rule;

    pub(super) fn layer(options: Guard) -> Result<GuardLayer, BoxError> {
        if options.rules.is_empty() && options.patterns.is_empty() {
            return Err("one of `rules` and `patterns` is required".into());
        }
        let mut all = Vec::new();
        for name in &options.rules {
            all.extend(rules(name)?);
        }
        for own in options.patterns {
            let rule = Rule::pattern(own.name, own.pattern);
            all.push(super::set(rule, own.replace, Rule::replace));
        }
        if let Some(name) = options.flag.iter().find(|it| options.block.contains(it)) {
            return Err(format!("the rule `{name}` is in `block` and in `flag`").into());
        }
        let actions: [(_, Action); 2] = [(options.block, Rule::block), (options.flag, Rule::flag)];
        for (names, action) in actions {
            for name in names {
                let has_name = |rule: &Rule| rule.name() == name;
                if !all.iter().any(has_name) {
                    return Err(format!("there is no rule `{name}`").into());
                }
                let each = all.into_iter();
                all = each
                    .map(|rule| match has_name(&rule) {
                        true => action(rule),
                        false => rule,
                    })
                    .collect();
            }
        }
        let parts = |parts: Vec<Part>| {
            let parts = parts.into_iter().map(Parts::from);
            parts.fold(Parts::NONE, |all, part| all | part)
        };
        let layer = GuardLayer::new(Rules::new(all)?);
        let layer = super::set(layer, options.input.map(parts), GuardLayer::input);
        let layer = super::set(layer, options.output.map(parts), GuardLayer::output);
        let layer = super::set(layer, options.block_with, GuardLayer::block_with);
        Ok(super::set(layer, options.limit, GuardLayer::limit))
    }
}

pub(super) fn register(registry: Registry) -> Registry {
    #[cfg(feature = "guard")]
    let registry = registry.layer("guard", guard::layer);
    #[cfg(feature = "static-memory")]
    let registry = registry.layer("static-memory", |options: StaticMemory| {
        use crate::StaticMemoryLayer as Layer;
        let layer = set(Layer::new(), options.max_bytes, Layer::max_bytes);
        let layer = match options.reference {
            true => layer.reference(),
            false => layer,
        };
        let mut documents = options.documents.into_iter();
        let layer = documents.try_fold(layer, |layer, it| layer.document(it.id, &it.text));
        layer.map_err(Into::into)
    });
    #[cfg(feature = "trim")]
    let registry = registry.layer("trim", |options: Trim| {
        use crate::TrimLayer as Layer;
        let limit = options.limit;
        let count = usize::try_from(limit).unwrap_or(usize::MAX);
        let layer = match options.by {
            TrimBy::Turns => Layer::turns(count),
            TrimBy::Messages => Layer::messages(count),
            TrimBy::Tokens => Layer::tokens(limit),
        };
        let layer = set(layer, options.head, Layer::head);
        let layer = set(layer, options.marker, Layer::marker);
        let layer = set(layer, options.drop_reasoning, Layer::drop_reasoning);
        Ok(set(layer, options.drop_media, Layer::drop_media))
    });
    #[cfg(feature = "clear-results")]
    let registry = registry.layer("clear-results", |options: ClearResults| {
        use crate::ClearToolResultsLayer as Layer;
        let layer = set(Layer::new(), options.trigger, Layer::trigger);
        let layer = set(layer, options.keep, Layer::keep);
        let layer = set(layer, options.clear_at_least, Layer::clear_at_least);
        let layer = match options.inputs {
            true => layer.inputs(),
            false => layer,
        };
        let layer = set(layer, options.except, Layer::except);
        Ok(set(layer, options.placeholder, Layer::placeholder))
    });
    registry
}

//! The choice of the next action: tool calls or a text.

use super::{
    answer,
    question::{Question, concept, is_path, stem, stems},
    schema::{Kind, Parameter, parameters},
    value,
};
use concentric::{ChatRequest, Role, Str, ToolChoice, ToolSpec, Transcript, message::ToolStatus};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The next action.
#[derive(Debug)]
pub(super) enum Plan {
    /// Call tools.
    Call(Vec<Call>),
    /// Respond with a text.
    Say(String),
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) tool: Str,
    pub(super) arguments: Map<String, Value>,
}

/// A call that was made for the question, with its outcome.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) call: Call,
    pub(super) ok: bool,
    pub(super) text: String,
}

impl Done {
    /// Returns `true` if `other` achieved the purpose of this call, which failed.
    fn is_made_good_by(&self, other: &Self) -> bool {
        let name = |value: &Value| {
            value
                .as_str()
                .map(|path| path.rsplit('/').next().map(str::to_lowercase))
        };
        other.ok
            && other.call.tool == self.call.tool
            && other.call.arguments.iter().all(|(key, value)| {
                let mine = self.call.arguments.get(key);
                mine.is_some_and(|mine| {
                    mine == value || (name(mine).is_some() && name(mine) == name(value))
                })
            })
    }

    /// Returns `true` if the result is empty.
    fn is_empty(&self) -> bool {
        let text = self.text.trim();
        self.ok && (matches!(text, "" | "[]" | "{}" | "null") || text.starts_with("No "))
    }

    /// Returns the files that the result names, with the number of occurrences. A name that ends
    /// with `/` is a folder.
    fn paths(&self) -> HashMap<&str, usize> {
        let mut paths = HashMap::new();
        for path in self.text.lines().filter_map(answer::path_of_line) {
            if !path.ends_with('/') {
                *paths.entry(path).or_default() += 1;
            }
        }
        paths
    }

    /// Returns the first value of `key`, if the result is JSON.
    fn value(&self, key: &str) -> Option<Value> {
        fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
            match value {
                Value::Object(map) => map
                    .get(key)
                    .or_else(|| map.values().find_map(|v| find(v, key))),
                Value::Array(items) => items.iter().find_map(|v| find(v, key)),
                _ => None,
            }
        }
        find(&serde_json::from_str(&self.text).ok()?, key).cloned()
    }
}

/// The largest number of rounds for one question.
const MAX_ROUNDS: usize = 4;
/// The largest number of calls in a round.
const MAX_CALLS: usize = 4;
/// The largest number of bytes of a result that are read.
const MAX_RESULT: usize = 64 * 1024;
/// The lowest score of a tool that matches.
const FITS: f32 = 1.0;

/// Returns the next action.
pub(super) fn next(request: &ChatRequest) -> Plan {
    let (text, done, rounds) = turn(&request.transcript);
    let question = Question::new(&text);
    let choice = match &request.options.tool_choice {
        // A forced choice applies to the first step only, or the model could never respond.
        Some(ToolChoice::Required | ToolChoice::Tool(_)) if rounds > 0 => &ToolChoice::Auto,
        Some(choice) => choice,
        None => &ToolChoice::Auto,
    };
    let tools: Vec<&ToolSpec> = request.tools.iter().map(|spec| &**spec).collect();
    let planner = Planner::new(&text, &question, &done, &tools);
    let mut calls = match choice {
        ToolChoice::None => Vec::new(),
        ToolChoice::Tool(name) => planner.forced(|tool| tool.spec.name == *name),
        _ if rounds >= MAX_ROUNDS => Vec::new(),
        ToolChoice::Required => match planner.calls() {
            calls if calls.is_empty() => planner.forced(|_| true),
            calls => calls,
        },
        _ => planner.calls(),
    };
    if calls.is_empty() {
        let missing = planner.missing();
        let relevant: Vec<&Done> = done
            .iter()
            .filter(|done| planner.is_relevant(done))
            .collect();
        let text = answer::compose(&question, relevant.clone(), &tools, missing);
        return Plan::Say(match &request.options.output_schema {
            Some(output) => value::compose(&output.schema, &text, &relevant),
            None => text,
        });
    }
    if request.options.parallel_tool_calls == Some(false) {
        calls.truncate(1);
    }
    Plan::Call(calls)
}

/// Returns the last question, the calls made since, and the number of their rounds.
fn turn(transcript: &Transcript) -> (String, Vec<Done>, usize) {
    let mut text = String::new();
    let mut rounds = Vec::new();
    for turn in transcript.rev() {
        let message = turn.as_message();
        if message.role == Role::User {
            text = message.text();
            break;
        }
        if !turn.results().is_empty() {
            rounds.push(turn);
        }
    }
    let done = rounds.iter().rev().flat_map(|turn| {
        turn.results().iter().map(|result| {
            let mut calls = turn.as_message().tool_calls();
            let call = calls.find(|call| call.id == result.call_id);
            let arguments = call.and_then(|c| serde_json::from_str(c.arguments.as_str()).ok());
            let text = result.outcome.content.text();
            let end = text.floor_char_boundary(MAX_RESULT);
            Done {
                call: Call {
                    tool: result.name.clone(),
                    arguments: arguments.unwrap_or_default(),
                },
                ok: result.outcome.status == ToolStatus::Done,
                text: text.get(..end).unwrap_or_default().to_owned(),
            }
        })
    });
    (text, done.collect(), rounds.len())
}

/// A tool with its score.
struct Candidate<'a> {
    spec: &'a ToolSpec,
    parameters: Vec<Parameter>,
    name_stems: Vec<String>,
    score: f32,
    /// The words of the question that match its name.
    named_by: Vec<&'a str>,
}

impl Candidate<'_> {
    fn required(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(|p| p.required)
    }

    fn needs(&self, kind: &Kind) -> bool {
        self.required().any(|p| p.kind == *kind)
    }

    fn takes(&self, kind: &Kind) -> bool {
        self.parameters.iter().any(|p| p.kind == *kind)
    }
}

struct Planner<'a> {
    text: &'a str,
    question: &'a Question,
    done: &'a [Done],
    /// Sorted by score, the highest first.
    tools: Vec<Candidate<'a>>,
}

impl<'a> Planner<'a> {
    fn new(
        text: &'a str,
        question: &'a Question,
        done: &'a [Done],
        specs: &[&'a ToolSpec],
    ) -> Self {
        let mut tools: Vec<Candidate<'a>> = specs
            .iter()
            .map(|&spec| Candidate {
                spec,
                parameters: parameters(spec),
                name_stems: stems(&spec.name),
                score: 0.0,
                named_by: Vec::new(),
            })
            .collect();
        score(question, &mut tools);
        tools.sort_by(|a, b| b.score.total_cmp(&a.score));
        Self {
            text,
            question,
            done,
            tools,
        }
    }

    /// Returns the calls to make next; none if it is time to respond.
    fn calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        let over = self.fitting(&mut calls);
        calls.extend(self.done.iter().filter_map(|done| self.again(done)));
        if !over && calls.iter().all(|call| self.made(call)) {
            calls.extend(self.overview());
        }
        let mut fresh: Vec<Call> = Vec::new();
        for call in calls {
            if !self.made(&call) && !fresh.contains(&call) {
                fresh.push(call);
            }
        }
        fresh.truncate(MAX_CALLS);
        fresh
    }

    /// Adds calls of the best tool, and of others that the question names. Returns `true` if one of
    /// these has already done its work.
    fn fitting(&self, calls: &mut Vec<Call>) -> bool {
        let mut over = false;
        let mut explained: Vec<&str> = Vec::new();
        let best = self.tools.first().map_or(0.0, |tool| tool.score);
        for tool in self
            .tools
            .iter()
            .filter(|t| t.score >= FITS.max(best / 3.0))
        {
            let more = tool.named_by.iter().any(|word| !explained.contains(word));
            // A tool with side effects is called only if the question names it.
            if !(more || (calls.is_empty() && !over && tool.spec.annotations.read_only)) {
                continue;
            }
            let filled = self.fill(tool);
            if self.is_over(tool, filled.as_ref().map_or(1, Vec::len)) {
                over = true;
            } else if let Ok(filled) = filled {
                explained.extend(&tool.named_by);
                calls.extend(filled);
            }
        }
        over
    }

    /// Returns a repetition of a call that failed or found nothing, with fewer arguments.
    fn again(&self, done: &Done) -> Option<Call> {
        let tool = self
            .tools
            .iter()
            .find(|tool| tool.spec.name == done.call.tool)?;
        if !tool.spec.annotations.read_only {
            return None;
        }
        let mut call = done.call.clone();
        if !done.ok {
            let required = |name: &String| tool.required().any(|p| p.name == *name);
            call.arguments.retain(|name, _| required(name));
        } else if done.is_empty() {
            let text = tool.required().find(|p| p.kind == Kind::Text)?;
            let text_value = call.arguments.get(&text.name)?.as_str()?;
            let longest = text_value
                .split_whitespace()
                .max_by_key(|word| word.len())?
                .to_owned();
            call.arguments.insert(text.name.clone(), longest.into());
        }
        Some(call)
    }

    /// Returns a call that finds the path which the question lacks.
    fn overview(&self) -> Option<Call> {
        let about = self.question.means("about");
        let reader = self.tools.iter().find(|tool| {
            let only = tool.required().count() == 1 && tool.spec.annotations.read_only;
            only && tool.needs(&Kind::Path) && (about || self.fits(tool))
        })?;
        let failed = |done: &Done| {
            let message = done.text.to_lowercase();
            let absent = ["no such", "not found", "not exist", "unknown"];
            !done.ok
                && done.call.tool == reader.spec.name
                && absent.iter().any(|a| message.contains(a))
        };
        if let Ok(mut calls) = self.fill(reader)
            && let Some(call) = calls.pop()
            && !self.made(&call)
        {
            return Some(call);
        }
        let nothing_yet = self.done.is_empty() || self.done.iter().all(failed);
        let lister = self.tools.iter().find(|tool| {
            let free = tool.required().next().is_none() && tool.spec.annotations.read_only;
            let description = stems(&tool.spec.description);
            let mut words = tool.name_stems.iter().chain(&description);
            free && (tool.takes(&Kind::Path) || words.any(|s| concept(s) == Some("list")))
        })?;
        nothing_yet.then(|| Call {
            tool: lister.spec.name.clone(),
            arguments: Map::new(),
        })
    }

    /// Returns a call of the first tool that `which` accepts, with placeholder arguments if
    /// necessary.
    fn forced(&self, which: impl Fn(&Candidate<'a>) -> bool) -> Vec<Call> {
        let Some(tool) = self.tools.iter().find(|tool| which(tool)) else {
            return Vec::new();
        };
        self.fill(tool).unwrap_or_else(|_| {
            let arguments = tool.required().map(|parameter| {
                let value = match &parameter.kind {
                    Kind::Number { .. } => 0.into(),
                    Kind::Bool => false.into(),
                    Kind::List(_) => Value::Array(Vec::new()),
                    Kind::Other => Value::Object(Map::new()),
                    _ => self.text.into(),
                };
                (parameter.name.clone(), value)
            });
            let tool = tool.spec.name.clone();
            vec![Call {
                tool,
                arguments: arguments.collect(),
            }]
        })
    }

    /// Returns the best matching tool that cannot be called, with the argument that is missing.
    fn missing(&self) -> Option<(Str, String)> {
        let best = self
            .tools
            .iter()
            .find(|t| t.score >= FITS && !t.named_by.is_empty())?;
        if self
            .done
            .iter()
            .any(|done| done.call.tool == best.spec.name)
        {
            return None;
        }
        let missing = self.fill(best).err()?;
        Some((best.spec.name.clone(), missing))
    }

    /// Returns `true` if the question matches `tool`, and no better tool by the same words.
    fn fits(&self, tool: &Candidate<'a>) -> bool {
        let better = || {
            self.tools
                .iter()
                .take_while(|other| other.spec.name != tool.spec.name)
        };
        let own = |word: &&&str| !better().any(|other| other.named_by.contains(word));
        tool.score >= FITS && (better().next().is_none() || tool.named_by.iter().any(|w| own(&w)))
    }

    /// Returns `true` if the question is about this call's result, rather than the call being a
    /// means.
    fn is_relevant(&self, done: &Done) -> bool {
        let fits = |done: &Done| {
            self.tools
                .iter()
                .any(|tool| tool.spec.name == done.call.tool && self.fits(tool))
        };
        let answered = self.done.iter().any(fits);
        let made_good = !done.ok && self.done.iter().any(|other| done.is_made_good_by(other));
        (fits(done) || !answered) && !made_good
    }

    /// Returns `true` if all calls of `tool` for the question were made. The arguments may differ,
    /// because an approver may have edited them.
    fn is_over(&self, tool: &Candidate<'a>, planned: usize) -> bool {
        let done = self.done.iter();
        let done = done.filter(|done| done.call.tool == tool.spec.name);
        !tool.spec.annotations.read_only && done.count() >= planned
    }

    fn made(&self, call: &Call) -> bool {
        self.done.iter().any(|done| done.call == *call)
    }

    /// Returns the calls of `tool` for the question: more than one if the tool takes one value and
    /// the question has several.
    ///
    /// # Errors
    ///
    /// Returns the name of an argument for which no value was found.
    fn fill(&self, tool: &Candidate<'a>) -> Result<Vec<Call>, String> {
        let free = |p: &&Parameter| !matches!(p.kind, Kind::Choice(_) | Kind::Bool | Kind::List(_));
        let one = tool.required().filter(free).count() == 1;
        let mut variants: Vec<Map<String, Value>> = vec![Map::new()];
        // The kinds of the parameters that have already taken a value.
        let mut taken: Vec<&Kind> = Vec::new();
        for parameter in &tool.parameters {
            let skip = taken
                .iter()
                .filter(|kind| ***kind == parameter.kind)
                .count();
            let mut values = if parameter.required {
                self.values(tool, parameter)
            } else {
                self.optional(tool, parameter).into_iter().collect()
            };
            values.drain(..skip.min(values.len()));
            if values.is_empty() {
                match &parameter.default {
                    _ if !parameter.required => continue,
                    Some(default) => values.push(default.clone()),
                    None => return Err(parameter.name.clone()),
                }
            }
            if parameter.required && free(&parameter) {
                taken.push(&parameter.kind);
            }
            if !(one && parameter.required) {
                values.truncate(1);
            }
            variants = values
                .iter()
                .take(MAX_CALLS)
                .flat_map(|value| {
                    variants.iter().map(|variant| {
                        let mut variant = variant.clone();
                        variant.insert(parameter.name.clone(), value.clone());
                        variant
                    })
                })
                .collect();
        }
        let call = |arguments| Call {
            tool: tool.spec.name.clone(),
            arguments,
        };
        Ok(variants.into_iter().map(call).collect())
    }

    /// Returns the possible values of a required parameter, the best first.
    fn values(&self, tool: &Candidate<'a>, parameter: &Parameter) -> Vec<Value> {
        let question = self.question;
        let from_results = || {
            self.done
                .iter()
                .rev()
                .find_map(|done| done.value(&parameter.name))
        };
        match &parameter.kind {
            Kind::Path => {
                let named = question.paths.iter();
                let fresh: Vec<Value> = named
                    .filter(|path| !self.failed(tool, parameter, path))
                    .map(|path| path.as_str().into())
                    .collect();
                if fresh.is_empty() {
                    self.found_path().map(Value::from).into_iter().collect()
                } else {
                    fresh
                }
            }
            Kind::Url => question
                .urls
                .iter()
                .map(|url| url.as_str().into())
                .collect(),
            Kind::Name if !question.names.is_empty() => question
                .names
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            Kind::Text | Kind::Name if !question.quoted.is_empty() => question
                .quoted
                .iter()
                .map(|text| text.as_str().into())
                .collect(),
            Kind::Text if self.written(tool).is_some() => {
                self.written(tool).map(Value::from).into_iter().collect()
            }
            Kind::Text | Kind::Name => match from_results() {
                Some(value) => vec![value],
                None => self.subject(tool).map(Value::from).into_iter().collect(),
            },
            Kind::Number { whole } => {
                let numbers = question.numbers.iter().map(|(number, _)| number);
                let fit = numbers.filter(|n| !whole || n.is_i64() || n.is_u64());
                let mut values: Vec<Value> = fit.cloned().map(Value::Number).collect();
                if values.is_empty() {
                    values.extend(from_results().filter(Value::is_number));
                }
                values
            }
            Kind::Bool => vec![parameter.default.clone().unwrap_or(Value::Bool(false))],
            Kind::Choice(choices) => {
                let chosen = choices.iter().find(|choice| self.mentions(choice));
                let chosen = chosen.or(parameter.default.as_ref()).or(choices.first());
                chosen.cloned().into_iter().collect()
            }
            Kind::List(kind) => {
                let one = Parameter {
                    name: parameter.name.clone(),
                    required: true,
                    kind: (**kind).clone(),
                    default: None,
                    name_stems: parameter.name_stems.clone(),
                    stems: parameter.stems.clone(),
                };
                vec![Value::Array(self.values(tool, &one))]
            }
            Kind::Other => Vec::new(),
        }
    }

    /// Returns the value of an optional parameter in the question.
    fn optional(&self, tool: &Candidate<'a>, parameter: &Parameter) -> Option<Value> {
        let question = self.question;
        match &parameter.kind {
            Kind::Path => {
                let folder = question.paths.first().cloned().or_else(|| self.place())?;
                (!self.failed(tool, parameter, &folder)).then(|| folder.into())
            }
            Kind::Number { .. } => {
                // `3 lines` matches `lines` or `max_lines`, but not `first_line`.
                let bounds = ["max", "limit", "num", "number", "of", "count"];
                let mut names = parameter
                    .name_stems
                    .iter()
                    .filter(|n| !bounds.contains(&n.as_str()));
                let (Some(name), None) = (names.next(), names.next()) else {
                    return None;
                };
                let (number, _) = question.numbers.iter().find(|(_, unit)| unit == name)?;
                Some(Value::Number(number.clone()))
            }
            Kind::Choice(choices) => choices.iter().find(|choice| self.mentions(choice)).cloned(),
            _ => None,
        }
    }

    /// Returns `true` if `tool` was called with `value` and failed.
    fn failed(&self, tool: &Candidate<'a>, parameter: &Parameter, value: &str) -> bool {
        self.done.iter().any(|done| {
            let used = done
                .call
                .arguments
                .get(&parameter.name)
                .and_then(Value::as_str);
            !done.ok && done.call.tool == tool.spec.name && used == Some(value)
        })
    }

    fn mentions(&self, choice: &Value) -> bool {
        let Some(choice) = choice.as_str().map(stems) else {
            return false;
        };
        choice
            .iter()
            .all(|stem| self.question.words.iter().any(|w| w.stem == *stem))
    }

    /// Returns `true` if a word refers to the tools rather than to the subject of the question.
    fn is_vocabulary(&self, stem: &str) -> bool {
        let concept = concept(stem);
        concept == Some("about")
            || self.tools.iter().any(|tool| {
                let mut names = tool.name_stems.iter();
                names.any(|n| n == stem || (concept.is_some() && self::concept(n) == concept))
            })
    }

    /// Returns the first words of the question that do not refer to tools.
    fn subject(&self, tool: &Candidate<'a>) -> Option<String> {
        let own = |stem: &String| tool.parameters.iter().any(|p| p.name_stems.contains(stem));
        let mut run: Vec<&str> = Vec::new();
        for word in &self.question.words {
            if word.is_content() && !self.is_vocabulary(&word.stem) && !own(&word.stem) {
                run.push(&word.text);
            } else if !run.is_empty() {
                break;
            }
        }
        (!run.is_empty()).then(|| run.join(" "))
    }

    /// Returns the text in `write this text to that/file.txt` verbatim, for a tool that writes.
    fn written(&self, tool: &Candidate<'a>) -> Option<String> {
        let writes = |word: &str| concept(&stem(word)) == Some("write");
        if !tool.name_stems.iter().any(|name| writes(name)) {
            return None;
        }
        let words: Vec<&str> = self.text.split_whitespace().collect();
        let from = 1 + words.iter().position(|word| writes(word))?;
        let rest = words.get(from..)?;
        let to = rest.windows(2).position(|pair| {
            let path = |word: &str| is_path(word.trim_end_matches(['.', ',', '!', '?']));
            matches!(pair, ["to" | "into", word] if path(word))
        })?;
        let text = rest.get(..to)?.join(" ");
        (!text.is_empty()).then_some(text)
    }

    /// Returns the folder in `in the src folder`.
    fn place(&self) -> Option<String> {
        let words = &self.question.words;
        let at = words
            .iter()
            .rposition(|w| matches!(w.stem.as_str(), "in" | "inside" | "under"))?;
        let mut after = words
            .iter()
            .skip(at + 1)
            .skip_while(|w| matches!(w.stem.as_str(), "the" | "my"));
        let word = after.next()?;
        let place = word.is_content() && concept(&word.stem).is_none();
        place.then(|| word.text.clone())
    }

    /// Returns the file in the results that best matches the question.
    fn found_path(&self) -> Option<String> {
        let about = self.question.means("about");
        let mut found: Vec<(usize, &str)> = Vec::new();
        for done in self.done.iter().filter(|done| done.ok) {
            // Search results match by content.
            let searched = done.text.lines().any(|line| answer::hit(line).is_some());
            for (path, times) in done.paths() {
                let name = path.rsplit('/').next().unwrap_or(path);
                let named = |path: &String| {
                    path.rsplit('/')
                        .next()
                        .is_some_and(|n| n.eq_ignore_ascii_case(name))
                };
                let stems = stems(name.rsplit_once('.').map_or(name, |(stem, _)| stem));
                let mut rank = 10
                    * self
                        .question
                        .content()
                        .filter(|w| stems.contains(&w.stem))
                        .count();
                rank += if searched { times.min(9) } else { 0 };
                rank += if self.question.paths.iter().any(named) {
                    30
                } else {
                    0
                };
                rank += if about && stems.iter().any(|s| s == "readme") {
                    20
                } else {
                    0
                };
                found.push((rank, path));
            }
        }
        // The least nested path wins, then the first in alphabetical order.
        found.sort_by_key(|(rank, path)| {
            (std::cmp::Reverse(*rank), path.matches('/').count(), *path)
        });
        found
            .first()
            .filter(|(rank, _)| *rank > 0)
            .map(|(_, path)| (*path).to_owned())
    }
}

/// Sets the score of each tool.
fn score<'a>(question: &'a Question, tools: &mut [Candidate<'a>]) {
    let mut seen: Vec<&str> = Vec::new();
    for word in question.content() {
        let stem = word.stem.as_str();
        if seen.contains(&stem) {
            continue;
        }
        seen.push(stem);
        let weights: Vec<f32> = tools.iter().map(|tool| weight(stem, tool)).collect();
        // A word that matches many tools does not distinguish them.
        let shared = weights
            .iter()
            .filter(|weight| **weight >= NAMED)
            .count()
            .max(1);
        for (tool, weight) in tools.iter_mut().zip(&weights) {
            if *weight >= NAMED {
                tool.named_by.push(stem);
                tool.score += weight * 2.0 / (shared + 1) as f32;
            } else {
                tool.score += weight;
            }
        }
    }
    for tool in tools {
        let gives = [
            (Kind::Path, !question.paths.is_empty(), 2.0),
            (Kind::Url, !question.urls.is_empty(), 3.0),
            (Kind::Text, !question.quoted.is_empty(), 0.9),
            (Kind::Name, !question.names.is_empty(), 0.5),
        ];
        for (kind, given, bonus) in gives {
            if given && tool.needs(&kind) {
                tool.score += bonus;
            } else if given && tool.takes(&kind) {
                tool.score += bonus / 4.0;
            }
        }
    }
}

/// The least weight of a word that names a tool.
const NAMED: f32 = 3.0;

fn weight(stem: &str, tool: &Candidate<'_>) -> f32 {
    let concept = concept(stem);
    let fits = |other: &String| other == stem;
    let means = |other: &String| concept.is_some() && self::concept(other) == concept;
    let parameters = || tool.parameters.iter();
    let description = stems(&tool.spec.description);
    if tool.name_stems.iter().any(fits) {
        4.0
    } else if tool.name_stems.iter().any(means) {
        NAMED
    } else if description.iter().any(fits) {
        0.8
    } else if description.iter().any(means) || parameters().any(|p| p.name_stems.iter().any(fits)) {
        0.6
    } else if parameters().any(|p| p.stems.iter().any(fits)) {
        0.3
    } else {
        0.0
    }
}

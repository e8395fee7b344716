use super::{Rule, Rules};
use crate::guardrail::{Assessment, Subject};
use concentric_core::Str;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};
use tower_service::Service;

/// A classifier for [`GuardrailLayer`](crate::GuardrailLayer), whose categories are the names of the rules.
impl Service<Subject> for Rules {
    type Response = Assessment;
    type Error = Infallible;
    type Future = Ready<Result<Assessment, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, subject: Subject) -> Self::Future {
        let found = self.find(&subject.text);
        let mut categories: Vec<Str> = Vec::new();
        for rule in &found {
            if !categories.contains(&rule.name) {
                categories.push(rule.name.clone());
            }
        }
        ready(Ok(if found.is_empty() {
            Assessment::Pass
        } else if found.into_iter().any(Rule::is_block) {
            Assessment::Block(categories)
        } else {
            Assessment::Flag(categories)
        }))
    }
}

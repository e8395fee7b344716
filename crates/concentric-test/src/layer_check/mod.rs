//! Checks of the contract of every layer over a model.
//!
//! ```
//! use concentric_layers::inspect_events;
//! use concentric_test::check_layer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! check_layer(inspect_events(|event| println!("{event:?}"))).await;
//! # }
//! ```
//!
//! | check | the layer |
//! |---|---|
//! | [`readiness`] | calls only services that it polled ready, does not pass readiness to a clone, releases readiness on drop, and wakes its callers |
//! | [`finished`] | ends its body with the finish, once, and yields nothing after it |
//! | [`failed`] | passes on the error with its kind and code, from the future or as the last item |
//! | [`ended_early`] | does not add a finish to a body without one |
//! | [`polled`] | tolerates spurious polls, and wakes the waker of its last poll |
//! | [`dropped`] | drops the inner future and body when its own are dropped, at any await point |
//! | [`size_hint`] | gives a size hint that holds at every point of the body |
//!
//! The bounds on the layer cover the rest: its service is `Clone + Send + Sync`, and its futures
//! and bodies are `Send`. A layer that breaks one of the rules on purpose, such as one that
//! replaces an error with an apology, runs the other checks one by one.
//!
//! The checks need a tokio runtime with a timer, which may be paused. A layer may spawn tasks.
//!
//! [`check_tool_layer`] checks a layer over a tool, [`check_gate`] a gate of tool calls, and
//! [`check_step_gate`] a gate between the steps of a run.

mod calls;
mod gate;
mod ready;
mod step_gate;
mod tool;

pub use self::{gate::check_gate, step_gate::check_step_gate, tool::check_tool_layer};

use self::{
    calls::{ANSWER, assert_same, broken, call, finish, for_a_while, in_time, request, settle},
    ready::readiness_of,
};
use crate::{Pace, ScriptedModel, Spurious, Strict, drop_at_each_wait, events::read};
use concentric_core::{Error, Event, service::SharedModel};
use futures_util::{Stream, StreamExt};
use std::{cell::RefCell, pin::pin};
use tower_layer::Layer;

/// Runs all checks of this module.
///
/// See the [module docs](self) for the rules.
///
/// # Panics
///
/// Panics if the layer breaks a rule; the message names it.
pub async fn check_layer<L>(layer: L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    readiness(&layer).await;
    finished(&layer).await;
    failed(&layer).await;
    ended_early(&layer).await;
    polled(&layer).await;
    dropped(&layer).await;
    size_hint(&layer).await;
}

/// Checks that the layer calls only services that are ready, and leaks no readiness.
///
/// # Panics
///
/// Panics if the check fails.
pub async fn readiness<L>(layer: &L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    let model = || ScriptedModel::new().text("hi").repeat();
    let unready = ScriptedModel::new().text("hi").unready(broken());
    readiness_of(layer, model, unready, request, async |answer| {
        finish(answer).await;
    })
    .await;
}

/// Checks that a complete response stays complete.
///
/// # Panics
///
/// Panics if the check fails.
pub async fn finished<L>(layer: &L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    in_time("a response that finishes", async {
        let model = ScriptedModel::new().deltas(["Hello. ", "It is ", "me."]);
        finish(call(layer, &model).await).await;
        settle().await;
        assert_eq!(model.live(), 0, "the layer keeps a body that has ended");
    })
    .await;

    in_time("a response that pauses", async {
        let model = ScriptedModel::new()
            .pause()
            .reasoning("Hm.")
            .pause()
            .text("Hello. ")
            .pause()
            .text("It is me.")
            .pause();
        finish(call(layer, &model).await).await;
    })
    .await;
}

/// Checks that an error is passed on unchanged, and ends the response.
///
/// # Panics
///
/// Panics if the check fails.
pub async fn failed<L>(layer: &L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    in_time("a call that fails", async {
        let model = ScriptedModel::new().error(broken()).repeat();
        match call(layer, &model).await.map_err(|e| Error::from(e.into())) {
            Ok(_) => assert_eq!(
                model.calls(),
                0,
                "the call failed before it had a body, and the layer responded with one"
            ),
            Err(error) => assert_same(&error),
        }
        settle().await;
        assert_eq!(model.live(), 0, "the layer keeps a call that has failed");
    })
    .await;

    in_time("a response that fails", async {
        let model = ScriptedModel::new()
            .text("Hello. ")
            .pause()
            .error(broken())
            .repeat();
        match call(layer, &model).await.map_err(|e| Error::from(e.into())) {
            Err(error) => assert_same(&error),
            Ok(response) => {
                let (items, after) = read(response.body).await;
                assert!(after.is_none(), "an item follows the error: {after:?}");
                match items.last() {
                    Some(Err(error)) => assert_same(error),
                    other => assert_eq!(
                        model.calls(),
                        0,
                        "the error was lost; the last item is {other:?}"
                    ),
                }
            }
        }
        settle().await;
        assert_eq!(model.live(), 0, "the layer keeps a body that has failed");
    })
    .await;
}

/// Checks that a truncated response is not passed on as a complete one.
///
/// # Panics
///
/// Panics if the check fails.
pub async fn ended_early<L>(layer: &L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    in_time("a response that ends early", async {
        let model = ScriptedModel::new().text("Hello. ").end_early().repeat();
        if let Ok(response) = call(layer, &model).await {
            let (items, after) = read(response.body).await;
            assert!(after.is_none(), "an item follows the end: {after:?}");
            let finished = matches!(items.last(), Some(Ok(Event::Finish(_))));
            assert!(
                !finished || model.calls() == 0,
                "the layer added a finish to a body that ended early"
            );
        }
    })
    .await;
}

/// Checks that spurious polls change nothing, and lose no wakeup.
///
/// # Panics
///
/// Panics if the check fails.
pub async fn polled<L>(layer: &L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    for pace in Pace::ALL {
        in_time("a response that is polled without a wakeup", async {
            let model = ScriptedModel::new().paced(pace).deltas(ANSWER);
            let response = Spurious::new(call(layer, &model)).await;
            finish(response.map(|it| it.map_body(Spurious::new))).await;
        })
        .await;
    }
}

/// Checks that dropping a response, at any await point, drops the inner one.
///
/// # Panics
///
/// Panics if the check fails.
pub async fn dropped<L>(layer: &L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    in_time("a call that is dropped", async {
        let model = ScriptedModel::new().never();
        {
            let mut call = Box::pin(call(layer, &model));
            let _ = for_a_while(call.as_mut()).await;
        }
        settle().await;
        assert_eq!(model.live(), 0, "the layer keeps a call that was dropped");
    })
    .await;

    in_time("a response that is dropped", async {
        let model = ScriptedModel::new().text("Hello. ").text("It is ").never();
        {
            let mut call = Box::pin(call(layer, &model));
            if let Some(Ok(response)) = for_a_while(call.as_mut()).await {
                let mut body = Box::pin(response.body);
                let _ = for_a_while(body.next()).await;
            }
        }
        settle().await;
        assert_eq!(model.live(), 0, "the layer keeps a body that was dropped");
    })
    .await;

    for pace in Pace::ALL {
        in_time("a response that is dropped at each await point", async {
            let models = RefCell::new(Vec::new());
            let answer = || {
                let model = ScriptedModel::new().paced(pace).deltas(ANSWER);
                let call = call(layer, &model);
                models.borrow_mut().push(model);
                async move {
                    if let Ok(response) = call.await {
                        read(response.body).await;
                    }
                }
            };
            drop_at_each_wait(answer, async |polls| {
                settle().await;
                let live: usize = models.take().iter().map(ScriptedModel::live).sum();
                assert_eq!(
                    live, 0,
                    "the layer keeps a response dropped after {polls} polls"
                );
            })
            .await;
        })
        .await;
    }
}

/// Checks that the body's size hint holds at every point.
///
/// # Panics
///
/// Panics if the check fails.
pub async fn size_hint<L>(layer: &L)
where
    L: Layer<Strict<ScriptedModel>, Service: SharedModel>,
{
    let models = [
        ScriptedModel::new().deltas(["Hello. ", "It is ", "", "me."]),
        ScriptedModel::new()
            .text("Hello. ")
            .error(broken())
            .repeat(),
        ScriptedModel::new().text("Hello. ").end_early().repeat(),
    ];
    for model in models {
        in_time("the size hint", async {
            let Ok(response) = call(layer, &model).await else {
                return;
            };
            let mut body = pin!(response.body);
            let mut hints = Vec::new();
            let mut ended = false;
            while !ended {
                hints.push(body.size_hint());
                ended = match body.next().await {
                    Some(item) => item.map_or(true, |event| event.is_finish()),
                    None => {
                        hints.pop();
                        true
                    }
                };
            }
            let all = hints.len();
            for (at, (least, most)) in hints.into_iter().enumerate() {
                let left = all - at;
                assert!(
                    least <= left && most.is_none_or(|most| left <= most),
                    "the size hint is {least} to {most:?}, but {left} items follow"
                );
            }
        })
        .await;
    }
}

// ---- helpers ----

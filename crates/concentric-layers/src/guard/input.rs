//! The texts of a request.

use super::{Edit, Parts, layer::Options};
use concentric_core::{
    ChatRequest, Context, Error, System, SystemSegment, Transcript,
    state::{Scope, Slot, Transient},
};
use std::sync::Arc;

/// The last conversations of a run, each with its edited form, by the layer that edited them.
struct Edited;

impl Slot for Edited {
    type Value = Vec<(Layer, (Transcript, Transcript))>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/guard";
    const SCOPE: Scope = Scope::Run;
}

/// A layer, compared by its identity. It is kept, so that no other one has its address.
#[derive(Clone)]
pub(super) struct Layer(Arc<Options>);

/// Edits the texts of a request.
///
/// # Errors
///
/// A rule blocks one of them.
pub(super) fn edit(options: &Arc<Options>, request: &mut ChatRequest) -> Result<(), Error> {
    if !options.has_input() {
        return Ok(());
    }
    let mut edit = Edit::new(&options.rules, options.input);
    system(&mut edit, &mut request.system);
    transcript(
        &mut edit,
        options,
        &request.context,
        &mut request.transcript,
    );
    resume(&mut edit, request);
    options.report(edit)
}

fn system(edit: &mut Edit<'_>, system: &mut System) {
    let mut is_changed = false;
    let mut edited = System::default();
    for segment in system.iter() {
        let mut text = segment.text.clone();
        is_changed |= edit.text(&mut text, Parts::SYSTEM);
        edited.push(SystemSegment::new(text).stable_for(segment.stability));
    }
    if is_changed {
        *system = edited;
    }
}

/// Edits the turns that no earlier call of the run had.
fn transcript(
    edit: &mut Edit<'_>,
    options: &Arc<Options>,
    context: &Context,
    transcript: &mut Transcript,
) {
    let is_own = |(layer, _): &(Layer, _)| Arc::ptr_eq(&layer.0, options);
    // Without its slot, all turns are edited again.
    let all = context.state::<Edited>().ok();
    let known = all.iter().flat_map(|all| all.iter());
    let known = known.rev().find(|entry| is_own(entry));
    let edited = edit.transcript(transcript, known.map(|(_, known)| known));
    if edit.is_blocked {
        // Every later call with these turns is blocked too, so none of them counts as known.
        return;
    }
    let pair = (std::mem::replace(transcript, edited.clone()), edited);
    let _ = context.update_state::<Edited>(|all| {
        let others = all.iter().filter(|entry| !is_own(entry)).cloned();
        let mut next: Vec<_> = others.collect();
        next.push((Layer(Arc::clone(options)), pair.clone()));
        next
    });
}

/// Edits the messages and replies of a run that is resumed.
fn resume(edit: &mut Edit<'_>, request: &mut ChatRequest) {
    let Some(resume) = &mut request.resume else {
        return;
    };
    let mut messages = resume.messages().to_vec();
    let edits = messages.iter_mut().map(|message| edit.message(message));
    if edits.fold(false, |all, it| all | it) {
        *resume = resume.clone().with_messages(messages);
    }
    if let Some((point, mut replies)) = resume.take() {
        for reply in &mut replies {
            if let Some(payload) = &mut reply.payload {
                edit.value(payload, Parts::USER, false);
            }
        }
        resume.give_back(point, replies);
    }
}

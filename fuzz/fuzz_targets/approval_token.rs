//! Tokens: what was signed counts, for what it was signed for, and nothing else does.
use arbitrary::Arbitrary;
use concentric_core::{CallId, InterruptId, MessageId, RunId, store::Tenant};
use concentric_tools::{
    Digest,
    token::{Claims, TokenKeys, TokenSubject},
};
use std::time::{Duration, SystemTime};

#[derive(Arbitrary, Clone, Debug, PartialEq)]
pub(crate) struct Fields {
    tenant: String,
    audience: String,
    message: Option<String>,
    call: String,
    position: u32,
    interrupt: String,
    tool: String,
    definition: u8,
    policy: u8,
    arguments: u8,
}

#[derive(Arbitrary, Debug)]
enum Change {
    Nothing,
    Flip(u16, u8),
    Cut(u16),
    Insert(u16, u8),
    Replace(String),
    Subject(Fields),
    Key,
}

#[derive(Arbitrary, Debug)]
pub(crate) struct Case {
    fields: Fields,
    run: String,
    step: u32,
    nonce: String,
    issued: u32,
    lifetime: u16,
    later: u16,
    change: Change,
}

fn digest(of: u8) -> Digest {
    Digest::of_fields("fuzz", &[&[of]])
}

fn subject(fields: &Fields) -> TokenSubject {
    TokenSubject {
        tenant: Tenant(fields.tenant.as_str().into()),
        audience: fields.audience.as_str().into(),
        message_id: fields.message.as_deref().map(MessageId::new),
        call_id: CallId::new(fields.call.as_str()),
        position: fields.position as usize,
        interrupt_id: InterruptId::new(fields.interrupt.as_str()),
        tool: fields.tool.as_str().into(),
        definition: digest(fields.definition),
        policy: digest(fields.policy),
        arguments: digest(fields.arguments),
    }
}

pub(crate) fn run(case: Case) {
    let keys = |byte| TokenKeys::new("k", vec![byte; 32]).expect("a key");
    let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(case.issued.into());
    let lifetime = Duration::from_secs(case.lifetime.into());
    let claims = Claims::new(
        subject(&case.fields),
        RunId::new(case.run.as_str()),
        case.step,
        case.nonce.as_str(),
        issued,
        issued + lifetime,
    );
    let Ok(token) = keys(1).sign(&claims) else {
        return;
    };
    let mut bytes = token.as_bytes().to_vec();
    let at = |at: u16| usize::from(at) % token.len();
    let (mut expected, mut signer) = (case.fields.clone(), 1);
    match &case.change {
        Change::Nothing => {}
        Change::Flip(place, with) => bytes[at(*place)] ^= with,
        Change::Cut(place) => bytes.truncate(at(*place)),
        Change::Insert(place, byte) => bytes.insert(at(*place), *byte),
        Change::Replace(text) => bytes = text.clone().into_bytes(),
        Change::Subject(fields) => expected = fields.clone(),
        Change::Key => signer = 2,
    }
    let Ok(changed) = String::from_utf8(bytes) else {
        return;
    };
    let later = Duration::from_secs(case.later.into());
    let verified = keys(signer).verify(&changed, &subject(&expected), issued + later);
    let counts = *changed == *token && expected == case.fields && signer == 1 && later < lifetime;
    assert_eq!(verified.is_ok(), counts, "{verified:?}");
    if let Ok(verified) = verified {
        assert_eq!(verified, claims);
    }
}

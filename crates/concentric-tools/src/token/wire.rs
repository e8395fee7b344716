//! The binary encoding of a token.

use super::{Claims, TokenSubject};
use crate::Digest;
use concentric_core::{CallId, InterruptId, MessageId, RunId, store::Tenant};
use std::time::{Duration, SystemTime};

const VERSION: u8 = 1;

/// Encodes the signed part: the version, the key's id and the claims.
///
/// Returns `None` for times before 1970, and texts of 4 GiB or more.
pub(super) fn encode(key_id: &str, claims: &Claims) -> Option<Vec<u8>> {
    // Destructured, so that a new field is a compile error here.
    let Claims {
        subject,
        run_id,
        step,
        nonce,
        edited,
        issued_at,
        expires_at,
    } = claims;
    let TokenSubject {
        tenant,
        audience,
        message_id,
        call_id,
        position,
        interrupt_id,
        tool,
        definition,
        policy,
        arguments,
    } = subject;

    let mut to = vec![VERSION];
    put_text(&mut to, key_id)?;
    put_text(&mut to, &tenant.0)?;
    put_text(&mut to, audience)?;
    to.push(u8::from(message_id.is_some()));
    if let Some(id) = message_id {
        put_text(&mut to, id.as_str())?;
    }
    put_text(&mut to, call_id.as_str())?;
    to.extend((*position as u64).to_be_bytes());
    put_text(&mut to, interrupt_id.as_str())?;
    put_text(&mut to, tool)?;
    for digest in [definition, policy, arguments] {
        to.extend(digest.as_bytes());
    }
    put_text(&mut to, run_id.as_str())?;
    to.extend(step.to_be_bytes());
    put_text(&mut to, nonce)?;
    for time in [issued_at, expires_at] {
        to.extend(millis(*time)?.to_be_bytes());
    }
    // Omitted if absent, for compatibility with older tokens.
    if let Some(edited) = edited {
        put_text(&mut to, edited)?;
    }
    Some(to)
}

/// Milliseconds since 1970, the resolution of a stored time.
pub(super) fn millis(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

fn put_text(to: &mut Vec<u8>, text: &str) -> Option<()> {
    to.extend(u32::try_from(text.len()).ok()?.to_be_bytes());
    to.extend(text.as_bytes());
    Some(())
}

/// The unread part of a token.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads the key id, and returns it with a reader of the claims.
    pub(super) fn new(signed: &'a [u8]) -> Option<(&'a str, Self)> {
        let mut reader = Self(signed);
        if reader.array()? != [VERSION] {
            return None;
        }
        Some((reader.text()?, reader))
    }

    /// Reads the claims; `None` if they are invalid or followed by other bytes.
    pub(super) fn claims(mut self) -> Option<Claims> {
        let subject = self.subject()?;
        let claims = Claims {
            subject,
            run_id: RunId::new(self.text()?),
            step: u32::from_be_bytes(self.array()?),
            nonce: self.text()?.into(),
            issued_at: self.time()?,
            expires_at: self.time()?,
            edited: match self.0.is_empty() {
                true => None,
                false => Some(self.text()?.into()),
            },
        };
        self.0.is_empty().then_some(claims)
    }

    fn subject(&mut self) -> Option<TokenSubject> {
        Some(TokenSubject {
            tenant: Tenant(self.text()?.into()),
            audience: self.text()?.into(),
            message_id: match self.array()? {
                [0] => None,
                [1] => Some(MessageId::new(self.text()?)),
                _ => return None,
            },
            call_id: CallId::new(self.text()?),
            position: usize::try_from(u64::from_be_bytes(self.array()?)).ok()?,
            interrupt_id: InterruptId::new(self.text()?),
            tool: self.text()?.into(),
            definition: Digest::from_bytes(self.array()?),
            policy: Digest::from_bytes(self.array()?),
            arguments: Digest::from_bytes(self.array()?),
        })
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(u32::from_be_bytes(self.array()?)).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        str::from_utf8(text).ok()
    }

    fn time(&mut self) -> Option<SystemTime> {
        let since = Duration::from_millis(u64::from_be_bytes(self.array()?));
        SystemTime::UNIX_EPOCH.checked_add(since)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
}

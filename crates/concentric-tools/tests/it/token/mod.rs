//! Approval tokens, and the digests of what they are for.

mod digests;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use concentric_core::{
    Annotations, CallId, InterruptId, MessageId, RunId, ToolSpec, store::Tenant,
};
use concentric_tools::{
    Digest,
    token::{Claims, MAX_TOKEN_LEN, TokenError, TokenKeys, TokenSubject},
};
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng},
};
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn key(id: &str, byte: u8) -> TokenKeys {
    TokenKeys::new(id, vec![byte; 32]).unwrap()
}

fn keys() -> TokenKeys {
    key("k1", 1)
}

/// 2026-10-01T00:00:00Z.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_812_800)
}

fn digest(of: &str) -> Digest {
    Digest::of_fields("test", &[of.as_bytes()])
}

fn claims() -> Claims {
    let subject = TokenSubject {
        tenant: Tenant("acme".into()),
        audience: "billing".into(),
        message_id: Some(MessageId::new("msg-1")),
        call_id: CallId::new("call-1"),
        position: 2,
        interrupt_id: InterruptId::new("int-1"),
        tool: "refund".into(),
        definition: digest("definition"),
        policy: digest("policy"),
        arguments: digest("arguments"),
    };
    let run = RunId::new("run-1");
    Claims::new(subject, run, 3, "nonce-1", now(), now() + 5 * MINUTE)
}

fn expected(claims: &Claims) -> TokenSubject {
    claims.subject.clone()
}

fn token() -> String {
    keys().sign(&claims()).unwrap().to_string()
}

fn verify(token: &str) -> Result<Claims, TokenError> {
    keys().verify(token, &expected(&claims()), now())
}

/// How each field is set to another value, and what is said if it isn't the one expected.
type Change = (fn(&mut Claims), TokenError);

const CHANGES: &[Change] = &[
    (|c| c.subject.tenant.0 = "other".into(), TokenError::Tenant),
    (
        |c| c.subject.audience = "other".into(),
        TokenError::Audience,
    ),
    (
        |c| c.subject.message_id = Some(MessageId::new("other")),
        TokenError::Message,
    ),
    (|c| c.subject.message_id = None, TokenError::Message),
    (
        |c| c.subject.call_id = CallId::new("other"),
        TokenError::Call,
    ),
    (|c| c.subject.position += 1, TokenError::Position),
    (
        |c| c.subject.interrupt_id = InterruptId::new("other"),
        TokenError::Interrupt,
    ),
    (|c| c.subject.tool = "other".into(), TokenError::Tool),
    (
        |c| c.subject.definition = digest("other"),
        TokenError::Definition,
    ),
    (|c| c.subject.policy = digest("other"), TokenError::Policy),
    (
        |c| c.subject.arguments = digest("other"),
        TokenError::Arguments,
    ),
];

#[test]
fn a_token_says_what_was_signed() {
    assert_eq!(verify(&token()), Ok(claims()));
    let mut claims = claims();
    claims.subject.message_id = None;
    claims.subject.tenant = Tenant::default();
    claims.nonce = "ß\0\u{1f600}".into();
    let token = keys().sign(&claims).unwrap();
    assert_eq!(
        keys().verify(token.as_str(), &expected(&claims), now()),
        Ok(claims)
    );
}

// Made with Python's hmac, by the table in the module's docs. If this fails, the tokens
// that are out there no longer count, and the version must change.
#[test]
fn the_format_stays_what_it_is() {
    let golden = "AQAAAAJrMQAAAARhY21lAAAAB2JpbGxpbmcBAAAABW1zZy0xAAAABmNhbGwtMQAAAAAAAAACAAAA\
        BWludC0xAAAABnJlZnVuZLoDSvVq1BFTcqojx2ZTXJXNiE-b4LVji8rkLms94r2a1Fg3m4LCQx7_\
        dXJ11LfQT4qItFbd9C5SfGMXN6p8nNcLnJocgEfLPkT7Vtlq2we5D1RAP0dhzRD7gLNSAZEf5gAA\
        AAVydW4tMQAAAAMAAAAHbm9uY2UtMQAAAaD0wsQAAAABoPTHV-DRrGftEiez0xxwE4CIdUs4MRy4\
        SnUdQAEIsUxY0Vgikg";
    assert_eq!(token(), golden);
    assert_eq!(verify(golden), Ok(claims()));
}

#[test]
fn a_field_that_differs_is_refused_on_either_side() {
    for (change, error) in CHANGES {
        let mut other = claims();
        change(&mut other);
        let signed = keys().sign(&other).unwrap();
        assert_eq!(verify(signed.as_str()), Err(*error));
        let wanted = expected(&other);
        assert_eq!(keys().verify(&token(), &wanted, now()), Err(*error));
    }
}

#[test]
fn no_two_fields_can_be_swapped() {
    type Text = (fn(&Claims) -> &str, fn(&mut Claims, String));
    const TEXTS: &[Text] = &[
        (
            |c| &c.subject.tenant.0,
            |c, to| c.subject.tenant.0 = to.into(),
        ),
        (
            |c| &c.subject.audience,
            |c, to| c.subject.audience = to.into(),
        ),
        (
            |c| c.subject.message_id.as_ref().map_or("", MessageId::as_str),
            |c, to| c.subject.message_id = Some(MessageId::new(to)),
        ),
        (
            |c| c.subject.call_id.as_str(),
            |c, to| c.subject.call_id = CallId::new(to),
        ),
        (
            |c| c.subject.interrupt_id.as_str(),
            |c, to| c.subject.interrupt_id = InterruptId::new(to),
        ),
        (|c| &c.subject.tool, |c, to| c.subject.tool = to.into()),
        (|c| c.run_id.as_str(), |c, to| c.run_id = RunId::new(to)),
        (|c| &c.nonce, |c, to| c.nonce = to.into()),
    ];
    const DIGESTS: &[fn(&mut Claims) -> &mut Digest] = &[
        |c| &mut c.subject.definition,
        |c| &mut c.subject.policy,
        |c| &mut c.subject.arguments,
    ];
    let refused = |swapped: &Claims| {
        let signed = keys().sign(swapped).unwrap();
        assert_ne!(verify(signed.as_str()), Ok(claims()));
        let result = keys().verify(&token(), &expected(swapped), now());
        assert_ne!(result.as_ref(), Ok(swapped));
    };
    for (i, (get_a, set_a)) in TEXTS.iter().enumerate() {
        for (get_b, set_b) in &TEXTS[..i] {
            let (mut swapped, claims) = (claims(), claims());
            set_a(&mut swapped, get_b(&claims).to_owned());
            set_b(&mut swapped, get_a(&claims).to_owned());
            refused(&swapped);
        }
    }
    for (i, a) in DIGESTS.iter().enumerate() {
        for b in &DIGESTS[..i] {
            let (mut swapped, mut claims) = (claims(), claims());
            *a(&mut swapped) = *b(&mut claims);
            *b(&mut swapped) = *a(&mut claims);
            refused(&swapped);
        }
    }
    let mut swapped = claims();
    (swapped.step, swapped.subject.position) = (2, 3);
    refused(&swapped);
    let mut swapped = claims();
    std::mem::swap(&mut swapped.issued_at, &mut swapped.expires_at);
    assert_eq!(keys().sign(&swapped).unwrap_err(), TokenError::Lifetime);
}

#[test]
fn what_one_field_ends_with_can_not_begin_the_next() {
    let mut other = claims();
    other.subject.tenant.0 = "acmeb".into();
    other.subject.audience = "illing".into();
    let other = keys().sign(&other).unwrap();
    assert_ne!(other.as_str(), token());
    assert_eq!(verify(other.as_str()), Err(TokenError::Tenant));
    // Not even if its text looks like a length and another field.
    let mut other = claims();
    other.subject.tenant.0 = "acme\0\0\0\u{7}billing".into();
    other.subject.audience = "".into();
    let other = keys().sign(&other).unwrap();
    assert_eq!(verify(other.as_str()), Err(TokenError::Tenant));
}

#[test]
fn tokens_that_trade_their_parts_are_forged() {
    let sign = |claims: &Claims| {
        let token = keys().sign(claims).unwrap();
        URL_SAFE_NO_PAD.decode(token.as_str()).unwrap()
    };
    let ours = sign(&claims());
    for (change, _) in CHANGES {
        let mut other = claims();
        change(&mut other);
        let theirs = sign(&other);
        // The claims of one, the tag of the other.
        for (body, tag) in [(&ours, &theirs), (&theirs, &ours)] {
            let mut bytes = body[..body.len() - 32].to_vec();
            bytes.extend(&tag[tag.len() - 32..]);
            let token = URL_SAFE_NO_PAD.encode(bytes);
            assert_eq!(verify(&token), Err(TokenError::Forged));
        }
        // And any part of one within the other.
        if ours.len() == theirs.len() {
            for at in 1..ours.len() {
                let token = [&ours[..at], &theirs[at..]].concat();
                if token != ours && token != theirs {
                    assert!(verify(&URL_SAFE_NO_PAD.encode(token)).is_err());
                }
            }
        }
    }
}

#[test]
fn no_bit_of_a_token_can_be_flipped() {
    let token = token();
    let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
    for at in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        let error = verify(&URL_SAFE_NO_PAD.encode(&bytes)).unwrap_err();
        assert!(
            matches!(
                error,
                TokenError::Forged | TokenError::Malformed | TokenError::UnknownKey
            ),
            "{at}: {error:?}"
        );
    }
    for at in 0..token.len() * 8 {
        let mut text = token.clone().into_bytes();
        text[at / 8] ^= 1 << (at % 8);
        // Not all of them are text; those can't even be asked about.
        if let Ok(text) = String::from_utf8(text) {
            assert!(verify(&text).is_err(), "{at}");
        }
    }
}

#[test]
fn no_mutation_of_a_token_counts() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let seed: u64 = setting("CONCENTRIC_SEED").unwrap_or_else(random_seed);
    let mutations: u64 = setting("CONCENTRIC_MUTATIONS").unwrap_or(10_000);
    println!("CONCENTRIC_SEED={seed} CONCENTRIC_MUTATIONS={mutations}");
    let seed = [seed.to_le_bytes(); 4].concat();
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut below = |n: usize| usize::try_from(rng.next_u64() % n as u64).unwrap();

    let (keys, wanted, token) = (keys(), expected(&claims()), token());
    let original = URL_SAFE_NO_PAD.decode(&token).unwrap();
    let (mut refused, mut unchanged, mut accepted) = (0, 0, 0);
    for _ in 0..mutations {
        // Half of them in what the text stands for, half of them in the text.
        let decoded = below(2) == 0;
        let mut bytes = if decoded {
            original.clone()
        } else {
            token.clone().into_bytes()
        };
        for _ in 0..=below(4) {
            let at = below(bytes.len());
            match below(6) {
                0 => bytes[at] = u8::try_from(below(256)).unwrap(),
                1 => bytes[at] ^= 1 << below(8),
                2 => bytes.insert(at, u8::try_from(below(256)).unwrap()),
                3 if bytes.len() > 1 => drop(bytes.remove(at)),
                4 => bytes.truncate(at + 1),
                _ => {
                    let other = below(bytes.len());
                    bytes.swap(at, other);
                }
            }
        }
        let mutation = if decoded {
            URL_SAFE_NO_PAD.encode(&bytes)
        } else {
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let result = keys.verify(&mutation, &wanted, now());
        match (&result, mutation == token) {
            (Err(_), false) => refused += 1,
            (_, true) => unchanged += 1,
            (Ok(_), false) => accepted += 1,
        }
        assert_eq!(result.is_ok(), mutation == token, "{mutation}");
    }
    println!(
        "{mutations} mutations of a token, {refused} refused, {unchanged} that changed nothing, \
         {accepted} accepted"
    );
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[test]
fn a_token_has_one_spelling() {
    let token = token();
    let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
    let spellings = [
        format!("{token}="),
        format!("{token}=="),
        format!("{token}\n"),
        format!(" {token}"),
        format!("{token}A"),
        format!("{token}AAAA"),
        base64::engine::general_purpose::STANDARD_NO_PAD.encode(&bytes),
        base64::engine::general_purpose::STANDARD.encode(&bytes),
    ];
    for spelling in spellings.iter().filter(|spelling| **spelling != token) {
        assert!(verify(spelling).is_err(), "{spelling}");
    }
    // The bits that the last character has to spare, for each length modulo 3.
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for nonce in ["1", "12", "123"] {
        let mut claims = claims();
        claims.nonce = nonce.into();
        let token = keys().sign(&claims).unwrap();
        let (last, rest) = token.as_str().as_bytes().split_last().unwrap();
        let accepted = DIGITS.iter().filter(|digit| {
            let token = String::from_utf8([rest, &[**digit]].concat()).unwrap();
            keys().verify(&token, &expected(&claims), now()).is_ok()
        });
        assert_eq!(accepted.collect::<Vec<_>>(), [last]);
    }
}

#[test]
fn what_is_no_token_is_malformed() {
    let cut: String = token().chars().take(40).collect();
    let zeros = "A".repeat(400);
    for text in ["", ".", "A", "null", "ä", "\0", &cut, &zeros] {
        assert_eq!(verify(text), Err(TokenError::Malformed), "{text}");
    }
    // Nobody looks at what is in one that is too long.
    let long = |len: usize| format!("AQ{}", "A".repeat(len - 2));
    assert_eq!(verify(&long(MAX_TOKEN_LEN)), Err(TokenError::UnknownKey));
    assert_eq!(verify(&long(MAX_TOKEN_LEN + 4)), Err(TokenError::Malformed));
    // A length that is longer than the token, and one that isn't.
    let mut bytes = vec![1, 255, 255, 255, 255];
    bytes.extend([0; 64]);
    assert_eq!(
        verify(&URL_SAFE_NO_PAD.encode(&bytes)),
        Err(TokenError::Malformed)
    );
    bytes[1..5].fill(0);
    assert_eq!(
        verify(&URL_SAFE_NO_PAD.encode(&bytes)),
        Err(TokenError::UnknownKey)
    );
}

#[test]
fn claims_that_would_be_too_long_are_not_signed() {
    let mut claims = claims();
    claims.run_id = RunId::new("x".repeat(MAX_TOKEN_LEN));
    assert_eq!(keys().sign(&claims).unwrap_err(), TokenError::TooLong);
    claims.run_id = RunId::new("x".repeat(MAX_TOKEN_LEN / 2));
    let token = keys().sign(&claims).unwrap();
    assert!(
        keys()
            .verify(token.as_str(), &expected(&claims), now())
            .is_ok()
    );
}

#[test]
fn the_run_that_asked_is_told_and_need_not_be_known() {
    let wanted = claims().subject;
    let said = keys().verify(&token(), &wanted, now()).unwrap();
    assert_eq!((said.run_id.as_str(), said.step), ("run-1", 3));
}

#[test]
fn a_rotated_key_counts_as_long_as_it_is_accepted() {
    let wanted = expected(&claims());
    let old = token();
    let new = key("k2", 2);
    assert_eq!(
        new.verify(&old, &wanted, now()),
        Err(TokenError::UnknownKey)
    );

    // The overlap: everybody accepts the new key before somebody signs with it.
    let before = keys().accept("k2", vec![2; 32]).unwrap();
    let after = new.clone().accept("k1", vec![1; 32]).unwrap();
    let fresh = after.sign(&claims()).unwrap();
    for keys in [&before, &after] {
        assert!(keys.verify(&old, &wanted, now()).is_ok());
        assert!(keys.verify(fresh.as_str(), &wanted, now()).is_ok());
    }

    let until = now() + MINUTE;
    let ending = new.accept_until("k1", vec![1; 32], until).unwrap();
    assert!(ending.verify(&old, &wanted, until - SECOND).is_ok());
    assert_eq!(
        ending.verify(&old, &wanted, until),
        Err(TokenError::RetiredKey)
    );
    assert!(ending.verify(fresh.as_str(), &wanted, until).is_ok());
}

#[test]
fn a_key_does_not_sign_for_another_of_its_id_or_under_another_id() {
    let wanted = expected(&claims());
    let other = key("k1", 9);
    assert_eq!(
        other.verify(&token(), &wanted, now()),
        Err(TokenError::Forged)
    );
    // The id is signed, too: the same secret under another id makes another tag.
    let same = key("k2", 1).accept("k1", vec![1; 32]).unwrap();
    let mut bytes = URL_SAFE_NO_PAD.decode(token()).unwrap();
    assert_eq!(&bytes[5..7], b"k1");
    bytes[6] = b'2';
    let renamed = URL_SAFE_NO_PAD.encode(bytes);
    assert_eq!(
        same.verify(&renamed, &wanted, now()),
        Err(TokenError::Forged)
    );
}

#[test]
fn keys_that_are_none_are_refused() {
    let new = |id: &str, len| TokenKeys::new(id, vec![0; len]).map(drop);
    assert_eq!(new("k", 31), Err(TokenError::ShortSecret));
    assert_eq!(new("k", 0), Err(TokenError::ShortSecret));
    assert_eq!(new("k", 32), Ok(()));
    assert_eq!(new("k", 1000), Ok(()));
    assert_eq!(new("", 32), Err(TokenError::KeyId));
    assert_eq!(new(&"k".repeat(65), 32), Err(TokenError::KeyId));
    let twice = |keys: TokenKeys| keys.accept("k1", vec![2; 32]).unwrap_err();
    assert_eq!(twice(keys()), TokenError::DuplicateKey);
    let accepted = key("k0", 0).accept("k1", vec![1; 32]).unwrap();
    assert_eq!(twice(accepted), TokenError::DuplicateKey);
}

#[test]
fn a_token_counts_from_its_issue_to_its_expiry() {
    let (token, wanted) = (token(), expected(&claims()));
    let at = |keys: &TokenKeys, now| keys.verify(&token, &wanted, now).map(drop);
    let (issued, expires) = (claims().issued_at, claims().expires_at);
    let ms = Duration::from_millis(1);
    let keys = keys();
    assert_eq!(at(&keys, issued), Ok(()));
    assert_eq!(at(&keys, expires - ms), Ok(()));
    assert_eq!(at(&keys, expires), Err(TokenError::Expired));
    assert_eq!(
        at(&keys, expires + 100 * 365 * DAY),
        Err(TokenError::Expired)
    );
    // Another process's clock may be ahead, so far.
    assert_eq!(at(&keys, issued - 30 * SECOND), Ok(()));
    assert_eq!(
        at(&keys, issued - 30 * SECOND - ms),
        Err(TokenError::NotYet)
    );
    assert_eq!(at(&keys, SystemTime::UNIX_EPOCH), Err(TokenError::NotYet));
    let strict = keys.clone().max_skew(Duration::ZERO);
    assert_eq!(at(&strict, issued), Ok(()));
    assert_eq!(at(&strict, issued - ms), Err(TokenError::NotYet));
    // Skew does not lengthen it.
    let lax = keys.clone().max_skew(DAY);
    assert_eq!(at(&lax, expires), Err(TokenError::Expired));
    // A verifier may be stricter than who signed.
    let short = keys.max_lifetime(5 * MINUTE - ms);
    assert_eq!(at(&short, issued), Err(TokenError::Lifetime));
}

#[test]
fn times_that_make_no_sense_are_not_signed() {
    let sign = |issued_at, expires_at| {
        let mut claims = claims();
        (claims.issued_at, claims.expires_at) = (issued_at, expires_at);
        keys().sign(&claims).map(drop)
    };
    assert_eq!(sign(now(), now() + 7 * DAY), Ok(()));
    assert_eq!(
        sign(now(), now() + 7 * DAY + SECOND),
        Err(TokenError::Lifetime)
    );
    assert_eq!(sign(now(), now()), Err(TokenError::Lifetime));
    // Nothing is left of so short a time.
    let short = now() + Duration::from_micros(900);
    assert_eq!(sign(now(), short), Err(TokenError::Lifetime));
    assert_eq!(sign(now(), now() - SECOND), Err(TokenError::Lifetime));
    let early = SystemTime::UNIX_EPOCH - SECOND;
    assert_eq!(sign(early, early + MINUTE), Err(TokenError::Lifetime));
}

#[test]
fn times_are_kept_to_the_millisecond() {
    let mut claims = claims();
    claims.issued_at += Duration::from_nanos(1_999_999);
    let token = keys().sign(&claims).unwrap();
    let said = keys()
        .verify(token.as_str(), &expected(&claims), now())
        .unwrap();
    assert_eq!(said.issued_at, now() + Duration::from_millis(1));
}

#[test]
fn nothing_secret_is_shown() {
    let secret = b"correct horse battery staple etc";
    let keys = TokenKeys::new("k1", secret.to_vec()).unwrap();
    let shown = format!("{keys:?}");
    assert!(shown.contains("k1"));
    assert!(
        !shown.contains("horse") && !shown.contains("99, 111"),
        "{shown}"
    );
}

#[test]
fn each_error_has_a_code_of_its_own() {
    use TokenError::*;
    let all = [
        Malformed,
        UnknownKey,
        Forged,
        RetiredKey,
        Tenant,
        Audience,
        Message,
        Call,
        Position,
        Interrupt,
        Tool,
        Definition,
        Policy,
        Arguments,
        Lifetime,
        TooLong,
        NotYet,
        Expired,
        KeyId,
        ShortSecret,
        DuplicateKey,
    ];
    let codes: HashSet<_> = all.iter().map(|error| error.code()).collect();
    let texts: HashSet<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!((codes.len(), texts.len()), (all.len(), all.len()));
    for code in codes {
        assert!(
            code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
            "{code}"
        );
    }
}

#[test]
fn the_times_of_keys_may_be_zero_one_and_the_maximum() {
    let ms = Duration::from_millis;
    let lasting = |lifetime: Duration| {
        let mut claims = claims();
        claims.expires_at = claims.issued_at + lifetime;
        claims
    };
    // How long a token may count.
    for (longest, lifetime, counts) in [
        (Duration::ZERO, Duration::ZERO, false),
        (Duration::ZERO, ms(1), false),
        (ms(1), ms(1), true),
        (ms(1), ms(2), false),
        (Duration::MAX, ms(1), true),
        (Duration::MAX, 36_500 * DAY, true),
    ] {
        let keys = keys().max_lifetime(longest);
        let claims = lasting(lifetime);
        let about = format!("{longest:?}, {lifetime:?}");
        match keys.sign(&claims) {
            Ok(token) => {
                assert!(counts, "{about}");
                let wanted = expected(&claims);
                let verified = keys.verify(token.as_str(), &wanted, claims.issued_at);
                assert!(verified.is_ok(), "{about}");
                let end = claims.expires_at;
                let verified = keys.verify(token.as_str(), &wanted, end);
                assert_eq!(verified, Err(TokenError::Expired), "{about}");
            }
            Err(error) => assert_eq!((error, counts), (TokenError::Lifetime, false), "{about}"),
        }
        // One that is signed by others counts no longer.
        if lifetime > Duration::ZERO {
            let lax = self::keys().max_lifetime(Duration::MAX);
            let token = lax.sign(&claims).unwrap();
            let verified = keys.verify(token.as_str(), &expected(&claims), claims.issued_at);
            let expected = (!counts).then_some(TokenError::Lifetime);
            assert_eq!(verified.err(), expected, "{about}");
        }
    }
    // How far the clock that issued it may be ahead.
    for (skew, ahead, counts) in [
        (Duration::ZERO, Duration::ZERO, true),
        (Duration::ZERO, ms(1), false),
        (ms(1), ms(1), true),
        (ms(1), ms(2), false),
        (Duration::MAX, 36_500 * DAY, true),
    ] {
        let keys = keys().max_skew(skew);
        let claims = claims();
        let token = keys.sign(&claims).unwrap();
        let verified = keys.verify(token.as_str(), &expected(&claims), claims.issued_at - ahead);
        let expected = (!counts).then_some(TokenError::NotYet);
        assert_eq!(verified.err(), expected, "{skew:?}, {ahead:?}");
    }
}

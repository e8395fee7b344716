//! Digests of JSON, of tools and of requests: equal for equal values.

use crate::request::ChatRequest;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use concentric_proto::{
    Annotations, Author, CallId, ChatOptions, Message, Part, PartKind, ToolContent, ToolResult,
    ToolSpec, Turn,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, IgnoredAny},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, btree_map::Entry},
    fmt,
    io::{self, BufWriter, Write},
};
use subtle::ConstantTimeEq;

/// A SHA-256 digest (32 bytes) of a value.
///
/// JSON is hashed by content: white space, the order of keys and escapes in strings make no
/// difference. Numbers are hashed by their text, the only exact representation: `1`, `1.0` and
/// `1e0` differ, and so do 2^70 and 2^70 + 1.
///
/// Text and serde formats are unpadded base64url, 43 characters. Comparison takes constant time. A
/// digest does not hide predictable values, which can be guessed.
///
/// ```
/// use concentric_core::digest::Digest;
///
/// let one = Digest::of_json(r#"{"to": "Zo\u00eb", "amount": 5}"#)?;
/// assert_eq!(one, Digest::of_json(r#"{"amount":5,"to":"Zoë"}"#)?);
/// assert_ne!(one, Digest::of_json(r#"{"amount":5.0,"to":"Zoë"}"#)?);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of exactly one JSON value.
    ///
    /// # Errors
    ///
    /// Returns an error for invalid JSON, duplicate keys, unpaired surrogates, and values nested
    /// deeper than serde_json allows (127 levels).
    pub fn of_json(text: &str) -> Result<Self, serde_json::Error> {
        // The reader below requires valid JSON; this check does not recurse.
        serde_json::from_str::<IgnoredAny>(text)?;
        let mut encoder = Encoder::new(JSON);
        encoder.node(&Reader(text).value(LEVELS)?);
        Ok(encoder.finish())
    }

    /// The digest of `value`, equal to that of the text that serde_json writes for it.
    ///
    /// It may differ from the digest of the text that `value` was parsed from, whose numbers may
    /// have been rounded.
    pub fn of_value(value: &Value) -> Self {
        let mut encoder = Encoder::new(JSON);
        // Iterative: a value may be nested deeper than parsed text.
        let mut todo = vec![(None, value)];
        while let Some((key, value)) = todo.pop() {
            if let Some(key) = key {
                encoder.bytes(key);
            }
            match value {
                Value::Null => encoder.word("null"),
                Value::Bool(true) => encoder.word("true"),
                Value::Bool(false) => encoder.word("false"),
                Value::Number(number) => encoder.number(&number.to_string()),
                Value::String(text) => encoder.string(text),
                Value::Array(items) => {
                    encoder.array(items.len());
                    todo.extend(items.iter().rev().map(|item| (None, item)));
                }
                Value::Object(entries) => {
                    encoder.object(entries.len());
                    let mut entries: Vec<_> = entries
                        .iter()
                        .map(|(key, value)| (Some(key.as_bytes()), value))
                        .collect();
                    entries.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
                    todo.append(&mut entries);
                }
            }
        }
        encoder.finish()
    }

    /// The digest of `fields`, in order.
    ///
    /// `domain` identifies their meaning, such as `myapp/policy/v1`: the same fields in another
    /// domain have another digest.
    pub fn of_fields(domain: &str, fields: &[&[u8]]) -> Self {
        let mut encoder = Encoder::new(FIELDS);
        encoder.bytes(domain.as_bytes());
        encoder.len(fields.len());
        for field in fields {
            encoder.bytes(field);
        }
        encoder.finish()
    }

    /// The digest of a tool's definition: its specification for the model, its annotations and its
    /// groups.
    pub fn of_spec(spec: &ToolSpec) -> Self {
        let output = spec.output_schema.as_deref().map(Self::of_value);
        let Annotations {
            title,
            read_only,
            destructive,
            idempotent,
            open_world,
            ..
        } = &spec.annotations;
        let groups: Vec<_> = spec.groups.iter().map(|group| group.as_bytes()).collect();
        let hints = [*read_only, *destructive, *idempotent, *open_world].map(u8::from);
        let schema = Self::of_value(&spec.input_schema);
        let groups = Self::of_fields(GROUPS, &groups);
        let mut fields: Vec<&[u8]> = vec![
            spec.name.as_bytes(),
            spec.description.as_bytes(),
            schema.as_bytes(),
            output.as_ref().map_or(&[], |output| output.as_bytes()),
            title.as_ref().map_or(&[], |_| &[1]),
            title.as_deref().unwrap_or_default().as_bytes(),
            &hints,
            groups.as_bytes(),
        ];
        if spec.keyed {
            fields.push(b"keyed");
        }
        Self::of_fields(SPEC, &fields)
    }

    /// The digest of all parts of a request that may change the answer of a model: the system prompt, the
    /// conversation, the tools in their order, and the options.
    ///
    /// Two requests with equal digests have the same meaning for a model. These make no difference: the
    /// [context](ChatRequest::context) and what it has of its run, the ids of messages and calls, the
    /// [authors](Part::author) of parts, and the [metadata](ChatOptions::metadata). Data of the provider does,
    /// since only the provider can interpret it. So does the order of keys in a schema, which
    /// models follow, if `serde_json` keeps it.
    ///
    /// ```
    /// use concentric_core::{ChatRequest, digest::Digest};
    ///
    /// let request = ChatRequest::user("hi").with_system("Be brief.");
    /// let digest = Digest::of_request(&request)?;
    /// assert_eq!(digest, Digest::of_request(&ChatRequest::user("hi").with_system("Be brief."))?);
    /// assert_ne!(digest, Digest::of_request(&ChatRequest::user("hi"))?);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A part of the request can't be represented as JSON.
    pub fn of_request(request: &ChatRequest) -> Result<Self, serde_json::Error> {
        // All fields are named, so that a new one is not forgotten.
        let ChatRequest {
            transcript,
            system,
            tools,
            options,
            resume: _,
            checkpoint: _,
            context: _,
            overrides: _,
        } = request;
        let mut options = ChatOptions::clone(options);
        options.metadata.clear();
        let mut lines = Lines::new();
        lines.push(&REQUEST)?;
        lines.push(system)?;
        lines.push(tools)?;
        lines.push(&options)?;
        let mut ids = Ids::default();
        for turn in transcript.iter() {
            lines.turn(turn, &mut ids)?;
        }
        lines.finish()
    }

    /// Creates a digest from [`as_bytes`](Self::as_bytes).
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest as bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let bytes = URL_SAFE_NO_PAD.decode(text.as_bytes()).ok();
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or_else(|| D::Error::custom("a digest is 43 characters of base64url"))
    }
}

// The kind of a digested value.
const JSON: &str = "concentric/json/v1";
const FIELDS: &str = "concentric/fields/v1";

// The domains of fields.
const SPEC: &str = "concentric/tool-spec/v1";
const GROUPS: &str = "concentric/tool-groups/v1";

/// The first line of a digested request.
const REQUEST: &str = "concentric/request/v2";

/// JSON values, each on a line, which are hashed as they are serialized. This is unambiguous, since JSON has no line
/// feed, and takes no tree of values.
struct Lines(BufWriter<Hash>);

struct Hash(Sha256);

/// The number of bytes that are hashed at once.
const HASHED: usize = 1 << 10;

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn new() -> Self {
        Self(BufWriter::with_capacity(HASHED, Hash(Sha256::new())))
    }

    fn push(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), serde_json::Error> {
        serde_json::to_writer(&mut self.0, value)?;
        self.0.write_all(b"\n").map_err(serde_json::Error::io)
    }

    /// Adds a turn without its ids and authors. The rest is digested as it is serialized, so that a new field is
    /// included.
    fn turn(&mut self, turn: &Turn, ids: &mut Ids) -> Result<(), serde_json::Error> {
        self.push(&message_of(turn.as_message(), ids))?;
        let results = turn.results();
        self.push(&results.len())?;
        for result in results {
            self.push(&result_of(result, ids))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Digest, serde_json::Error> {
        let hash = self.0.into_inner();
        let hash = hash.map_err(|error| serde_json::Error::io(error.into_error()))?;
        Ok(Digest(hash.0.finalize().into()))
    }
}

fn message_of(message: &Message, ids: &mut Ids) -> Message {
    let mut message = message.clone();
    message.id = None;
    message.parts.iter_mut().for_each(|part| clear(part, ids));
    message
}

fn clear(part: &mut Part, ids: &mut Ids) {
    part.author = Author::Unknown;
    match &mut part.kind {
        PartKind::ToolCall(call) => {
            call.id = ids.of(&call.id);
            call.provider_id = None;
        }
        PartKind::ToolResult(result) => *result = result_of(result, ids),
        _ => {}
    }
}

fn result_of(result: &ToolResult, ids: &mut Ids) -> ToolResult {
    let mut result = result.clone();
    result.call_id = ids.of(&result.call_id);
    if let ToolContent::Parts(parts) = &mut result.outcome.content {
        parts.iter_mut().for_each(|part| clear(part, ids));
    }
    result
}

/// The ids of calls, numbered in the order of their first occurrence.
#[derive(Default)]
struct Ids(HashMap<CallId, usize>);

impl Ids {
    fn of(&mut self, id: &CallId) -> CallId {
        let next = self.0.len();
        let number = *self.0.entry(id.clone()).or_insert(next);
        CallId::new(number.to_string())
    }
}

/// The nesting limit of serde_json.
const LEVELS: usize = 127;

/// Writes an unambiguous encoding to the hash: each value starts with its type, and lengths are
/// explicit.
struct Encoder(Sha256);

impl Encoder {
    fn new(kind: &str) -> Self {
        let mut encoder = Self(Sha256::new());
        encoder.bytes(kind.as_bytes());
        encoder
    }

    fn len(&mut self, len: usize) {
        self.0.update((len as u64).to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.0.update(bytes);
    }

    fn word(&mut self, word: &str) {
        self.0.update(b"w");
        self.bytes(word.as_bytes());
    }

    fn number(&mut self, text: &str) {
        self.0.update(b"n");
        self.bytes(text.as_bytes());
    }

    fn string(&mut self, text: &str) {
        self.0.update(b"s");
        self.bytes(text.as_bytes());
    }

    fn array(&mut self, len: usize) {
        self.0.update(b"a");
        self.len(len);
    }

    /// The entries follow, sorted by the bytes of their keys.
    fn object(&mut self, len: usize) {
        self.0.update(b"o");
        self.len(len);
    }

    fn node(&mut self, node: &Node<'_>) {
        match node {
            Node::Word(word) => self.word(word),
            Node::Number(text) => self.number(text),
            Node::String(text) => self.string(text),
            Node::Array(items) => {
                self.array(items.len());
                for item in items {
                    self.node(item);
                }
            }
            Node::Object(entries) => {
                self.object(entries.len());
                for (key, value) in entries {
                    self.bytes(key.as_bytes());
                    self.node(value);
                }
            }
        }
    }

    fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// A JSON value with numbers as text.
enum Node<'a> {
    Word(&'a str),
    Number(&'a str),
    String(Cow<'a, str>),
    Array(Vec<Self>),
    Object(BTreeMap<Cow<'a, str>, Self>),
}

/// The remaining part of a valid JSON text.
// serde_json exposes the text of numbers only with a feature that changes its types for the whole
// program, or by parsing each nesting level again.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    fn value(&mut self, levels: usize) -> Result<Node<'a>, serde_json::Error> {
        self.skip_white();
        match self.0.as_bytes().first() {
            Some(b'{') => self.object(deeper(levels)?),
            Some(b'[') => self.array(deeper(levels)?),
            Some(b'"') => Ok(Node::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => {
                let number = |c| matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E');
                Ok(Node::Number(self.take_while(number)))
            }
            Some(b'n' | b't' | b'f') => Ok(Node::Word(self.take_while(|c| c.is_ascii_lowercase()))),
            _ => Err(unsound()),
        }
    }

    fn object(&mut self, levels: usize) -> Result<Node<'a>, serde_json::Error> {
        let mut entries = BTreeMap::new();
        self.expect('{')?;
        if self.eat('}') {
            return Ok(Node::Object(entries));
        }
        loop {
            self.skip_white();
            match entries.entry(self.string()?) {
                Entry::Occupied(entry) => {
                    let key = entry.key();
                    return Err(error(format_args!("duplicate key `{key}`")));
                }
                Entry::Vacant(entry) => {
                    self.expect(':')?;
                    entry.insert(self.value(levels)?);
                }
            }
            if !self.eat(',') {
                self.expect('}')?;
                return Ok(Node::Object(entries));
            }
        }
    }

    fn array(&mut self, levels: usize) -> Result<Node<'a>, serde_json::Error> {
        let mut items = Vec::new();
        self.expect('[')?;
        if self.eat(']') {
            return Ok(Node::Array(items));
        }
        loop {
            items.push(self.value(levels)?);
            if !self.eat(',') {
                self.expect(']')?;
                return Ok(Node::Array(items));
            }
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, serde_json::Error> {
        let text = self.0.strip_prefix('"').ok_or_else(unsound)?;
        let mut bytes = text.bytes().enumerate();
        let mut escaped = false;
        let len = loop {
            match bytes.next().ok_or_else(unsound)? {
                (len, b'"') => break len,
                (_, b'\\') => {
                    escaped = true;
                    bytes.next();
                }
                _ => {}
            }
        };
        let (quoted, rest) = self.0.split_at_checked(len + 2).ok_or_else(unsound)?;
        self.0 = rest;
        if escaped {
            return serde_json::from_str(quoted).map(Cow::Owned);
        }
        text.get(..len).map(Cow::Borrowed).ok_or_else(unsound)
    }

    fn take_while(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let len = self.0.find(|c| !is(c)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn skip_white(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn eat(&mut self, what: char) -> bool {
        self.skip_white();
        let rest = self.0.strip_prefix(what);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, what: char) -> Result<(), serde_json::Error> {
        self.eat(what).then_some(()).ok_or_else(unsound)
    }
}

fn deeper(levels: usize) -> Result<usize, serde_json::Error> {
    let error = || error("recursion limit exceeded");
    levels.checked_sub(1).ok_or_else(error)
}

fn unsound() -> serde_json::Error {
    error("invalid JSON")
}

fn error(message: impl fmt::Display) -> serde_json::Error {
    serde_json::Error::custom(message)
}

//! The states that were visited, by 128-bit hashes.

use std::hash::Hasher;

/// The index of a visited state.
pub(crate) type Index = u32;

const NONE: Index = Index::MAX;

/// The visited states, each with its predecessor and the operation that led to it.
pub(crate) struct Seen<T> {
    hashes: Vec<u128>,
    from: Vec<(Index, T)>,
    // Open addressing; the number of places is a power of two, at most two thirds of them in use.
    table: Vec<Index>,
}

impl<T: Copy> Seen<T> {
    pub(crate) fn new() -> Self {
        Self {
            hashes: Vec::new(),
            from: Vec::new(),
            table: vec![NONE; 1 << 10],
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Adds a state, and returns its index if it is new.
    pub(crate) fn insert(&mut self, hash: u128, parent: Option<Index>, by: T) -> Option<Index> {
        if self.hashes.len() * 3 >= self.table.len() * 2 {
            self.grow();
        }
        let place = self.place(hash);
        let entry = self.table.get_mut(place)?;
        if *entry != NONE {
            return None;
        }
        let index = Index::try_from(self.hashes.len()).ok()?;
        *entry = index;
        self.hashes.push(hash);
        self.from.push((parent.unwrap_or(NONE), by));
        Some(index)
    }

    pub(crate) fn hash(&self, index: Index) -> Option<u128> {
        self.hashes.get(index as usize).copied()
    }

    /// The operations that lead to a state, from the first.
    pub(crate) fn path(&self, mut index: Index) -> Vec<T> {
        let mut path = Vec::new();
        while let Some((parent, by)) = self.from.get(index as usize) {
            path.push(*by);
            index = *parent;
        }
        path.reverse();
        path
    }

    /// The place of `hash` in the table, or the one where it belongs.
    fn place(&self, hash: u128) -> usize {
        let mask = self.table.len() - 1;
        let mut place = hash as usize & mask;
        while let Some(index) = self.table.get(place)
            && *index != NONE
            && self.hash(*index) != Some(hash)
        {
            place = (place + 1) & mask;
        }
        place
    }

    fn grow(&mut self) {
        self.table = vec![NONE; self.table.len() * 2];
        for (index, hash) in (0..).zip(&self.hashes) {
            let place = self.place(*hash);
            if let Some(entry) = self.table.get_mut(place) {
                *entry = index;
            }
        }
    }
}

/// Collects the encoding of a state.
#[derive(Default)]
pub(crate) struct Encoding(pub(crate) Vec<u8>);

impl Hasher for Encoding {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        self.digest() as u64
    }
}

impl Encoding {
    /// The hash of the encoding: each 16 bytes are mixed in by a multiplication and a shift, which are
    /// bijections of 128 bits.
    pub(crate) fn digest(&self) -> u128 {
        const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        let mix = |hash: u128, word: u128| {
            let hash = (hash ^ word).wrapping_mul(FACTOR);
            hash ^ (hash >> 67)
        };
        let mut hash = self.0.len() as u128;
        let mut chunks = self.0.chunks_exact(16);
        for chunk in &mut chunks {
            let mut word = [0; 16];
            word.copy_from_slice(chunk);
            hash = mix(hash, u128::from_le_bytes(word));
        }
        let mut word = [0; 16];
        for (to, from) in word.iter_mut().zip(chunks.remainder()) {
            *to = *from;
        }
        mix(mix(mix(hash, u128::from_le_bytes(word)), FACTOR), FACTOR)
    }
}

/// Appends the debug text of a value to `out`, with the entries of sets and maps in order: those of a
/// hash set have another order in each set.
pub(crate) fn append_sorted(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    let (mut at, mut quoted) = (0, false);
    while let Some(byte) = bytes.get(at) {
        let opens =
            *byte == b'{' && !quoted && !matches!(bytes.get(at + 1), Some(b' ' | b'}') | None);
        if opens {
            let (entries, length) = entries(text.get(at + 1..).unwrap_or_default());
            let mut entries: Vec<Vec<u8>> = entries
                .into_iter()
                .map(|entry| {
                    let mut sorted = Vec::new();
                    append_sorted(entry, &mut sorted);
                    sorted
                })
                .collect();
            entries.sort_unstable();
            out.push(b'{');
            out.extend(entries.join(&b','));
            out.push(b'}');
            at += length;
            continue;
        }
        match byte {
            b'\\' if quoted => {
                out.push(b'\\');
                at += 1;
                out.extend(bytes.get(at));
                at += 1;
                continue;
            }
            b'"' => quoted = !quoted,
            _ => {}
        }
        out.push(*byte);
        at += 1;
    }
}

/// The entries of the set or map whose text follows its brace, and the length of the text with the
/// opening brace.
fn entries(text: &str) -> (Vec<&str>, usize) {
    let (mut entries, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'(' | b'[' => depth += 1,
            b'}' if depth == 0 => {
                entries.extend(text.get(start..at));
                return (entries, at + 2);
            }
            b'}' | b')' | b']' => depth -= 1,
            b',' if depth == 0 => {
                entries.extend(text.get(start..at));
                start = at + 2;
            }
            _ => {}
        }
    }
    (entries, text.len() + 1)
}

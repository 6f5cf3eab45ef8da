//! Encodes a field section (RFC 9204 section 4.5).

use super::table::Found;
use super::{huffman, integer, table};

/// The longest name that is put into lower case without an allocation.
const NAME_BYTES: usize = 64;

/// A section being encoded.
#[derive(Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An empty section.
    pub fn new() -> Self {
        // The prefix: nothing refers to a dynamic table.
        Self { bytes: vec![0, 0] }
    }

    /// Adds a field; its name is sent in lower case (RFC 9114 section 4.2).
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        let mut short = [0; NAME_BYTES];
        match short.get_mut(..name.len()) {
            Some(lower) => {
                lower.copy_from_slice(name);
                lower.make_ascii_lowercase();
                self.push(lower, value);
            }
            None => self.push(&name.to_ascii_lowercase(), value),
        }
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        match table::find(name, value) {
            Found::Line(index) => integer::push(&mut self.bytes, 0xc0, 6, index),
            Found::Name(index) => {
                integer::push(&mut self.bytes, 0x50, 4, index);
                self.text(0, 7, value);
            }
            Found::Nothing => {
                self.text(0x20, 3, name);
                self.text(0, 7, value);
            }
        }
    }

    /// Adds a text, in whichever form is shorter.
    fn text(&mut self, first: u8, prefix_bits: u32, text: &[u8]) {
        let coded = huffman::encoded_bytes(text);
        if coded < text.len() {
            integer::push(&mut self.bytes, first | 1 << prefix_bits, prefix_bits, coded);
            huffman::encode(text, &mut self.bytes);
        } else {
            integer::push(&mut self.bytes, first, prefix_bits, text.len());
            self.bytes.extend_from_slice(text);
        }
    }

    /// The section.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

//! The grammar of chunk extensions (RFC 9112 section 7.1.1). Extensions are checked and then dropped.

use super::error::ParseError;
use super::grammar::{is_token_byte, is_value_byte};

/// Position of the reader in `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    /// After whitespace, before the first extension or after a value: only more whitespace or a semicolon may follow.
    Space,
    /// After a semicolon.
    NameStart,
    Name,
    NameSpace,
    ValueStart,
    Token,
    Quoted,
    Escaped,
    QuoteEnd,
    /// The CR of the line has been read.
    Ended,
}

impl Extension {
    /// The state after `byte`.
    pub(crate) fn step(self, byte: u8) -> Result<Extension, ParseError> {
        match self {
            Extension::Space => after_space(Extension::Space, byte),
            Extension::NameStart => name_start(byte),
            Extension::Name => name(byte),
            Extension::NameSpace => name_space(byte),
            Extension::ValueStart => value_start(byte),
            Extension::Token => token(byte),
            Extension::Quoted => quoted(byte),
            Extension::Escaped => escaped(byte),
            Extension::QuoteEnd => value_end(byte),
            Extension::Ended => Err(ParseError::BadBody),
        }
    }
}

fn after_space(space: Extension, byte: u8) -> Result<Extension, ParseError> {
    match byte {
        b' ' | b'\t' => Ok(space),
        b';' => Ok(Extension::NameStart),
        _ => Err(ParseError::BadBody),
    }
}

fn name_start(byte: u8) -> Result<Extension, ParseError> {
    match byte {
        b' ' | b'\t' => Ok(Extension::NameStart),
        _ if is_token_byte(byte) => Ok(Extension::Name),
        _ => Err(ParseError::BadBody),
    }
}

fn name(byte: u8) -> Result<Extension, ParseError> {
    match byte {
        b'\r' => Ok(Extension::Ended),
        _ if is_token_byte(byte) => Ok(Extension::Name),
        _ => name_space(byte),
    }
}

fn name_space(byte: u8) -> Result<Extension, ParseError> {
    match byte {
        b'=' => Ok(Extension::ValueStart),
        _ => after_space(Extension::NameSpace, byte),
    }
}

fn value_start(byte: u8) -> Result<Extension, ParseError> {
    match byte {
        b' ' | b'\t' => Ok(Extension::ValueStart),
        b'"' => Ok(Extension::Quoted),
        _ if is_token_byte(byte) => Ok(Extension::Token),
        _ => Err(ParseError::BadBody),
    }
}

fn token(byte: u8) -> Result<Extension, ParseError> {
    if is_token_byte(byte) { Ok(Extension::Token) } else { value_end(byte) }
}

fn quoted(byte: u8) -> Result<Extension, ParseError> {
    match byte {
        b'"' => Ok(Extension::QuoteEnd),
        b'\\' => Ok(Extension::Escaped),
        _ if is_value_byte(byte) => Ok(Extension::Quoted),
        _ => Err(ParseError::BadBody),
    }
}

fn escaped(byte: u8) -> Result<Extension, ParseError> {
    if is_value_byte(byte) { Ok(Extension::Quoted) } else { Err(ParseError::BadBody) }
}

fn value_end(byte: u8) -> Result<Extension, ParseError> {
    match byte {
        b'\r' => Ok(Extension::Ended),
        _ => after_space(Extension::Space, byte),
    }
}

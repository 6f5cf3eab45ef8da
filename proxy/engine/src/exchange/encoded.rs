//! A response that is encoded on its way to the client, or that another client would get encoded.

use sluice_config::{Compress, Compression};
use sluice_core::metrics::Event;
use sluice_http::{Coding, FieldEdits, Framing, RequestHead, ResponseHead};

use super::Resources;
use crate::compress::{Choice, Encoder, choose, describe};

/// The longest padding, in bytes. An attacker has to ask many times for the mean to show a byte more or less.
const PADDING_MAX: usize = 64;

/// What decides whether a response is encoded.
pub(crate) struct Encoding<'a> {
    /// Which responses are, what that may cost, and how many workers share it; `None` is none.
    pub(crate) config: Option<(&'a Compress, &'a Compression, usize)>,
    pub(crate) resources: &'a Resources,
    /// The changes of the route.
    pub(crate) edits: Option<&'a FieldEdits>,
    /// The coding in which the body is there already.
    pub(crate) ready: Option<Coding>,
}

/// What is done with the body, and what the head says of it.
pub(crate) struct EncodedAnswer {
    /// The changes of the head.
    pub(crate) edits: FieldEdits,
    choice: Choice,
    encoder: Option<Box<Encoder>>,
}

impl EncodedAnswer {
    /// `None` if the response is sent as it is. Boxed, because most are.
    pub(crate) fn of(
        encoding: &Encoding<'_>,
        request: &RequestHead,
        head: &ResponseHead,
        framing: Framing,
    ) -> Option<Box<Self>> {
        let (config, limits, workers) = encoding.config?;
        let mut choice = match encoding.ready {
            Some(coding) => Choice::Encode(coding),
            None => choose(config, request, head, framing)?,
        };
        let mut encoder = None;
        if let Some(coding) = encoding.ready {
            encoding.resources.dialer.metrics().count(event(coding));
        } else if let Choice::Encode(coding) = choice
            && !framing.is_empty()
        {
            let length = if let Framing::Length(length) = framing { Some(length) } else { None };
            let opened =
                encoding.resources.compressors.encoder(coding, config.level, length, (limits, workers));
            encoding.resources.dialer.metrics().count(match &opened {
                Ok(_) => event(coding),
                Err(refused) => *refused,
            });
            encoder = opened.ok().map(Box::new);
            if encoder.is_none() {
                choice = Choice::Plain;
            }
        }
        let has_cookie = request.get(b"cookie").is_some();
        // HTTP/2 sends a value that it has sent before as a number, so each is another one.
        let padding = has_cookie.then(|| {
            let letters = std::iter::repeat_with(fastrand::alphanumeric);
            letters.take(fastrand::usize(..=PADDING_MAX)).collect()
        });
        let edits = describe(choice, head, encoding.edits, padding);
        Some(Box::new(Self { edits, choice, encoder }))
    }

    pub(crate) fn take_encoder(self: &mut Box<Self>) -> Option<Box<Encoder>> {
        self.encoder.take()
    }

    /// Whether the body is, or would be, encoded.
    pub(crate) fn is_encoded(&self) -> bool {
        matches!(self.choice, Choice::Encode(_))
    }
}

fn event(coding: Coding) -> Event {
    match coding {
        Coding::Gzip => Event::EncodedGzip,
        Coding::Zstd => Event::EncodedZstd,
        Coding::Brotli => Event::EncodedBrotli,
    }
}

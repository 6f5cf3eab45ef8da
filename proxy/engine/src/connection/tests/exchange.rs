//! Requests and responses as data: generated, encoded, and compared with.

use proptest::prelude::*;

/// A request and its response.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) method: &'static str,
    /// Sent by an HTTP/1.0 client.
    pub(super) old: bool,
    pub(super) expects: bool,
    /// The client requests that the connection is closed.
    pub(super) closes: bool,
    /// Whether the proxy buffers the request, and the response.
    pub(super) held: (bool, bool),
    pub(super) body: Option<Message>,
    pub(super) answer: Answer,
}

/// How many bytes of buffered bodies may be in memory.
pub(super) fn memory() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 2 => 1usize..700, 2 => 1usize..100_000, 1 => Just(1 << 20)]
}

/// A body and its framing.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) length: usize,
    pub(super) coding: Coding,
}

/// How a body is delimited.
#[derive(Clone, Debug)]
pub(super) enum Coding {
    Length,
    /// In chunks of this size.
    Chunked {
        size: usize,
        extended: bool,
        trailers: bool,
    },
    /// By the end of the connection; responses only.
    Close,
    /// By a length, but in HTTP/1.0; responses only.
    Old,
}

/// The origin's response.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) interim: Vec<u16>,
    /// Sent after this many bytes of the request's body; otherwise after all of it.
    pub(super) early: Option<usize>,
    pub(super) closes: bool,
    pub(super) message: Message,
}

impl Exchange {
    /// A GET with a response of `length` bytes.
    pub(super) fn get(length: usize) -> Self {
        let message = Message { length, coding: Coding::Length };
        let answer = Answer { status: 200, interim: Vec::new(), early: None, closes: false, message };
        Self {
            method: "GET",
            old: false,
            expects: false,
            closes: false,
            held: (false, false),
            body: None,
            answer,
        }
    }

    /// A POST of `length` bytes with a response of the same length.
    pub(super) fn post(length: usize) -> Self {
        let body = Some(Message { length, coding: Coding::Length });
        Self { method: "POST", body, ..Self::get(length) }
    }

    pub(super) fn is_idempotent(&self) -> bool {
        self.method != "POST"
    }

    /// The request's head.
    pub(super) fn request_head(&self, tag: usize) -> Vec<u8> {
        let version = if self.old { "1.0" } else { "1.1" };
        let mut head = format!("{} /{tag} HTTP/{version}\r\nHost: a\r\nX-Tag: {tag}\r\n", self.method);
        if self.closes {
            head += "Connection: close\r\n";
        }
        if self.expects {
            head += "Expect: 100-continue\r\n";
        }
        if let Some(body) = &self.body {
            head += &body.fields();
        }
        (head + "\r\n").into_bytes()
    }

    /// The request's body as sent over the wire.
    pub(super) fn request_body(&self, tag: usize) -> Vec<u8> {
        self.body.as_ref().map_or_else(Vec::new, |body| body.encode(tag))
    }

    /// The request's body.
    pub(super) fn asked(&self, tag: usize) -> Vec<u8> {
        self.body.as_ref().map_or_else(Vec::new, |body| body.bytes(tag))
    }

    /// Whether the response has no body, whatever its head says.
    pub(super) fn is_bodiless(&self) -> bool {
        self.method == "HEAD" || matches!(self.answer.status, 204 | 304)
    }

    /// The interim responses as sent over the wire.
    pub(super) fn interim_heads(&self) -> Vec<u8> {
        let heads = self.answer.interim.iter().map(|status| format!("HTTP/1.1 {status} x\r\n\r\n"));
        heads.collect::<String>().into_bytes()
    }

    /// The final response as sent over the wire.
    pub(super) fn response(&self, tag: usize) -> Vec<u8> {
        let answer = &self.answer;
        let version = if matches!(answer.message.coding, Coding::Old) { "1.0" } else { "1.1" };
        let mut head = format!("HTTP/{version} {} x\r\nX-Tag: {tag}\r\n", answer.status);
        if answer.closes {
            head += "Connection: close\r\n";
        }
        if answer.status != 204 {
            head += &answer.message.fields();
        }
        let mut bytes = (head + "\r\n").into_bytes();
        if !self.is_bodiless() {
            bytes.extend(answer.message.encode(!tag));
        }
        bytes
    }

    /// The body of the final response.
    pub(super) fn answered(&self, tag: usize) -> Vec<u8> {
        if self.is_bodiless() { Vec::new() } else { self.answer.message.bytes(!tag) }
    }

    /// Whether the origin's connection ends with this response.
    pub(super) fn ends_upstream(&self) -> bool {
        self.answer.closes || self.ends_by_close() || matches!(self.answer.message.coding, Coding::Old)
    }

    /// Whether the response is delimited only by the end of the origin's connection.
    pub(super) fn ends_by_close(&self) -> bool {
        !self.is_bodiless() && matches!(self.answer.message.coding, Coding::Close)
    }
}

impl Message {
    fn bytes(&self, tag: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(tag as u64);
        let mut bytes = vec![0; self.length];
        random.fill(&mut bytes);
        bytes
    }

    /// The trailers, as lines.
    pub(super) fn trailers(&self, tag: usize) -> Vec<String> {
        match self.coding {
            Coding::Chunked { trailers: true, .. } => vec![format!("X-Sum: {tag}"), "X-B: b".to_owned()],
            _ => Vec::new(),
        }
    }

    /// Whether it can only be forwarded in chunks.
    pub(super) fn has_trailers(&self) -> bool {
        matches!(self.coding, Coding::Chunked { trailers: true, .. })
    }

    fn fields(&self) -> String {
        match self.coding {
            Coding::Length | Coding::Old => format!("Content-Length: {}\r\n", self.length),
            Coding::Chunked { .. } => "Transfer-Encoding: chunked\r\n".to_owned(),
            Coding::Close => String::new(),
        }
    }

    fn encode(&self, tag: usize) -> Vec<u8> {
        let Coding::Chunked { size, extended, .. } = self.coding else {
            return self.bytes(tag);
        };
        let extension = if extended { ";a=\"b\"" } else { "" };
        let mut out = Vec::new();
        for chunk in self.bytes(tag).chunks(size) {
            out.extend(format!("{:X}{extension}\r\n", chunk.len()).into_bytes());
            out.extend_from_slice(chunk);
            out.extend_from_slice(b"\r\n");
        }
        out.extend(format!("0{extension}\r\n").into_bytes());
        for line in self.trailers(tag) {
            out.extend(format!("{line}\r\n").into_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

fn message(length: BoxedStrategy<usize>, answer: bool) -> impl Strategy<Value = Message> {
    let chunked = (1usize..40_000, any::<bool>(), any::<bool>())
        .prop_map(|(size, extended, trailers)| Coding::Chunked { size, extended, trailers });
    let coding = if answer {
        prop_oneof![3 => Just(Coding::Length), 3 => chunked, 1 => Just(Coding::Close), 1 => Just(Coding::Old)]
            .boxed()
    } else {
        prop_oneof![Just(Coding::Length), chunked].boxed()
    };
    (length, coding).prop_map(|(length, coding)| Message { length, coding })
}

/// Any exchange with bodies of these lengths.
pub(super) fn exchange(length: BoxedStrategy<usize>) -> impl Strategy<Value = Exchange> {
    let method = prop_oneof![3 => Just("GET"), 1 => Just("HEAD"), 3 => Just("POST"), 2 => Just("PUT")];
    let status = prop_oneof![6 => Just(200), 1 => Just(404), 1 => Just(204), 1 => Just(304), 1 => Just(500)];
    let interim = prop_oneof![4 => Just(vec![]), 1 => Just(vec![103]), 1 => Just(vec![102, 103, 103])];
    let early = prop::option::weighted(0.15, 0usize..50_000);
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let messages = (message(length.clone(), false), message(length, true));
    (method, status, interim, early, flags, prop::bool::weighted(0.1), messages).prop_map(
        |(method, status, interim, early, (old, expects, closes), ends, (body, message))| {
            let takes_body = matches!(method, "POST" | "PUT");
            // HTTP/1.0 has neither chunks nor Expect.
            let coding = if old { Coding::Length } else { body.coding };
            let body = takes_body.then_some(Message { coding, ..body });
            let early = body.as_ref().and_then(|body| early.map(|early| early.min(body.length)));
            let expects = expects && !old && takes_body;
            let answer = Answer { status, interim, early, closes: ends, message };
            Exchange { method, old, expects, closes, held: (false, false), body, answer }
        },
    )
}

/// Lengths that suit a network that splits everything into small pieces.
pub(super) fn short() -> BoxedStrategy<usize> {
    prop_oneof![Just(0), 1usize..10, 1usize..700].boxed()
}

/// Any length, with a preference for the sizes of buffers.
pub(super) fn any_length() -> BoxedStrategy<usize> {
    prop_oneof![
        2 => Just(0),
        3 => 1usize..2000,
        2 => 15_000usize..18_000,
        2 => 65_000usize..66_000,
        1 => 1usize..200_000,
    ]
    .boxed()
}

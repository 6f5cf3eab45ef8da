//! The parameters of one request. They follow from the seed, and are written into the request's target for the origin.

use super::mode::{Conduct, Menu, Mode};
use super::token::Token;

/// The way through sluice, as the first segment of the target, by which sluice selects a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To origins of HTTP/1.1.
    Free,
    /// To one with a limit, whose idle connections all workers share.
    Limited,
    /// Bodies are buffered before they are forwarded.
    Held,
    /// To origins of HTTP/2.
    Multiplexed,
}

const WAYS: [(Way, &str); 4] =
    [(Way::Free, "free"), (Way::Limited, "limited"), (Way::Held, "held"), (Way::Multiplexed, "multiplexed")];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Get,
    Head,
    Post,
}

/// How the body of a POST is framed in HTTP/1.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Upload {
    None,
    Counted(usize),
    Chunked(usize),
}

/// A request and its expected response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) token: Token,
    pub(super) way: Way,
    pub(super) mode: Mode,
    pub(super) method: Method,
    pub(super) upload: Upload,
    /// Whether a POST expects a 100 first.
    pub(super) expect: bool,
    /// Bytes of the response body, if the mode has one.
    pub(super) size: usize,
    /// The coding that the client takes.
    pub(super) accepts: Option<&'static str>,
}

/// Half of the requests take an encoded response, where the route has them.
const ACCEPTED: [Option<&str>; 6] = [None, None, None, Some("gzip"), Some("zstd"), Some("br")];

impl Plan {
    pub(super) fn draw(token: Token, menu: &Menu) -> Self {
        let random = &mut token.choices();
        let mode = menu.draw(random);
        let way = draw_way(random, mode);
        let posts = mode.is_early() || random.u8(..5) == 0;
        let method = match random.u8(..12) {
            _ if posts => Method::Post,
            0 => Method::Head,
            _ => Method::Get,
        };
        let upload = if posts { draw_upload(random, mode) } else { Upload::None };
        let expect = posts && random.u8(..4) == 0;
        let size = draw_size(random, mode);
        let accepts = ACCEPTED[random.usize(..ACCEPTED.len())];
        Self { token, way, mode, method, upload, expect, size, accepts }
    }

    /// Whether several clients may ask for the same.
    pub(super) fn is_repeatable(&self) -> bool {
        self.method == Method::Get && self.mode.conduct() == Conduct::Right && self.way != Way::Held
    }

    pub(super) fn without_upload(self) -> Self {
        Self { upload: Upload::None, expect: false, ..self }
    }

    /// The target that encodes all this for the origin.
    pub(super) fn target(&self) -> String {
        format!("/{}/{}/{}/{}", self.way.name(), self.mode.name(), self.token, self.size)
    }

    /// Decodes a target at the origin.
    pub(super) fn parse(method: &str, target: &str) -> Option<Self> {
        let mut parts = target.strip_prefix('/')?.split('/');
        let way = WAYS.iter().find(|(_, name)| parts.clone().next() == Some(name))?.0;
        let (_, mode, token, size) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            _ => Method::Post,
        };
        let (mode, token) = (Mode::parse(mode)?, Token::parse(token.as_bytes())?);
        let size = size.parse().ok()?;
        Some(Self { token, way, mode, method, upload: Upload::None, expect: false, size, accepts: None })
    }

    /// Bytes of a complete response body.
    pub(super) fn answer_bytes(&self) -> usize {
        if self.method == Method::Head || self.mode.is_empty() { 0 } else { self.size }
    }

    /// The request's body: bytes derived from its token, or requests for an origin that reads it as such.
    pub(super) fn upload_body(&self) -> Vec<u8> {
        let (Upload::Counted(size) | Upload::Chunked(size)) = self.upload else {
            return Vec::new();
        };
        if !self.mode.smuggles() {
            return self.token.body(size);
        }
        let kind = match self.mode {
            Mode::EarlyWaiting => super::token::Kind::Surplus,
            _ => super::token::Kind::Untellable,
        };
        let inner = Self { token: self.token.with(kind), mode: Mode::Plain, size: 200, ..*self };
        format!("GET {} HTTP/1.1\r\nHost: smuggled\r\n\r\n", inner.target()).into_bytes()
    }
}

impl Way {
    fn name(self) -> &'static str {
        WAYS[self as usize].1
    }
}

fn draw_way(random: &mut fastrand::Rng, mode: Mode) -> Way {
    match random.u8(..10) {
        0..=4 => Way::Free,
        5..=6 => Way::Limited,
        // A buffered body is complete before the origin sees the request.
        7 if !mode.smuggles() => Way::Held,
        7 => Way::Free,
        _ => Way::Multiplexed,
    }
}

fn draw_upload(random: &mut fastrand::Rng, mode: Mode) -> Upload {
    let size = match random.u8(..10) {
        0..=4 => random.usize(1..200),
        5..=7 => random.usize(1..20_000),
        _ => random.usize(20_000..150_000),
    };
    // Read as a request, a chunk size would be an invalid one.
    if mode.smuggles() || random.bool() { Upload::Counted(size) } else { Upload::Chunked(size) }
}

fn draw_size(random: &mut fastrand::Rng, mode: Mode) -> usize {
    match random.u8(..20) {
        _ if mode == Mode::Bytewise => random.usize(1..60),
        0..=8 => random.usize(1..300),
        9..=13 => random.usize(300..5000),
        14..=16 => random.usize(5000..40_000),
        // Around the sizes of buffers.
        17 => (1 << random.u32(10..18)) + random.usize(..64) - 32,
        18 => random.usize(40_000..200_000),
        _ => random.usize(200_000..600_000),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_target_encodes_the_plan() {
        let menu = Menu::new(&[]).unwrap();
        for number in 0..500 {
            let plan = Plan::draw(Token::new(3, 5, number), &menu);
            let read = Plan::parse("GET", &plan.target()).unwrap();
            assert_eq!((read.token, read.way, read.mode), (plan.token, plan.way, plan.mode));
            assert_eq!(read.size, plan.size);
            let again = Plan::draw(plan.token, &menu);
            assert_eq!((again.size, again.upload), (plan.size, plan.upload));
        }
    }
}

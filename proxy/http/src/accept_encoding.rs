//! Content codings that a client takes (RFC 9110 section 12.5.3).

use super::request::RequestHead;

/// Maximum number of members of Accept-Encoding that are read. Browsers send four or five.
const MEMBERS_MAX: usize = 32;

/// A content coding that sluice knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    /// `br` (RFC 7932).
    Brotli,
    /// `zstd` (RFC 8878).
    Zstd,
    /// `gzip` (RFC 1952).
    Gzip,
}

impl Coding {
    /// Every coding.
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstd, Self::Gzip];

    /// Its name in Content-Encoding.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// The ending that files encoded with it have, with its dot.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }

    fn is_named(self, name: &[u8]) -> bool {
        let is = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
        is(self.name()) || (self == Self::Gzip && is("x-gzip"))
    }
}

/// How much a client wants each coding, in thousandths; 0 is not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// In the order of [`Coding::ALL`].
    codings: [u16; 3],
    /// `None` if the client says nothing of it.
    identity: Option<u16>,
}

impl Acceptance {
    /// What a request says. Without Accept-Encoding a client may be sent anything, but is sent plain content: it is
    /// most likely a program that decodes nothing.
    pub fn of(head: &RequestHead) -> Self {
        let fields = head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"accept-encoding"));
        let members = fields.flat_map(|field| field.value.split(|byte| *byte == b','));
        let (mut codings, mut identity, mut others) = ([None; 3], None, None);
        for (name, weight) in members.take(MEMBERS_MAX).filter_map(member) {
            match Coding::ALL.iter().position(|coding| coding.is_named(name)) {
                Some(at) => codings[at] = Some(weight),
                None if name == b"*" => others = Some(weight),
                None if name.eq_ignore_ascii_case(b"identity") => identity = Some(weight),
                None => {}
            }
        }
        Self {
            codings: codings.map(|weight| weight.or(others).unwrap_or(0)),
            identity: identity.or(others.filter(|weight| *weight == 0)),
        }
    }

    /// The best of the codings that are offered, which are in the order of the server's preference; `None` is plain
    /// content.
    pub fn best(&self, offered: &[Coding]) -> Option<Coding> {
        let least = self.identity.unwrap_or(0).max(1);
        let wanted = offered.iter().map(|coding| (self.weight(*coding), *coding));
        // `max_by_key` would take the last of several equal ones.
        let best = wanted
            .filter(|(weight, _)| *weight >= least)
            .reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, coding)| coding)
    }

    /// Those of the offered codings that the client takes, the best one first.
    pub fn ranked(&self, offered: &[Coding]) -> impl Iterator<Item = Coding> + use<> {
        let mut left = offered.to_vec();
        let acceptance = *self;
        std::iter::from_fn(move || {
            let best = acceptance.best(&left)?;
            left.retain(|coding| *coding != best);
            Some(best)
        })
    }

    fn weight(&self, coding: Coding) -> u16 {
        match coding {
            Coding::Brotli => self.codings[0],
            Coding::Zstd => self.codings[1],
            Coding::Gzip => self.codings[2],
        }
    }
}

/// A name and its weight; `None` if it is malformed.
fn member(member: &[u8]) -> Option<(&[u8], u16)> {
    let mut parts = member.split(|byte| *byte == b';');
    let name = parts.next()?.trim_ascii();
    let weight = match parts.next() {
        Some(weight) => thousandths(weight.trim_ascii())?,
        None => 1000,
    };
    (!name.is_empty()).then_some((name, weight))
}

/// A weight such as `q=0.5` (RFC 9110 section 12.4.2).
fn thousandths(weight: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', whole @ (b'0' | b'1'), rest @ ..] = weight else { return None };
    let digits = match rest {
        [] => rest,
        [b'.', digits @ ..] if digits.len() <= 3 => digits,
        _ => return None,
    };
    let mut sum = u16::from(whole - b'0');
    for at in 0..3 {
        let digit = digits.get(at).copied().unwrap_or(b'0');
        sum = sum * 10 + char::from(digit).to_digit(10).and_then(|digit| u16::try_from(digit).ok())?;
    }
    (sum <= 1000).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{get_with, read_request};

    fn acceptance(fields: &str) -> Acceptance {
        read_request(&get_with(fields.as_bytes())).map(|(head, _)| Acceptance::of(&head)).unwrap_or_default()
    }

    fn best(fields: &str, offered: &[Coding]) -> Option<Coding> {
        acceptance(fields).best(offered)
    }

    #[test]
    fn the_best_coding_of_those_that_a_client_takes() {
        use Coding::{Brotli, Gzip, Zstd};
        let all = [Brotli, Zstd, Gzip];
        for (field, offered, wanted) in [
            ("", &all[..], None),
            ("gzip, deflate, br, zstd", &all, Some(Brotli)),
            ("gzip, deflate, br, zstd", &[Gzip, Brotli], Some(Gzip)),
            ("gzip;q=1.0, br;q=0.5", &all, Some(Gzip)),
            ("br;q=0, gzip", &all, Some(Gzip)),
            ("br;q=0.000", &all, None),
            ("GZIP", &all, Some(Gzip)),
            ("x-gzip", &all, Some(Gzip)),
            ("*", &all, Some(Brotli)),
            ("*;q=0.1, br;q=0", &all, Some(Zstd)),
            ("identity, gzip;q=0.5", &all, None),
            ("identity;q=0.5, gzip", &all, Some(Gzip)),
            ("identity;q=0", &all, None),
            ("gzip;q=0.001", &all, Some(Gzip)),
            ("gzip;q=1.001, br;q=2", &all, None),
            ("gzip;q=0.1234", &all, None),
            ("gzip;q=0.x", &all, None),
            ("gzip;level=9", &all, None),
            ("gzip ; q=0.5 ,, br ; q=0.4", &all, Some(Gzip)),
            (";q=1,gzip", &all, Some(Gzip)),
            ("deflate", &all, None),
            ("gzipped", &all, None),
        ] {
            assert_eq!(best(&format!("Accept-Encoding: {field}\r\n"), offered), wanted, "{field}");
        }
        assert_eq!(best("", &all), None);
        assert_eq!(best("Accept-Encoding: gzip\r\nAccept-Encoding: br\r\n", &all), Some(Brotli));
    }

    #[test]
    fn codings_come_by_the_wish_of_the_client() {
        let acceptance = acceptance("Accept-Encoding: br;q=0.3, gzip, zstd;q=0\r\n");
        let ranked: Vec<_> = acceptance.ranked(&Coding::ALL).collect();
        assert_eq!(ranked, [Coding::Gzip, Coding::Brotli]);
    }
}

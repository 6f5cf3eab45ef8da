//! Parses and formats the traceparent field of W3C Trace Context. Pure.
//!
//! Level 1, with the random flag of level 2. sluice never changes tracestate, so it does not parse it.

/// Length of a traceparent that sluice sends, in bytes.
pub(crate) const TRACEPARENT_BYTES: usize = 55;

/// The caller records this trace.
const SAMPLED: u8 = 1;
/// The trace id was generated at random (level 2).
const RANDOM: u8 = 2;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The content of a traceparent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    /// Never 0.
    pub(crate) trace_id: u128,
    /// The span that is the parent of the receiver's span; never 0.
    pub(crate) span_id: u64,
    /// Whether the sender records the trace.
    pub(crate) sampled: bool,
    /// Whether the trace id is known to be random.
    pub(crate) random: bool,
}

impl Context {
    /// Parses a field's value. Later versions may append data after a hyphen (section 4.3 of the specification). An
    /// invalid value gives `None`, and a new trace begins.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let [v0, v1, b'-', rest @ ..] = value else {
            return None;
        };
        let version = hex(&[*v0, *v1])?;
        let known = rest.len() == TRACEPARENT_BYTES - 3;
        let later = version > 0 && rest.get(TRACEPARENT_BYTES - 3) == Some(&b'-');
        if version == 0xff || !(known || later) {
            return None;
        }
        let (trace_id, rest) = (hex(&rest[..32])?, &rest[32..]);
        let (span_id, rest) = (hex(rest.get(1..17)?)?, rest.strip_prefix(b"-")?.get(16..)?);
        let flags = hex(rest.strip_prefix(b"-")?.get(..2)?)?;
        if trace_id == 0 || span_id == 0 {
            return None;
        }
        let flags = u8::try_from(flags).ok()?;
        Some(Self {
            trace_id,
            span_id: u64::try_from(span_id).ok()?,
            sampled: flags & SAMPLED != 0,
            random: flags & RANDOM != 0,
        })
    }

    /// Its flags, as sent and as used in a span.
    pub(crate) fn flags(self) -> u8 {
        (u8::from(self.sampled) * SAMPLED) | (u8::from(self.random) * RANDOM)
    }

    /// The field's value, version 00.
    pub(crate) fn render(self) -> [u8; TRACEPARENT_BYTES] {
        let mut value = [b'-'; TRACEPARENT_BYTES];
        write_hex(&mut value[..2], 0);
        write_hex(&mut value[3..35], self.trace_id);
        write_hex(&mut value[36..52], u128::from(self.span_id));
        write_hex(&mut value[53..], u128::from(self.flags()));
        value
    }
}

/// At most 32 digits, in lower case as specified.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((number << 4) | u128::from(digit))
    })
}

fn write_hex(room: &mut [u8], mut number: u128) {
    for digit in room.iter_mut().rev() {
        *digit = DIGITS[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn parses_the_example_of_the_specification() {
        let context = Context::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(context.span_id, 0x00f0_67aa_0ba9_02b7);
        assert!(context.sampled && !context.random);
        assert_eq!(context.render(), EXAMPLE.as_bytes());
    }

    #[test]
    fn later_versions_may_have_more() {
        let later = EXAMPLE.replacen("00", "cc", 1);
        for value in [later.clone(), format!("{later}-what-the-future-holds"), format!("{later}-")] {
            assert_eq!(Context::parse(value.as_bytes()), Context::parse(EXAMPLE.as_bytes()), "{value}");
        }
        // Unknown flags are not forwarded.
        let flags = Context::parse(EXAMPLE.replace("-01", "-ff").as_bytes()).unwrap();
        assert_eq!(flags.flags(), 3);
    }

    #[test]
    fn invalid_values_are_rejected() {
        for value in [
            "",
            "00",
            "00-",
            &EXAMPLE[..54],
            &format!("{EXAMPLE}-"),
            &format!("{EXAMPLE}0"),
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replacen("00", "ff", 1),
            &EXAMPLE.replacen("00", "0x", 1),
            &EXAMPLE.replacen("00-", "00_", 1),
            &EXAMPLE.replacen("-01", ".01", 1),
            &EXAMPLE.replacen("-00f0", ".00f0", 1),
            &EXAMPLE.replacen("-01", "-0g", 1),
            &format!("cc{}x", &EXAMPLE[2..]),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(Context::parse(value.as_bytes()), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn a_rendered_value_parses_back(trace_id in 1u128.., span_id in 1u64.., sampled: bool, random: bool) {
            let context = Context { trace_id, span_id, sampled, random };
            prop_assert_eq!(Context::parse(&context.render()), Some(context));
        }

        #[test]
        fn nothing_panics(value in prop::collection::vec(any::<u8>(), 0..70), like in "[0-9a-fc]{2}-[0-9a-f]{30,33}-[0-9a-f]{15,17}-[0-9a-f]{1,3}.{0,3}") {
            Context::parse(&value);
            Context::parse(like.as_bytes());
        }
    }
}

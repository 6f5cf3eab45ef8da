//! A field of the request that names its endpoint. The endpoint is known only when it is picked, after the head was
//! encoded, and changes when the request is sent again elsewhere.

use std::ops::Range;

use sluice_core::cluster::Endpoint;

use crate::opening::Opening;

/// Maximum length of a host name with its port and the rest of the line, in bytes.
const NAME_BYTES_MAX: usize = 300;

/// The field that names the endpoint.
#[derive(Debug)]
pub(crate) struct Stamp {
    /// The name of the field.
    pub(crate) field: &'static str,
    /// The part of its value before the endpoint.
    pub(crate) before: Vec<u8>,
}

impl Stamp {
    /// The maximum size of the line, in bytes.
    pub(super) fn room(&self) -> usize {
        self.field.len() + self.before.len() + NAME_BYTES_MAX
    }
}

/// Writes a stamp into one message, and remembers where its line is.
pub(super) struct StampWriter<'a> {
    stamp: Option<&'a Stamp>,
    line: Range<usize>,
}

impl<'a> StampWriter<'a> {
    pub(super) fn new(stamp: Option<&'a Stamp>) -> Self {
        Self { stamp, line: 0..0 }
    }

    /// Writes the field into a complete head, replacing an earlier one.
    pub(super) fn put(&mut self, opening: &mut Opening, endpoint: &Endpoint) {
        let Some(stamp) = self.stamp else { return };
        if let Some(fields) = opening.fields() {
            let value = [&*stamp.before, endpoint.host.as_bytes()].concat();
            return fields.set(stamp.field.as_bytes(), &value);
        }
        let message = &mut opening.bytes;
        if self.line.is_empty() {
            let Some(end) = message.windows(2).position(|pair| pair == b"\r\n") else { return };
            self.line = end + 2..end + 2;
        }
        let parts = [stamp.field.as_bytes(), b": ", &stamp.before, endpoint.host.as_bytes(), b"\r\n"];
        let line = parts.concat();
        let behind = self.line.start + line.len();
        message.splice(self.line.clone(), line);
        self.line.end = behind;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use sluice_config::Balance;
    use sluice_core::cluster::fake::{config, seed};

    use super::*;

    #[test]
    fn the_stamp_names_the_last_endpoint() {
        let config = config(Balance::RoundRobin, true);
        let [one, other] = [1, 20].map(|port| Endpoint::new(seed(port), &config));
        let mut opening = Opening::new(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody\r\n\r\n".to_vec(), false);
        let mut framed = Opening::new(Vec::new(), true);
        let stamp = Stamp { field: "X-To", before: b"a, ".to_vec() };
        let mut stamped = StampWriter::new(Some(&stamp));
        for endpoint in [&one, &other, &one] {
            stamped.put(&mut opening, endpoint);
            StampWriter::new(Some(&stamp)).put(&mut framed, endpoint);
            let line = format!("X-To: a, {}\r\n", endpoint.label);
            let wanted = format!("GET / HTTP/1.1\r\n{line}Host: a\r\n\r\nbody\r\n\r\n");
            assert_eq!(String::from_utf8_lossy(&opening.bytes), wanted);
            let value = format!("a, {}", endpoint.label);
            let set: Vec<_> = framed.fields().unwrap().fields().collect();
            assert_eq!(set, [(&b"X-To"[..], value.as_bytes())]);
            assert!(line.len() <= stamp.room());
        }
        StampWriter::new(None).put(&mut opening, &other);
        assert!(!String::from_utf8_lossy(&opening.bytes).contains(&other.label));
    }
}

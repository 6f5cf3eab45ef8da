//! A second reader, independent of the parser and stricter, to check what is forwarded.

/// One message head: its start line and its fields.
pub(super) struct StrictHead {
    pub(super) start_line: String,
    pub(super) fields: Vec<(String, Vec<u8>)>,
}

impl StrictHead {
    /// The values of the fields with this lower-case name.
    pub(super) fn values(&self, name: &str) -> Vec<&[u8]> {
        self.fields.iter().filter(|field| field.0 == name).map(|field| field.1.as_slice()).collect()
    }

    /// The value of the one field with this lower-case name.
    #[track_caller]
    pub(super) fn value(&self, name: &str) -> String {
        let values = self.values(name);
        assert_eq!(values.len(), 1, "fields called {name}");
        String::from_utf8_lossy(values[0]).into_owned()
    }
}

/// Parses `bytes` as exactly one head with nothing after it.
#[track_caller]
pub(super) fn read_strictly(bytes: &[u8]) -> StrictHead {
    let shown = bytes.escape_ascii();
    let text: String = bytes.iter().map(|&byte| char::from(byte)).collect();
    let (head, rest) = text.split_once("\r\n\r\n").expect("an empty line");
    assert_eq!(rest, "", "bytes after the head: {shown}");
    let mut lines = head.split("\r\n");
    let start_line = lines.next().expect("a start line").to_owned();
    assert!(!has_control(&start_line), "control byte in the start line: {shown}");
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(": ").expect("a colon and a space");
        let is_name = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        assert!(!name.is_empty() && name.chars().all(is_name), "field name {name:?}");
        assert!(!has_control(value), "control byte in a value: {shown}");
        assert_eq!(value.trim_matches([' ', '\t']), value, "whitespace around a value");
        (name.to_ascii_lowercase(), value.chars().map(|c| c as u8).collect())
    });
    StrictHead { fields: fields.collect(), start_line }
}

/// Asserts the properties of every forwarded request.
#[track_caller]
pub(super) fn assert_clean_request(head: &StrictHead) {
    assert_clean_request_line(&head.start_line);
    assert_eq!(head.values("host").len(), 1, "exactly one Host");
    let lengths = head.values("content-length");
    let codings = head.values("transfer-encoding");
    assert!(lengths.len() + codings.len() <= 1, "at most one framing field");
    assert!(lengths.iter().all(|value| value.iter().all(u8::is_ascii_digit)));
    assert!(codings.iter().all(|value| *value == b"chunked"));
    let never = ["keep-alive", "proxy-connection", "proxy-authorization", "te", "http2-settings", "proxy"];
    for name in never {
        assert_eq!(head.values(name).len(), 0, "hop-by-hop field {name}");
    }
    for (name, _) in &head.fields {
        let dashed = name.replace('_', "-");
        assert!(dashed != "content-length" || name == "content-length", "{name}");
        assert!(dashed != "transfer-encoding" || name == "transfer-encoding", "{name}");
    }
    assert!(head.values("connection").iter().all(|value| *value == b"upgrade"));
    assert_eq!(head.values("connection").len(), head.values("upgrade").len());
}

#[track_caller]
fn assert_clean_request_line(line: &str) {
    let parts: Vec<&str> = line.split(' ').collect();
    assert_eq!(parts.len(), 3, "request line {line:?}");
    assert!(parts[1].starts_with('/') || parts[1] == "*", "target {:?}", parts[1]);
    assert!(parts[1].bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'));
    assert_eq!(parts[2], "HTTP/1.1");
}

fn has_control(text: &str) -> bool {
    text.chars().any(|c| (c < ' ' && c != '\t') || c == '\x7f')
}

//! Faults in HTTP/3, sent by h3i, which is made for them: another implementation of QUIC and HTTP/3 than ours. It replays
//! what a qlog file says, so each case is one. `cargo xtask test http3_h3i`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::pinned;
use sluice_testkit::process::bound;

use super::Served;

/// How long h3i stays after its last action, in milliseconds.
const STAY_MS: u32 = 300;
/// How long it waits in all for a connection that stays open.
const IDLE_MS: u32 = 1000;

/// What a server must do, as RFC 9114 says.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// Serve the request.
    Served,
    /// Close the connection with this code.
    Closed(u64),
    /// Reset the stream with this code, or refuse the request by a 400 (section 4.1.2).
    Refused(u64),
}

use Verdict::{Closed, Refused, Served as Answered};

const STREAM_CREATION_ERROR: u64 = 0x103;
const CLOSED_CRITICAL_STREAM: u64 = 0x104;
const FRAME_UNEXPECTED: u64 = 0x105;
const ID_ERROR: u64 = 0x108;
const SETTINGS_ERROR: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const REQUEST_CANCELLED: u64 = 0x10c;
const REQUEST_INCOMPLETE: u64 = 0x10d;
const MESSAGE_ERROR: u64 = 0x10e;

/// The client's control stream, and others that it opens.
const CONTROL: u64 = 2;
const SECOND: u64 = 6;
const THIRD: u64 = 10;
/// Its first request.
const REQUEST: u64 = 0;

type Field = (&'static str, &'static str);

/// A case: its name, what is sent after the control stream was opened, and what must happen.
type Case = (&'static str, Vec<Value>, Verdict);

fn frame(stream: u64, frame: &Value, ends: bool) -> Value {
    json!({"time": 0.0, "name": "http:frame_created", "data": {"stream_id": stream, "frame": frame},
        "fin_stream": ends, "literal_headers": true})
}

fn head(fields: &[Field], ends: bool) -> Value {
    on(REQUEST, fields, ends)
}

fn on(stream: u64, fields: &[Field], ends: bool) -> Value {
    let fields: Vec<_> = fields.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    frame(stream, &json!({"frame_type": "headers", "headers": fields}), ends)
}

fn data(stream: u64, text: &str, ends: bool) -> Value {
    let raw = json!({"length": text.len(), "payload_length": text.len(), "data": text});
    frame(stream, &json!({"frame_type": "data", "raw": raw}), ends)
}

fn settings(stream: u64, pairs: &[(u64, u64)]) -> Value {
    let pairs: Vec<_> =
        pairs.iter().map(|(name, value)| json!({"name": name.to_string(), "value": value})).collect();
    frame(stream, &json!({"frame_type": "settings", "settings": pairs}), false)
}

fn go_away(stream: u64, id: u64) -> Value {
    frame(stream, &json!({"frame_type": "goaway", "id": id}), false)
}

fn open(stream: u64, kind: &str, ends: bool) -> Value {
    let data = json!({"owner": "local", "stream_id": stream, "stream_type": kind, "stream_type_value": 0x21});
    json!({"time": 0.0, "name": "http:stream_type_set", "data": data, "fin_stream": ends})
}

fn packet(frame: &Value) -> Value {
    let header = json!({"packet_type": "1RTT", "packet_number": 0});
    json!({"time": 0.0, "name": "transport:packet_sent", "data": {"header": header, "frames": [frame]}})
}

fn end(stream: u64) -> Value {
    packet(&json!({"frame_type": "stream", "stream_id": stream, "fin": true, "offset": 0, "length": 0}))
}

fn reset(stream: u64) -> Value {
    let (kind, code) = ("reset_stream", REQUEST_CANCELLED);
    packet(&json!({"frame_type": kind, "stream_id": stream, "error_code": code, "final_size": 0}))
}

fn wait(ms: u32) -> Value {
    json!({"time": 0.0, "name": "h3i:wait", "data": {"duration": f64::from(ms)}})
}

const GET: [Field; 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/")];

/// A request with more fields.
fn with(more: &[Field]) -> Vec<Field> {
    [&GET[..], more].concat()
}

/// A request with another value of a field; without the field if that is `None`.
fn other(name: &str, value: Option<&'static str>) -> Vec<Field> {
    let change = |(known, before): &Field| match *known == name {
        true => value.map(|value| (*known, value)),
        false => Some((*known, *before)),
    };
    GET.iter().filter_map(change).collect()
}

fn of_streams() -> Vec<Case> {
    let closed_early = Closed(CLOSED_CRITICAL_STREAM);
    vec![
        ("second SETTINGS", vec![settings(CONTROL, &[])], Closed(FRAME_UNEXPECTED)),
        ("SETTINGS on a request", vec![settings(REQUEST, &[])], Closed(FRAME_UNEXPECTED)),
        ("HEADERS on control", vec![on(CONTROL, &GET, false)], Closed(FRAME_UNEXPECTED)),
        ("DATA on control", vec![data(CONTROL, "x", false)], Closed(FRAME_UNEXPECTED)),
        ("GOAWAY on a request", vec![go_away(REQUEST, 0)], Closed(FRAME_UNEXPECTED)),
        ("GOAWAY that grows", vec![go_away(CONTROL, 4), go_away(CONTROL, 8)], Closed(ID_ERROR)),
        ("DATA before HEADERS", vec![data(REQUEST, "x", true)], Closed(FRAME_UNEXPECTED)),
        ("second control stream", vec![open(SECOND, "control", false)], Closed(STREAM_CREATION_ERROR)),
        (
            "second encoder stream",
            vec![open(SECOND, "qpack_encode", false), open(THIRD, "qpack_encode", false)],
            Closed(STREAM_CREATION_ERROR),
        ),
        (
            "second decoder stream",
            vec![open(SECOND, "qpack_decode", false), open(THIRD, "qpack_decode", false)],
            Closed(STREAM_CREATION_ERROR),
        ),
        ("push stream", vec![open(SECOND, "push", false)], Closed(STREAM_CREATION_ERROR)),
        ("unknown stream", vec![open(SECOND, "unknown", false), head(&GET, true)], Answered),
        ("end of control", vec![end(CONTROL)], closed_early),
        ("reset of control", vec![wait(STAY_MS), reset(CONTROL)], closed_early),
        ("end of the encoder stream", vec![open(SECOND, "qpack_encode", true)], closed_early),
        ("request without a frame", vec![end(REQUEST)], Refused(REQUEST_INCOMPLETE)),
    ]
}

fn of_heads() -> Vec<Case> {
    let refused = Refused(MESSAGE_ERROR);
    let heads = [
        ("upper case", with(&[("X-Upper", "1")])),
        ("space in a name", with(&[("x y", "1")])),
        ("empty name", with(&[("", "1")])),
        ("colon in a name", with(&[("x:y", "1")])),
        ("NUL in a value", with(&[("x", "a\0b")])),
        ("CR in a value", with(&[("x", "a\rb")])),
        ("LF in a value", with(&[("x", "a\nb")])),
        ("connection", with(&[("connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("te: gzip", with(&[("te", "gzip")])),
        ("authority and host differ", with(&[("host", "elsewhere")])),
        ("unknown pseudo-header field", with(&[(":x", "1")])),
        (":status", with(&[(":status", "200")])),
        ("two paths", with(&[(":path", "/b")])),
        (":protocol without CONNECT", with(&[(":protocol", "websocket")])),
        ("length without a body", with(&[("content-length", "5")])),
        ("pseudo-header field after another", [&GET[..3], &[("x", "1")], &GET[3..]].concat()),
        ("no method", other(":method", None)),
        ("no scheme", other(":scheme", None)),
        ("no path", other(":path", None)),
        ("empty path", other(":path", Some(""))),
        ("no authority", other(":authority", None)),
        ("empty authority", other(":authority", Some(""))),
        ("CONNECT with a path", other(":method", Some("CONNECT"))),
    ];
    heads.into_iter().map(|(name, fields)| (name, vec![head(&fields, true)], refused)).collect()
}

fn of_bodies() -> Vec<Case> {
    let post = || head(&other(":method", Some("POST")), false);
    let body = || data(REQUEST, "abc", false);
    let trailers = |name, ends| head(&[(name, "1")], ends);
    let counted = |length| head(&with(&[("content-length", length)]), false);
    let (refused, unexpected) = (Refused(MESSAGE_ERROR), Closed(FRAME_UNEXPECTED));
    vec![
        ("body", vec![post(), body(), trailers("x", true)], Answered),
        ("length too long", vec![counted("5"), data(REQUEST, "abc", true)], refused),
        ("length too short", vec![counted("2"), data(REQUEST, "abc", true)], refused),
        ("pseudo-header field in trailers", vec![post(), body(), trailers(":path", true)], refused),
        ("upper case in trailers", vec![post(), body(), trailers("X", true)], refused),
        ("DATA after trailers", vec![post(), body(), trailers("x", false), body()], unexpected),
        ("two trailers", vec![post(), body(), trailers("x", false), trailers("x", true)], unexpected),
    ]
}

/// Cases that begin in another way.
fn of_settings() -> Vec<Case> {
    let begin = |pairs: &[(u64, u64)]| vec![open(CONTROL, "control", false), settings(CONTROL, pairs)];
    let mut cases = vec![
        ("no SETTINGS", vec![open(CONTROL, "control", false), go_away(CONTROL, 0)], Closed(MISSING_SETTINGS)),
        ("a setting twice", begin(&[(6, 1), (6, 2)]), Closed(SETTINGS_ERROR)),
        ("extended CONNECT: 2", begin(&[(8, 2)]), Closed(SETTINGS_ERROR)),
        ("unknown setting", [begin(&[(0x21, 9)]), vec![head(&GET, true)]].concat(), Answered),
    ];
    // Those that only HTTP/2 has (section 7.2.4.1).
    cases.extend([2, 3, 4, 5].map(|id| ("setting of HTTP/2", begin(&[(id, 1)]), Closed(SETTINGS_ERROR))));
    cases
}

/// Sends every case.
pub(super) fn bears(binary: &Path) -> Result<String> {
    let program = pinned::tool("h3i")?;
    let served = Served::start_with_http3("h3i", binary, 200)?;
    let begin = [open(CONTROL, "control", false), settings(CONTROL, &[])];
    let begun = [of_streams(), of_heads(), of_bodies()].concat();
    let begun =
        begun.into_iter().map(|(name, actions, verdict)| (name, [&begin[..], &actions].concat(), verdict));
    let cases: Vec<Case> = begun.chain(of_settings()).collect();
    for (name, actions, verdict) in &cases {
        let said = replay(&program, &served, actions).with_context(|| (*name).to_owned())?;
        ensure!(verdict.is_met(&said), "{name}: {verdict:?} was expected\n{said}");
    }
    Ok(format!("{} cases", cases.len()))
}

fn replay(program: &Path, served: &Served, actions: &[Value]) -> Result<String> {
    let trace = json!({"vantage_point": {"type": "client"}});
    let first = json!({"qlog_version": "0.3", "qlog_format": "JSON-SEQ", "trace": trace});
    let records = [&[first][..], actions, &[wait(STAY_MS)]].concat();
    let text: String = records.iter().map(|record| format!("\u{1e}{record}\n")).collect();
    let file = served.folder.join("case.sqlog");
    fs::write(&file, text)?;
    let mut command: Command = bound(program);
    command.args(["--no-verify", "--no-qlog-actions-output", "--idle-timeout", &IDLE_MS.to_string()]);
    command.args(["--connect-to", &served.address.to_string(), "--qlog-input"]).arg(&file);
    command.arg(format!("localhost:{}", served.address.port())).env("RUST_LOG", "info");
    let output = command.stdin(Stdio::null()).current_dir(&served.folder).output().context("h3i")?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

impl Verdict {
    /// Whether h3i has seen it.
    fn is_met(self, said: &str) -> bool {
        let is_closed = said.contains("ConnectionError {");
        match self {
            Answered => said.contains("\":status: 200\"") && !is_closed,
            Closed(code) => said.contains(&format!("is_app: true, error_code: {code},")),
            Refused(code) => {
                let reset = format!("ResetStream {{ stream_id: {REQUEST}, error_code: {code} }}");
                !is_closed && (said.contains(&reset) || said.contains("\":status: 400\""))
            }
        }
    }
}

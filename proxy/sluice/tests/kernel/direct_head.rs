//! The parser of heads for direct return gives the same results in the kernel as on the host.

use std::cell::Cell;
use std::time::Duration;

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Btf, Ebpf, EbpfLoader};
use proptest::test_runner::{Config, TestRunner};
use sluice_ebpf::head::{
    Cut, Head, Refusal, TEXT_BYTES, TRIAL_ACCEPTED, TRIAL_HEAD_OFFSET, TRIAL_TEXT_OFFSET, parse_text,
};
use sluice_ebpf::names;

#[path = "../../../http/src/tests/odd_heads.rs"]
mod odd_heads;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../proxy-ebpf/prebuilt/bypass.bpf.o");

/// nginx's response to a request for a file.
const NGINX: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 21 Nov 2026 09:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 65536\r\nLast-Modified: Fri, 20 Nov 2026 09:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"655b1f3c-10000\"\r\nAccept-Ranges: bytes\r\n\r\n";

/// The object with only this program; never attached.
struct Trial(Ebpf);

impl Trial {
    fn new() -> Self {
        let mut ebpf = EbpfLoader::new().btf(None::<&Btf>).load(OBJECT).unwrap();
        let program: &mut SchedClassifier = ebpf.program_mut(names::HEAD).unwrap().try_into().unwrap();
        program.load().unwrap();
        Trial(ebpf)
    }

    /// The result of the program for a text that is not empty, and the time of `repeat` runs.
    fn run(&self, text: &[u8], repeat: u32) -> (Result<Head, Refusal>, Duration) {
        let program: &SchedClassifier = self.0.program(names::HEAD).unwrap().try_into().unwrap();
        let text = &text[..text.len().min(TEXT_BYTES)];
        let frame = [&[0; TRIAL_TEXT_OFFSET], text].concat();
        let mut out = vec![0; frame.len()];
        let options = TestRunOptions {
            data_in: Some(&frame),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::new()
        };
        let result = program.test_run(options).unwrap();
        let found = match result.return_value {
            value if value == TRIAL_ACCEPTED as u32 => Ok(head(&out[TRIAL_HEAD_OFFSET..TRIAL_TEXT_OFFSET])),
            value => Err(Refusal::from_number(value).unwrap()),
        };
        (found, result.duration)
    }
}

fn head(bytes: &[u8]) -> Head {
    let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let cut = |at| Cut { start: number(at), bytes: number(at + 4) };
    Head {
        content_length: u64::from_ne_bytes(bytes[..8].try_into().unwrap()),
        head_bytes: number(8),
        status: number(12),
        fields: number(16),
        cut_count: number(20),
        cuts: [cut(24), cut(32)],
        status_line_bytes: number(40),
        has_request_id: number(44),
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn the_kernel_parses_heads_like_the_host() {
    let trial = Trial::new();
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    let accepted = Cell::new(0);
    let agreed = runner.run(&odd_heads::odd_head(), |bytes| {
        if !bytes.is_empty() {
            let host = parse_text(&bytes);
            assert_eq!(trial.run(&bytes, 1).0, host, "{}", bytes.escape_ascii());
            accepted.set(accepted.get() + u32::from(host.is_ok()));
        }
        Ok(())
    });
    agreed.unwrap();
    // Mostly usual heads with a few changes: a good part of them is accepted.
    assert!(accepted.get() > 100, "{}", accepted.get());
}

/// No limit is asserted: the time is information for developers.
#[test]
#[ignore = "needs root and BPF"]
fn the_cost_of_a_head_is_printed() {
    let trial = Trial::new();
    for extra in [0, 250, 1250] {
        let line = format!("X-Pad: {}\r\n\r\n", "x".repeat(extra));
        let text = [&NGINX[..NGINX.len() - 2], line.as_bytes()].concat();
        let (found, each) = trial.run(&text, 100_000);
        assert_eq!(found, parse_text(&text));
        println!("{} bytes: {} ns", text.len(), each.as_nanos());
    }
    let (_, each) = trial.run(&NGINX[1..], 100_000);
    println!("refused at once: {} ns", each.as_nanos());
}

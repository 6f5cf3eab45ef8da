//! Challenge responses, and approval of on-demand names.

use sluice_core::http_challenges::HttpChallenges;
use std::fs;
use std::time::Duration;

use instant_acme::Problem;
use sluice_config::DnsHook;
use sluice_http::{HeadLimits, RequestHead};

use super::super::challenge::Shown;
use super::super::demand::Denied;
use super::super::failure::{Failure, Kind};
use super::super::hook;
use super::Scratch;

fn head(line: &str) -> RequestHead {
    let mut head = RequestHead::new();
    let text = format!("{line} HTTP/1.1\r\nHost: a.example\r\n\r\n");
    head.parse(
        text.as_bytes(),
        &HeadLimits { head_bytes_max: 4096, headers_max: 10, target_bytes_max: 1000 },
    )
    .unwrap();
    head
}

#[test]
fn only_published_tokens_get_a_response() {
    let challenges = std::sync::Arc::<HttpChallenges>::default();
    let ask = |line: &str| challenges.answer(&head(line));
    let path = "/.well-known/acme-challenge/";
    assert!(ask(&format!("GET {path}t")).is_none());
    challenges.add("t", "t.thumb");
    challenges.add("u", "u.thumb");
    assert_eq!(ask(&format!("GET {path}t")).as_deref(), Some("t.thumb"));
    assert_eq!(ask(&format!("HEAD {path}u")).as_deref(), Some("u.thumb"));
    for other in [
        format!("GET {path}v"),
        format!("GET {path}"),
        format!("POST {path}t"),
        format!("GET {path}t/"),
        "GET /t".to_owned(),
    ] {
        assert!(ask(&other).is_none(), "{other}");
    }
    drop(Shown::Http { challenges: challenges.clone(), token: "t".to_owned() });
    assert!(ask(&format!("GET {path}t")).is_none() && ask(&format!("GET {path}u")).is_some());
}

#[test]
fn refused_names_are_not_asked_about_again_soon() {
    let mut denied = Denied::default();
    assert!(denied.may_ask("a.example", 0));
    denied.note("a.example".to_owned(), 100, 0);
    assert!(!denied.may_ask("a.example", 99) && denied.may_ask("a.example", 100));
    for never in ["localhost", "10.0.0.1", "a_b.example", "..", "a.example/../b", "*.example"] {
        assert!(!denied.may_ask(never, 0), "{never}");
    }
}

#[test]
fn many_invented_names_do_not_block_other_names() {
    let mut denied = Denied::default();
    for number in 0..100_000 {
        let name = format!("n{number}.example");
        assert!(denied.may_ask(&name, number), "{name}");
        denied.note(name.clone(), number + 1_000_000, number);
        assert!(!denied.may_ask(&name, number), "{name} was asked about just now");
    }
    let remembered = (0..100_000).filter(|number| !denied.may_ask(&format!("n{number}.example"), 100_000));
    let remembered = remembered.count();
    assert!((5_000..=10_000).contains(&remembered), "{remembered}");
}

fn hook_of(scratch: &Scratch, script: &str) -> DnsHook {
    let file = scratch.0.join("hook");
    fs::write(&file, script).unwrap();
    // Passed to the shell: executing a file that was just written may fail while a child of another test has it open.
    let arguments = vec![file.display().to_string(), "an argument".to_owned()];
    DnsHook { command: "/bin/sh".into(), arguments, ..DnsHook::default() }
}

#[tokio::test]
async fn hook_gets_all_arguments_and_must_succeed() {
    let scratch = Scratch::new();
    let told = scratch.0.join("told");
    let good = hook_of(&scratch, &format!("printf '%s|' \"$@\" > {}", told.display()));
    hook::run(&good, "present", "_acme-challenge.a.example.", "value").await.unwrap();
    assert_eq!(fs::read_to_string(told).unwrap(), "an argument|present|_acme-challenge.a.example.|value|");
    let bad = hook_of(&scratch, "echo 'no such zone' >&2; exit 3");
    let said = hook::run(&bad, "cleanup", "r", "v").await.unwrap_err();
    assert!(said.to_string().contains("cleanup failed with exit status: 3: no such zone"), "{said}");
    let none = DnsHook { command: scratch.0.join("none"), ..DnsHook::default() };
    assert!(
        hook::run(&none, "present", "r", "v").await.unwrap_err().to_string().contains("none: No such file")
    );
}

#[tokio::test]
async fn a_hanging_hook_is_killed() {
    let scratch = Scratch::new();
    let slow = DnsHook { timeout_ms: 100, ..hook_of(&scratch, "exec sleep 600") };
    let said = hook::run(&slow, "present", "r", "v").await.unwrap_err();
    assert!(said.to_string().contains("present did not finish within 100 ms"), "{said}");
}

#[test]
fn authority_problems_are_quoted() {
    let problem = |text: &str| serde_json::from_str::<Problem>(text).unwrap();
    let failure = Failure::of_problem(&problem(
        r#"{"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many\ncertificates", "status": 429,
            "subproblems": [{"type": "urn:ietf:params:acme:error:dns", "detail": "no A record"}]}"#,
    ));
    assert_eq!(failure.text, "too many certificates (rateLimited); no A record (dns)");
    assert_eq!(failure.kind, Kind::RateLimited(None));
    let failure =
        Failure::of_problem(&problem(r#"{"type": "urn:ietf:params:acme:error:accountDoesNotExist"}"#));
    assert_eq!(failure.kind, Kind::NoAccount);
    assert_eq!(failure.while_doing("it").text, "it: the authority gives no reason (accountDoesNotExist)");
    assert_ne!(Kind::RateLimited(Some(Duration::ZERO)), Kind::Failed);
}

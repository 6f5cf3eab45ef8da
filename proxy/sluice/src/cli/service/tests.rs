//! Command lines as kamal-proxy 0.9.2 accepts and refuses them; its messages were recorded from its binary.

#![allow(clippy::unwrap_used)]

use clap::Parser;
use serde_json::Value;

use super::words::{Refusal, refusal};
use super::*;
use crate::cli::kamal::{KamalCommand, KamalProxy};

/// The result of a command line: a request, or an error message.
fn asked(words: &[&str]) -> Result<Asked, String> {
    let arguments: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    let parsed =
        KamalProxy::try_parse_from(std::iter::once("kamal-proxy".to_owned()).chain(arguments.clone()));
    match parsed {
        Ok(KamalProxy { command: KamalCommand::Service(command) }) => {
            command.asked("kamal-proxy").map_err(|error| error.to_string())
        }
        Ok(KamalProxy { command: KamalCommand::Run(_) }) => Err("run".to_owned()),
        Err(error) => match refusal(&error, "kamal-proxy", &arguments) {
            Refusal::Help(_) => Err("help".to_owned()),
            Refusal::Error(lines) => Err(lines.join("\n")),
        },
    }
}

fn line(line: &str) -> Result<Asked, String> {
    asked(&line.split_whitespace().collect::<Vec<_>>())
}

fn body(asked: &Asked) -> Value {
    serde_json::from_str(&asked.body).unwrap()
}

#[test]
fn errors_use_kamal_proxys_words() {
    for (given, said) in [
        ("foo", "unknown command \"foo\" for \"kamal-proxy\"\nRun 'kamal-proxy --help' for usage."),
        (
            "depoly",
            "unknown command \"depoly\" for \"kamal-proxy\"\n\nDid you mean this?\n\tdeploy\n\nRun 'kamal-proxy --help' for usage.",
        ),
        ("deploy", "accepts 1 arg(s), received 0"),
        ("deploy a b", "accepts 1 arg(s), received 2"),
        ("deploy a", "required flag(s) \"target\" not set"),
        ("deploy a --target", "flag needs an argument: --target"),
        ("deploy a --nope", "unknown flag: --nope"),
        ("deploy a --nope=1", "unknown flag: --nope"),
        ("deploy a -x", "unknown shorthand flag: 'x' in -x"),
        (
            "deploy a --target x --deploy-timeout abc",
            "invalid argument \"abc\" for \"--deploy-timeout\" flag: time: invalid duration \"abc\"",
        ),
        (
            "deploy a --target x --deploy-timeout 5",
            "invalid argument \"5\" for \"--deploy-timeout\" flag: time: missing unit in duration \"5\"",
        ),
        (
            "deploy a --target x --health-check-port x",
            "invalid argument \"x\" for \"--health-check-port\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            "deploy a --target x --tls=maybe",
            "invalid argument \"maybe\" for \"--tls\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        ("deploy a --target x --tls maybe", "accepts 1 arg(s), received 2"),
        (
            "deploy t --target a:1 --tls --host a.com --path-prefix /x",
            "TLS settings must be specified on the root path service",
        ),
        (
            "deploy t --target a:1 --tls-certificate-path x",
            "if any flags in the group [tls-certificate-path tls-private-key-path] are set they must all be set; missing [tls-private-key-path]",
        ),
        (
            "deploy t --target a:1 --max-request-body 5",
            "max-request-body can only be set when request buffering is enabled",
        ),
        (
            "deploy t --target a:1 --max-response-body 5",
            "max-response-body can only be set when response buffering is enabled",
        ),
        (
            "deploy t --target a:1 --canonical-host q --host a.com,b.com",
            "canonical-host 'q' must be present in the hosts list: [a.com b.com]",
        ),
        ("deploy t --target=a:1 --canonical-host", "flag needs an argument: --canonical-host"),
        ("rollout set b", "at least one of the flags in the group [percent list] is required"),
        ("rollout deploy b", "required flag(s) \"target\" not set"),
        ("rollout", "help"),
        ("deploy --help", "help"),
        ("list extra", "unknown command \"extra\" for \"kamal-proxy list\""),
        (
            "run --http-port x",
            "invalid argument \"x\" for \"--http-port\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        ("run --nope", "unknown flag: --nope"),
    ] {
        assert_eq!(line(given).unwrap_err(), said, "{given}");
    }
}

#[test]
fn readme_examples_are_accepted() {
    let deploy = line("deploy service1 --target web-1:3000").unwrap();
    assert_eq!((deploy.method, deploy.path.as_str()), ("POST", "/v1/services/service1/deploy"));
    let defaults = body(&deploy);
    assert_eq!(defaults["targets"], serde_json::json!(["web-1:3000"]));
    assert_eq!(defaults["options"]["hosts"], serde_json::json!([""]));
    assert_eq!(defaults["options"]["path_prefixes"], serde_json::json!(["/"]));
    assert_eq!(defaults["target_options"]["forward_headers"], true);
    assert_eq!(defaults["deployment_options"]["deploy_timeout"], 30_000_000_000_u64);
    let path = |asked: Asked| body(&asked)["target_options"]["health_check_config"].clone();
    let check = path(line("deploy service1 --target web-1:3000 --health-check-path web/index.html").unwrap());
    assert_eq!(check["path"], "web/index.html");
    let check = path(line("deploy service1 --target web-1:3000 --health-check-port 8080").unwrap());
    assert_eq!(check["port"], 8080);
    let host = body(&line("deploy service1 --target web-1:3000 --host app1.example.com").unwrap());
    assert_eq!(host["options"]["hosts"], serde_json::json!(["app1.example.com"]));
    let prefix = body(
        &line("deploy service1 --target web-1:3000 --path-prefix=/api --strip-path-prefix=false").unwrap(),
    );
    assert_eq!(prefix["options"]["path_prefixes"], serde_json::json!(["/api"]));
    assert_eq!(prefix["options"]["strip_prefix"], false);
    let tls = body(
        &line("deploy service1 --target web-1:3000 --host app1.example.com --tls --tls-certificate-path cert.pem --tls-private-key-path key.pem")
            .unwrap(),
    );
    assert_eq!(
        (&tls["options"]["tls_enabled"], &tls["target_options"]["forward_headers"]),
        (&true.into(), &false.into())
    );
    assert_eq!(line("remove service1").unwrap(), line("rm service1").unwrap());
    assert_eq!(line("list").unwrap(), line("ls").unwrap());
}

#[test]
fn kamals_own_command_lines_are_accepted() {
    // As Kamal 2 writes it.
    let words = [
        "deploy",
        "app-web",
        "--target=6a37c269ff02:3000",
        "--tls=false",
        "--deploy-timeout=30s",
        "--drain-timeout=1m30s",
        "--buffer-requests",
        "--buffer-responses",
        "--log-request-header=Cache-Control",
        "--log-request-header=Last-Modified",
        "--host=a.com,b.com",
        "--host=c.com",
        "--target=x:1",
        "--target-timeout=500ms",
        "--target-timeout=250ms",
    ];
    let body = body(&asked(&words).unwrap());
    assert_eq!(body["targets"], serde_json::json!(["6a37c269ff02:3000", "x:1"]));
    assert_eq!(body["options"]["hosts"], serde_json::json!(["a.com", "b.com", "c.com"]));
    let target = &body["target_options"];
    assert_eq!(target["log_request_headers"], serde_json::json!(["Cache-Control", "Last-Modified"]));
    assert_eq!(
        (&target["buffer_requests"], &target["response_timeout"]),
        (&true.into(), &250_000_000.into())
    );
    assert_eq!(body["deployment_options"]["drain_timeout"], 90_000_000_000_u64);
}

#[test]
fn other_commands_become_requests() {
    let pause = line("pause web --drain-timeout 5s --max-pause 1m").unwrap();
    assert_eq!(pause.path, "/v1/services/web/pause");
    assert_eq!(
        body(&pause),
        serde_json::json!({"drain_timeout": 5_000_000_000_u64, "pause_timeout": 60_000_000_000_u64})
    );
    let stop = asked(&["stop", "web", "--message", "--gone <b>"]).unwrap();
    assert_eq!(body(&stop)["message"], "--gone <b>");
    let set = line("rollout set web --percent 10 --list a,b --list c").unwrap();
    assert_eq!(set.path, "/v1/services/web/rollout/set");
    assert_eq!(body(&set), serde_json::json!({"percentage": 10, "allowlist": ["a", "b", "c"]}));
    let remove = line("remove web").unwrap();
    assert_eq!(
        (remove.method, remove.path.as_str(), remove.body.as_str()),
        ("DELETE", "/v1/services/web", "")
    );
    let ours = body(&line("deploy web --target a1:1 --max-in-flight auto --queue-size 5").unwrap());
    assert_eq!(ours["target_options"]["max_in_flight"], "auto");
    assert_eq!(ours["target_options"]["queue_size"], 5);
}

#[test]
fn a_missing_socket_is_reported_in_gos_words() {
    let socket = std::env::temp_dir().join("sluice-nobody-listens-here.sock");
    let command = ServiceCommand::Resume(NameArgs {
        service: vec!["web".to_owned()],
        control: ControlArgs { control: None },
    });
    let said = command.run("kamal-proxy", &socket).unwrap_err();
    assert_eq!(said, [format!("dial unix {}: connect: no such file or directory", socket.display())]);
}

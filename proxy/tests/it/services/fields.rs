//! What a service changes in heads, and what of them it has in the log.

use super::*;

#[test]
fn fields_that_are_asked_for_are_logged() {
    let app = Origin::answering(|request| {
        match request.target() {
        "/up" => ok(""),
        _ => b"HTTP/1.1 201 Created\r\nCache-Control: public, max-age=3600\r\nX-Custom: goodbye\r\nX-CUSTOM: twice\r\n\
               Content-Length: 2\r\n\r\nhi"
            .to_vec(),
    }
    });
    let Some(proxy) = setup(&app).start() else { return };
    let logged = "--log-request-header X-Custom,Missing --log-response-header Cache-Control --log-response-header x-custom";
    done(&proxy, &format!("deploy web --target {} --host svc.test {logged}", app.endpoint));
    let long = "v".repeat(1100);
    for (target, value, wanted) in
        [("/short", "hello \"quoted\"", "hello \"quoted\""), ("/long", &long, &long[..1024])]
    {
        let answer =
            proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: svc.test\r\nx-custom: {value}\r\n\r\n"));
        assert_eq!(answer.status(), 201);
        let record = proxy.record(target);
        assert_eq!((&record["req_x_custom"], &record["req_missing"]), (&wanted.into(), &"".into()));
        let (cached, custom) = (&record["resp_cache_control"], &record["resp_x_custom"]);
        assert_eq!((cached, custom), (&"public, max-age=3600".into(), &"goodbye,twice".into()));
    }
    done(&proxy, "stop web");
    assert_eq!(ask(&proxy, "/stopped").status(), 503);
    assert_eq!(proxy.record("/stopped")["resp_x_custom"], "");
    proxy.ask("GET /file HTTP/1.1\r\nHost: file.test\r\n\r\n");
    assert!(proxy.record("/file").get("req_x_custom").is_none(), "others log what they did");
    let many = format!(
        "deploy web --target {} --host svc.test --log-request-header {}a",
        app.endpoint,
        "a,".repeat(32)
    );
    let (code, said) = sluice(&proxy, &many);
    assert_eq!((code, said.as_str()), (Some(1), "Error: log-request-header takes 32 fields at most\n"));
}

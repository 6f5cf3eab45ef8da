//! Exchanges with an HTTP/2 endpoint that one side cancels.

use std::sync::mpsc::channel;

use bytes::Bytes;
use h2::Reason;
use http::Response;
use serde_json::json;

use super::client::{answer, get, post, talk, to};
use super::server::Server;
use super::upstream::setup;

#[test]
fn a_reset_is_a_502_or_cuts_the_response() {
    let server = Server::new(async |mut asked| {
        if asked.path() == "/early" {
            return asked.respond.send_reset(Reason::INTERNAL_ERROR);
        }
        let mut stream = asked.begin(200, &[]);
        stream.send_data(Bytes::from_static(b"half"), false).unwrap();
        let (_, _) = asked.body().await;
        stream.send_reset(Reason::INTERNAL_ERROR);
    });
    let Some(proxy) = setup(&server).start() else { return };
    talk(&proxy, async |sender| {
        let early = post(&sender, to("/early").method("POST").body(()).unwrap(), b"x", None).await;
        assert_eq!(early.status(), 502);
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, mut stream) =
            ready.send_request(to("/late").method("POST").body(()).unwrap(), false).unwrap();
        let response: Response<_> = response.await.unwrap();
        assert_eq!(response.status(), 200);
        stream.send_data(Bytes::from_static(b"x"), true).unwrap();
        assert!(answer(response).await.is_err_and(|error| error.is_reset()));
    });
    assert_eq!(server.requests(), 2);
    assert_eq!(proxy.outcome("/late").1, "response_truncated");
}

/// gRPC servers do this at a call's deadline, which is the client's deadline as well.
#[test]
fn a_server_that_cancels_is_not_an_outage() {
    let server = Server::new(async |mut asked| match asked.path() {
        "/early" | "/page" => asked.respond.send_reset(Reason::CANCEL),
        "/late" => {
            let mut stream = asked.begin(200, &[]);
            stream.send_data(Bytes::from_static(b"half"), false).unwrap();
            let (_, _) = asked.body().await;
            stream.send_reset(Reason::CANCEL);
        }
        _ => asked.answer(b"well"),
    });
    let ejection = json!({"consecutive_failures": 1, "time_ms": 60_000});
    let setup = setup(&server).with("clusters.default.ejection", ejection);
    let Some(proxy) = setup.with("clusters.default.fail_open", false).start() else { return };
    talk(&proxy, async |sender| {
        for path in ["/early", "/late", "/early", "/late"] {
            let request = to(path).method("POST").header("content-type", "application/grpc+proto");
            let mut ready = sender.clone().ready().await.unwrap();
            let (response, mut stream) = ready.send_request(request.body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from_static(b"x"), false).unwrap();
            let error = match response.await {
                Ok(response) => {
                    // The late end waits for this: otherwise only the reset after the head would be seen.
                    stream.send_data(Bytes::new(), true).unwrap();
                    answer(response).await.err().expect("half of a response")
                }
                Err(error) => error,
            };
            assert_eq!((error.is_remote(), error.reason()), (true, Some(Reason::CANCEL)), "{path}: {error}");
        }
        assert_eq!(get(&sender, "/well").await.body, b"well");
        let page = post(&sender, to("/page").method("POST").body(()).unwrap(), b"x", None).await;
        assert_eq!(page.status(), 502);
    });
    assert_eq!(proxy.outcome("/early"), (502, "upstream_cancelled".to_owned()));
    assert_eq!(proxy.outcome("/late"), (200, "upstream_cancelled".to_owned()));
}

#[test]
fn a_client_that_goes_away_cancels() {
    let (ended, ends) = channel();
    let server = Server::new(move |mut asked| {
        let ended = ended.clone();
        async move {
            if asked.path() == "/other" {
                return asked.answer(b"other");
            }
            let _stream = asked.begin(200, &[]);
            let reason = asked.request.body_mut().data().await;
            ended.send(reason.unwrap().unwrap_err().reason()).unwrap();
        }
    });
    let Some(proxy) = setup(&server).start() else { return };
    talk(&proxy, async |sender| {
        let mut ready = sender.clone().ready().await.unwrap();
        let request = to("/long").method("POST").body(()).unwrap();
        let (response, mut stream) = ready.send_request(request, false).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
        stream.send_reset(Reason::CANCEL);
        assert_eq!(get(&sender, "/other").await.body, b"other");
    });
    assert_eq!(ends.recv().unwrap(), Some(Reason::CANCEL));
    assert_eq!(server.connections(), 1);
}

//! The control socket, from both ends.
#![allow(clippy::unwrap_used)]

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::api::{Failure, Upgrade};
use super::*;

struct Fake;

impl Api for Fake {
    async fn reload(&self) -> Result<Value, Failure> {
        Err(Failure::mistakes("refused", &["a: wrong".to_owned(), "b: wrong".to_owned()]))
    }

    async fn upgrade(&self, wanted: Upgrade) -> Result<Value, Failure> {
        Ok(json!({ "pid": wanted.timeout_ms }))
    }

    async fn bans(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure> {
        self.services(method, path, body).await
    }

    async fn caches(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure> {
        self.services(method, path, body).await
    }

    async fn fleet(&self) -> Result<Value, Failure> {
        Ok(json!({}))
    }

    async fn services(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure> {
        Ok(json!([method.as_str(), path, String::from_utf8_lossy(body)]))
    }
}

fn path(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("sluice-control-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder.join("deep/control.sock")
}

/// Sends a request to a fake API.
fn ask(test: &str, path_asked: &'static str) -> Result<Value, ClientError> {
    let path = path(test);
    let mut listener = Listener::bind(&path, false).unwrap();
    listener.publish().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let socket = path.clone();
    let asked = std::thread::spawn(move || call(&socket, path_asked, &json!({})));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let answer = local.block_on(&runtime, async {
        let served = tokio::task::spawn_local(serve(listener, Rc::new(Fake)));
        let answer = tokio::task::spawn_blocking(move || asked.join().unwrap()).await.unwrap();
        served.abort();
        answer
    });
    std::fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
    answer
}

#[test]
fn a_refusal_lists_every_mistake() {
    assert_eq!(ask("mistakes", "/v1/reload").unwrap_err().to_string(), "a: wrong\nb: wrong");
}

#[test]
fn unknown_operations_are_refused() {
    let ClientError::Refused(body) = ask("unknown", "/v1/nothing").unwrap_err() else { panic!() };
    assert_eq!(body, json!({ "error": "no such operation" }));
}

#[test]
fn bodies_of_the_wrong_shape_are_refused() {
    let refused = |body: &str| match read::<sluice_core::service::api::DeployRequest>(body.as_bytes()) {
        Err(failure) => format!("{failure:?}"),
        Ok(read) => panic!("{body} is read as {read:?}"),
    };
    assert!(refused("[]").contains("request body: $: write an object"));
    assert!(
        refused(r#"{"target_options": {"health_check_config": ["/up"]}}"#)
            .contains("$.target_options.health_check_config: write an object")
    );
    assert!(refused(r#"{"options": {"hostz": []}}"#).contains("options.hostz: unknown key"));
    assert!(refused("{} {}").contains("trailing characters"));
    assert!(read::<sluice_core::service::api::DeployRequest>(br#"{"targets": null, "options": {}}"#).is_ok());
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_dead_one_replaced() {
    let path = path("taken");
    let mut first = Listener::bind(&path, false).unwrap();
    first.publish().unwrap();
    assert_eq!(Listener::bind(&path, false).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(first);
    let mut second = Listener::bind(&path, false).unwrap();
    second.publish().unwrap();
    // Dropping an unpublished socket leaves the other one alone.
    drop(Listener::bind(&path, true).unwrap());
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    drop(second);
    let error = call(&path, "/v1/reload", &json!({})).unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    std::fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
}

#[test]
fn a_replaced_socket_is_restored() {
    let path = path("back");
    let mut old = Listener::bind(&path, false).unwrap();
    old.publish().unwrap();
    let second = SecondName::of(&path).unwrap();
    let mut new = Listener::bind(&path.with_extension("new"), false).unwrap();
    new.publish().unwrap();
    std::fs::rename(path.with_extension("new"), &path).unwrap();
    drop(new);
    assert!(std::os::unix::net::UnixStream::connect(&path).is_err());
    second.restore().unwrap();
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    // If there is nothing to restore, no file is left over.
    let second = SecondName::of(&path).unwrap();
    second.restore().unwrap();
    drop(second);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    std::fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
}

#[test]
fn failures_are_sentences() {
    let failure = Failure::new(StatusCode::CONFLICT, "no");
    assert!(format!("{failure:?}").contains("\"no\""));
}

#[test]
fn no_socket_is_created_in_a_world_writable_folder() {
    let folder = std::env::temp_dir().join(format!("sluice-open-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let bound = |mode| {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        Listener::bind(&folder.join("control.sock"), false).map(drop)
    };
    let refused = bound(0o777).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
    for mode in [0o1777, 0o700, 0o755] {
        bound(mode).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

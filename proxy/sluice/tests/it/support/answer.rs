//! What clients of HTTP/2 and HTTP/3 share.

use std::time::Duration;

use http::{HeaderMap, Response};

/// A response.
pub(crate) struct Answer {
    pub(crate) head: Response<()>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.head.headers().get(name).map(|value| value.to_str().unwrap())
    }
}

/// Waits for something that happens elsewhere.
pub(crate) async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

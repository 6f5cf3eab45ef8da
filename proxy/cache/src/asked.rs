//! What is known of a request.

use sluice_http::RequestHead;

/// A request, as far as it chooses among the responses of a resource.
#[derive(Clone, Copy)]
pub struct Caller<'r> {
    /// Its head, as the client sent it.
    pub request: &'r RequestHead,
    /// What the application is told of how it came: the scheme, and what a proxy in front says.
    pub origin: &'r [u8],
    /// Whether the application may know who sent it: Authorization, a certificate, or what sluice says of the user.
    pub has_credentials: bool,
}

/// A request whose response may be stored.
pub struct RequestFacts<'r> {
    /// The request.
    pub caller: Caller<'r>,
    /// Whether a field of this name, in lower case, is written by sluice, or changed by the route.
    pub is_ours: &'r dyn Fn(&[u8]) -> bool,
    /// Whether a field of this name, in lower case, never reaches the application.
    pub is_dropped: &'r dyn Fn(&[u8]) -> bool,
}

//! Endpoints as one worker holds them.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::cluster::Endpoint;

/// A share of an endpoint within one worker. Unlike a clone of the `Arc`, a clone of this writes to no memory that other
/// workers write: on many cores, a count that all of them change at every request would limit them.
#[derive(Clone)]
pub(crate) struct LocalEndpoint(Rc<Share>);

struct Share(Arc<Endpoint>);

impl From<&Arc<Endpoint>> for LocalEndpoint {
    fn from(endpoint: &Arc<Endpoint>) -> Self {
        Self(Rc::new(Share(Arc::clone(endpoint))))
    }
}

impl Deref for LocalEndpoint {
    type Target = Arc<Endpoint>;

    fn deref(&self) -> &Arc<Endpoint> {
        &self.0.0
    }
}

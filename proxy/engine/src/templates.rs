//! Changes of heads whose values depend on the request.

use sluice_config::{HeaderEdits, Template};
use sluice_http::FieldEdits;

/// The fields that a route sets and adds, with variables.
pub(crate) struct EditTemplates {
    request: Templates,
    response: Templates,
}

struct Templates {
    remove: Vec<Vec<u8>>,
    set: Vec<(Vec<u8>, Template)>,
    add: Vec<(Vec<u8>, Template)>,
}

/// The same for one request.
pub(crate) struct RenderedEdits {
    pub(crate) request: FieldEdits,
    pub(crate) response: FieldEdits,
}

impl EditTemplates {
    /// `None` if no value has a variable.
    pub(crate) fn of(route: &sluice_config::Route) -> Option<Box<Self>> {
        let templates = Self {
            request: Templates::of(&route.request_headers),
            response: Templates::of(&route.response_headers),
        };
        let is_fixed = templates.request.is_fixed() && templates.response.is_fixed();
        (!is_fixed).then(|| Box::new(templates))
    }

    /// The fields with the values that `value` gives.
    pub(crate) fn render(&self, value: &dyn Fn(&Template) -> Vec<u8>) -> RenderedEdits {
        RenderedEdits { request: self.request.render(value), response: self.response.render(value) }
    }
}

impl Templates {
    fn of(edits: &HeaderEdits) -> Self {
        let pairs = |pairs: &[(String, String)]| {
            let read = |value: &String| Template::read(value).unwrap_or_else(|_| Template(Vec::new()));
            pairs.iter().map(|(name, value)| (name.clone().into_bytes(), read(value))).collect()
        };
        let remove = edits.remove.iter().map(|name| name.clone().into_bytes()).collect();
        Self { remove, set: pairs(&edits.set), add: pairs(&edits.add) }
    }

    fn is_fixed(&self) -> bool {
        self.set.iter().chain(&self.add).all(|(_, template)| template.is_fixed())
    }

    /// A field whose value turns out to be empty is not sent, and one that the client sent in its place is removed: an
    /// application must not take the client's word for it.
    fn render(&self, value: &dyn Fn(&Template) -> Vec<u8>) -> FieldEdits {
        let mut edits = FieldEdits { remove: self.remove.clone(), ..FieldEdits::default() };
        for (name, template) in &self.set {
            match value(template) {
                empty if empty.is_empty() => edits.remove.push(name.to_ascii_lowercase()),
                value => edits.set.push((name.clone(), value)),
            }
        }
        let added = self.add.iter().map(|(name, template)| (name.clone(), value(template)));
        edits.add = added.filter(|(_, value)| !value.is_empty()).collect();
        edits
    }
}

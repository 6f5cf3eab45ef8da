//! Files that routes respond with: how a path becomes a name, how the name is looked up, and what a worker keeps of it.
//!
//! A file is found in three steps. [`name`] makes a name of the path, in the form that routes are matched by, so that no
//! spelling of a path leads past a rule. [`find`] opens it below the folder of its route, where neither `..` nor a link
//! leads out. [`store`] keeps what was found for a second, and small contents for as long as nothing changed.

mod find;
mod folder;
mod handoff;
mod listing;
mod name;
mod plan;
mod route;
mod store;
mod stored;

pub(crate) use find::{Found, Wanted};
pub(crate) use folder::can_open_below;
pub(crate) use handoff::{HANDOFF_ANSWERS, Handoff, NamedFile, handoff_fields, is_of_body};
pub(crate) use listing::page;
pub(crate) use plan::{Plan, WholeContent};
pub(crate) use route::FileRoute;
pub(crate) use store::FileStore;
pub(crate) use stored::{Content, StoredFile};

//! Services: what `sluice deploy` makes, in the model of kamal-proxy 0.9 and 0.10 and by its words.
//!
//! A service is a name, hosts and path prefixes, and targets that one deploy put there together. It is kept in a
//! state file (`state`), and compiled (`compile`) into the routes and clusters that the configuration file has too.
//! What those cannot say is data on a `ServiceEntry` (`entry`), by which the data path chooses:
//!
//! - who goes to a rollout's targets (a cookie), and who to readers (method, websocket, a cookie with a time);
//! - whether requests are served, held or turned away: this changes without a new snapshot, so it is shared (`slot`);
//! - redirects to https and to a canonical host, and 200 for health checks from in front while requests are held;
//! - which X-Forwarded-* fields are believed, and error pages of a service's own.
//!
//! Nothing here is on the path of a request but `entry` and `slot`.

pub mod adjust;
pub mod api;
pub mod compile;
mod cookies;
pub mod duration;
pub mod entry;
pub mod error;
mod invalid;
pub mod logged;
pub mod model;
pub mod options;
pub mod pages;
pub mod rollout;
pub mod set;
pub mod slot;
pub mod state;
pub mod target;
pub mod tls;

pub use invalid::InvalidService;

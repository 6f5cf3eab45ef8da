//! Services: the result of `sluice deploy`, in the model of kamal-proxy 0.9 and 0.10 and with its terms.
//!
//! A service is a name, hosts and path prefixes, and the targets of one deploy. It is saved in a state file (`state`),
//! and compiled (`compile`) into routes and clusters like those of the configuration file. What these cannot express is
//! data in a `ServiceEntry` (`entry`), which the data path uses to decide:
//!
//! - which clients use a rollout's targets (a cookie), and which requests use readers (method, websocket, a cookie with
//!   a time);
//! - whether requests are served, wait or are rejected: this changes without a new snapshot, so it is shared (`slot`);
//! - redirects to https and to a canonical host, and 200 for health checks of a load balancer while the service is paused
//!   or stopped;
//! - which X-Forwarded-* fields are trusted, and the service's error pages.
//!
//! Only `entry` and `slot` are on the path of a request.

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

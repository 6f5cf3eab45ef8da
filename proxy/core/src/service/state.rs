//! The file that keeps deployed services across a restart: JSON with a version, replaced atomically.
//!
//! If it does not exist yet, kamal-proxy's state file is read instead. That file is not modified, so that you can go
//! back to kamal-proxy.

use crate::service::InvalidService;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::model::Service;
use super::set::Services;
use crate::durable;

/// The version of the format.
const VERSION: u32 = 1;

/// Most files of services that are no longer served; beyond that, the last one is replaced.
const KEPT_ASIDE_MAX: u32 = 9;

/// Maximum size of the file in bytes, enough for about ten thousand services.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where services are stored.
#[derive(Clone, Debug)]
pub struct StateFile {
    /// The file.
    pub path: PathBuf,
    /// kamal-proxy's file, which is read if sluice's own does not exist.
    pub kamal: Option<PathBuf>,
}

/// What a member of a fleet remembers besides the services that it serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetMark {
    /// Where the fleet has its store.
    pub place: String,
    /// Which fleet it is.
    pub fleet: String,
    /// The version of the services.
    pub version: u64,
    /// The last changes, newest first.
    pub recent: Vec<String>,
    /// Everything that the fleet had deployed then, by the names of services.
    pub records: BTreeMap<String, Value>,
    /// The deploys that the targets of each served service are of.
    pub deploys: BTreeMap<String, Deploys>,
}

/// The names of deploys: targets are the same as before if these are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Deploys {
    /// Of the targets of a service.
    pub active: String,
    /// Of the targets of its rollout.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rollout: String,
}

/// Why a state file is not used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// it cannot be read
    #[error("{path}: cannot read the state of services: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// its content is invalid
    #[error("{path}: the state of services is damaged: {what}; {aside}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What happened to the file.
        aside: String,
    },
}

/// The file's content, as it is written.
#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    services: Vec<&'a Service>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<&'a FleetMark>,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Deserialize)]
struct Document {
    services: Vec<Service>,
    fleet: Option<FleetMark>,
}

impl StateFile {
    /// Loads the stored services; none if there is no file. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read, or when it is damaged or of a later version. In the latter two cases it has been
    /// renamed to `FILE.damaged`.
    pub fn load(&self) -> Result<(Services, Option<FleetMark>), StateError> {
        let none = || Ok((Services::default(), None));
        let ours = read(&self.path)?;
        let (path, bytes) = match (ours, &self.kamal) {
            (Some(bytes), _) => (&self.path, bytes),
            (None, Some(kamal)) => match read(kamal)? {
                Some(bytes) => (kamal, bytes),
                None => return none(),
            },
            (None, None) => return none(),
        };
        let parsed = match path == &self.path {
            true => parse(&bytes),
            false => parse_kamal(&bytes).map(|services| (services, None)),
        };
        parsed.map_err(|what| {
            let aside = if path == &self.path {
                match durable::set_aside(path) {
                    Ok(aside) => format!("it was renamed to {}", aside.display()),
                    Err(error) => format!("it cannot be renamed: {error}"),
                }
            } else {
                "it was left unchanged".to_owned()
            };
            StateError::Damaged { path: path.clone(), what: what.to_string(), aside }
        })
    }

    /// Saves services that are no longer served, in `FILE.before-fleet`. Returns the path. Blocks.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_aside(&self, services: &Services) -> io::Result<PathBuf> {
        let name = |number: u32| {
            let mut path = self.path.clone().into_os_string();
            path.push(if number == 0 {
                ".before-fleet".to_owned()
            } else {
                format!(".before-fleet.{number}")
            });
            PathBuf::from(path)
        };
        let free = (0..KEPT_ASIDE_MAX).map(name).find(|path| !path.exists());
        let aside = Self { path: free.unwrap_or_else(|| name(KEPT_ASIDE_MAX)), kamal: None };
        aside.save(services, None)?;
        Ok(aside.path)
    }

    /// Saves these services and replaces what was stored. Blocks until they are on disk.
    ///
    /// # Errors
    /// When they cannot be written; the previous content is then kept.
    pub fn save(&self, services: &Services, fleet: Option<&FleetMark>) -> io::Result<()> {
        let written = Written { version: VERSION, services: services.iter().collect(), fleet };
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        durable::write(&self.path, &serde_json::to_vec_pretty(&written)?)
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
    durable::read(path, FILE_BYTES_MAX).map_err(|error| StateError::Read { path: path.to_owned(), error })
}

fn parse(bytes: &[u8]) -> Result<(Services, Option<FleetMark>), InvalidService> {
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it is larger than {FILE_BYTES_MAX} bytes").into());
    }
    // Version first: a later format need not parse as this one.
    match serde_json::from_slice(bytes).map_err(|error| error.to_string())? {
        Versioned { version: VERSION } => {
            let document: Document = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            Ok((collect(document.services)?, document.fleet))
        }
        Versioned { version } => {
            Err(format!("it has version {version}; this release reads version {VERSION}").into())
        }
    }
}

/// kamal-proxy stores a plain list; older releases have one target, and other names for hosts and paths.
fn parse_kamal(bytes: &[u8]) -> Result<Services, InvalidService> {
    let list: Vec<Value> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let services = list.into_iter().map(|mut service| {
        modernise(&mut service);
        serde_json::from_value(service).map_err(|error| error.to_string())
    });
    collect(services.collect::<Result<_, _>>()?)
}

fn modernise(service: &mut Value) {
    let empty = |value: Option<&Value>| value.is_none_or(|value| value.as_array().is_none_or(Vec::is_empty));
    for (old, new) in [("active_target", "active_targets"), ("rollout_target", "rollout_targets")] {
        let target = service.get(old).and_then(Value::as_str).unwrap_or_default().to_owned();
        if !target.is_empty() && empty(service.get(new)) {
            service[new] = vec![target].into();
        }
    }
    for key in ["hosts", "path_prefixes"] {
        let old = service.get(key).cloned();
        if let Some(old) = old.filter(|old| !empty(Some(old)))
            && empty(service.get("options").and_then(|options| options.get(key)))
        {
            service["options"][key] = old;
        }
    }
    if service.get("pause_controller").is_some_and(Value::is_null) {
        service["pause_controller"] = serde_json::json!({});
    }
}

fn collect(mut services: Vec<Service>) -> Result<Services, InvalidService> {
    let mut set = Services::default();
    for service in &mut services {
        service.options.normalize();
        if service.name.is_empty() {
            return Err("a service has no name".into());
        }
        let name = &service.name;
        if set.get(name).is_ok() {
            return Err(format!("it contains the service {name:?} twice").into());
        }
        set.check(name, &service.options).map_err(|error| format!("{name:?}: {error}"))?;
        set.set(service.clone());
    }
    Ok(set)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;

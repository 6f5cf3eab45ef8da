//! Targets of a service with another weight, or disabled, while they serve. It holds until the next deploy of the
//! targets.

use std::collections::BTreeMap;

use sluice_config::WEIGHT;

use super::compile::Group;
use super::error::ServiceError;
use super::model::Service;
use super::target;
use crate::cluster::Adjustment;

/// What is to change at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its share of the requests, relative to the other targets.
    Weight(u32),
    /// It takes no new requests.
    Disable,
    /// It takes requests again.
    Enable,
}

impl Change {
    /// A share of the requests.
    ///
    /// # Errors
    /// When it is none that a target can have.
    pub fn weight(weight: u32) -> Result<Self, ServiceError> {
        if WEIGHT.contains(&weight.into()) {
            return Ok(Self::Weight(weight));
        }
        Err(ServiceError::Weight { weight })
    }

    /// What is set for a target with this change.
    pub fn of(self, set: Adjustment) -> Adjustment {
        match self {
            Self::Weight(weight) => Adjustment { weight: Some(weight), ..set },
            Self::Disable => Adjustment { disabled: true, ..set },
            Self::Enable => Adjustment { disabled: false, ..set },
        }
    }
}

/// The name that a target goes by, its port included.
pub fn name(target: &str) -> String {
    target::endpoint(target).map_or_else(|_| target.to_owned(), |endpoint| endpoint.address.to_string())
}

impl Group {
    /// What was set for the targets of this group and of those that were deployed with it.
    pub fn adjusted(self, service: &Service) -> &BTreeMap<String, Adjustment> {
        match self {
            Group::Active | Group::ActiveReaders => &service.active_adjusted,
            Group::Rollout | Group::RolloutReaders => &service.rollout_adjusted,
        }
    }

    fn adjusted_mut(self, service: &mut Service) -> &mut BTreeMap<String, Adjustment> {
        match self {
            Group::Active | Group::ActiveReaders => &mut service.active_adjusted,
            Group::Rollout | Group::RolloutReaders => &mut service.rollout_adjusted,
        }
    }

    fn has(self, service: &Service, wanted: &str) -> bool {
        self.targets(service).iter().any(|target| name(target) == wanted)
    }

    /// Whether it has targets, and none of them takes requests.
    fn is_shut(self, service: &Service) -> bool {
        let disabled = |target: &String| {
            self.adjusted(service).get(&name(target)).is_some_and(|adjustment| adjustment.disabled)
        };
        let targets = self.targets(service);
        !targets.is_empty() && targets.iter().all(disabled)
    }
}

/// A service with one of its targets changed; a target that serves and is in a rollout too is changed in both.
///
/// # Errors
/// When it has no such target, or when nobody would take the requests that readers do not take. Readers may all be
/// disabled: the others read then.
pub fn adjusted(service: &Service, target: &str, change: Change) -> Result<Service, ServiceError> {
    let mut changed = service.clone();
    let wanted = name(target);
    let groups = Group::ALL.into_iter().filter(|group| group.has(service, &wanted));
    let groups: Vec<Group> = groups.collect();
    for group in &groups {
        let before = group.adjusted(service).get(&wanted).copied().unwrap_or_default();
        let now = change.of(before);
        let all = group.adjusted_mut(&mut changed);
        if now == Adjustment::default() {
            all.remove(&wanted)
        } else {
            all.insert(wanted.clone(), now)
        };
    }
    if groups.is_empty() {
        let known: Vec<&str> =
            Group::ALL.into_iter().flat_map(|group| group.targets(service)).map(String::as_str).collect();
        let (name, known) = (service.name.clone(), known.join(", "));
        return Err(ServiceError::NoSuchTarget { name, target: target.to_owned(), known });
    }
    for (group, instead) in [(Group::Active, "stop"), (Group::Rollout, "rollout stop")] {
        if change == Change::Disable && groups.contains(&group) && group.is_shut(&changed) {
            let (name, target) = (service.name.clone(), wanted);
            let instead = format!("\"{instead} {name}\" is there for that");
            return Err(ServiceError::LastTarget { name, target, instead });
        }
    }
    Ok(changed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn service() -> Service {
        serde_json::from_value(serde_json::json!({
            "name": "web", "active_targets": ["web-1:3000", "web-2"], "active_readers": ["web-3:3000"],
            "rollout_targets": ["web-2:80"],
        }))
        .unwrap()
    }

    #[test]
    fn targets_are_found_wherever_they_are() {
        let changed = adjusted(&service(), "web-2", Change::Weight(7)).unwrap();
        let seven = Adjustment { weight: Some(7), disabled: false };
        assert_eq!(changed.active_adjusted, BTreeMap::from([("web-2:80".to_owned(), seven)]));
        assert_eq!(changed.rollout_adjusted, changed.active_adjusted);
        let disabled = adjusted(&changed, "web-1:3000", Change::Disable).unwrap();
        assert_eq!(disabled.active_adjusted.len(), 2);
        let enabled = adjusted(&disabled, "web-1:3000", Change::Enable).unwrap();
        assert_eq!(enabled, changed, "what is as deployed is not kept");
        let json = serde_json::to_value(&changed).unwrap();
        assert_eq!(serde_json::from_value::<Service>(json).unwrap(), changed);
        let error = adjusted(&changed, "web-4:1", Change::Enable).unwrap_err().to_string();
        let known = "web-1:3000, web-2, web-3:3000, web-2:80";
        assert_eq!(error, format!("web has no target \"web-4:1\"; it has {known}"));
    }

    #[test]
    fn somebody_is_left() {
        let service = adjusted(&service(), "web-3:3000", Change::Disable).unwrap();
        let said = |service: &Service, target| {
            adjusted(service, target, Change::Disable).map(|_| ()).map_err(|error| error.to_string())
        };
        let last =
            "web-2:80 is the last target of web that takes requests; \"rollout stop web\" is there for that";
        assert_eq!(said(&service, "web-2:80"), Err(last.to_owned()));
        let service = Service { rollout_targets: Vec::new(), ..service };
        let service = adjusted(&service, "web-2:80", Change::Disable).unwrap();
        assert_eq!(said(&service, "web-2:80"), Ok(()), "again is no matter");
        let last = "web-1:3000 is the last target of web that takes requests; \"stop web\" is there for that";
        assert_eq!(said(&service, "web-1:3000"), Err(last.to_owned()));
    }

    #[test]
    fn weights_are_bounded() {
        for weight in [1, 1000] {
            assert_eq!(Change::weight(weight).unwrap(), Change::Weight(weight));
        }
        for weight in [0, 1001] {
            assert!(
                Change::weight(weight).unwrap_err().to_string().starts_with("a weight is from 1 to 1000, ")
            );
        }
    }
}

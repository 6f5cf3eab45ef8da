//! Changes to targets of a service at run time: another weight, or disabled. They apply until the next deploy of the
//! targets.

use std::collections::BTreeMap;

use sluice_config::WEIGHT;

use super::compile::Group;
use super::error::ServiceError;
use super::model::Service;
use super::target;
use crate::cluster::Adjustment;

/// A change to a target.
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
    /// When the weight is out of range.
    pub fn weight(weight: u32) -> Result<Self, ServiceError> {
        if WEIGHT.contains(&weight.into()) {
            return Ok(Self::Weight(weight));
        }
        Err(ServiceError::Weight { weight })
    }

    /// The target's adjustment after this change.
    pub fn of(self, set: Adjustment) -> Adjustment {
        match self {
            Self::Weight(weight) => Adjustment { weight: Some(weight), ..set },
            Self::Disable => Adjustment { disabled: true, ..set },
            Self::Enable => Adjustment { disabled: false, ..set },
        }
    }
}

/// The name of a target, including its port.
pub fn name(target: &str) -> String {
    target::endpoint(target).map_or_else(|_| target.to_owned(), |endpoint| endpoint.address.to_string())
}

impl Group {
    /// The adjustments of this group's targets and of targets deployed together with it.
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

    /// Whether it has targets, and all of them are disabled.
    fn is_shut(self, service: &Service) -> bool {
        let disabled = |target: &String| {
            self.adjusted(service).get(&name(target)).is_some_and(|adjustment| adjustment.disabled)
        };
        let targets = self.targets(service);
        !targets.is_empty() && targets.iter().all(disabled)
    }
}

/// A service with one of its targets changed. A target that is both active and in a rollout is changed in both groups.
///
/// # Errors
/// When it has no such target, or when no target would be left for the requests that readers do not take. All readers
/// may be disabled: the other targets then serve reads.
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
            let instead = format!("use \"{instead} {name}\" instead");
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
    fn targets_are_found_in_every_group() {
        let changed = adjusted(&service(), "web-2", Change::Weight(7)).unwrap();
        let seven = Adjustment { weight: Some(7), disabled: false };
        assert_eq!(changed.active_adjusted, BTreeMap::from([("web-2:80".to_owned(), seven)]));
        assert_eq!(changed.rollout_adjusted, changed.active_adjusted);
        let disabled = adjusted(&changed, "web-1:3000", Change::Disable).unwrap();
        assert_eq!(disabled.active_adjusted.len(), 2);
        let enabled = adjusted(&disabled, "web-1:3000", Change::Enable).unwrap();
        assert_eq!(enabled, changed, "an adjustment without effect is removed");
        let json = serde_json::to_value(&changed).unwrap();
        assert_eq!(serde_json::from_value::<Service>(json).unwrap(), changed);
        let error = adjusted(&changed, "web-4:1", Change::Enable).unwrap_err().to_string();
        let known = "web-1:3000, web-2, web-3:3000, web-2:80";
        assert_eq!(error, format!("web has no target \"web-4:1\"; it has {known}"));
    }

    #[test]
    fn the_last_target_cannot_be_disabled() {
        let service = adjusted(&service(), "web-3:3000", Change::Disable).unwrap();
        let said = |service: &Service, target| {
            adjusted(service, target, Change::Disable).map(|_| ()).map_err(|error| error.to_string())
        };
        let last = "web-2:80 is the last target of web that takes requests; use \"rollout stop web\" instead";
        assert_eq!(said(&service, "web-2:80"), Err(last.to_owned()));
        let service = Service { rollout_targets: Vec::new(), ..service };
        let service = adjusted(&service, "web-2:80", Change::Disable).unwrap();
        assert_eq!(said(&service, "web-2:80"), Ok(()), "disabling twice is allowed");
        let last = "web-1:3000 is the last target of web that takes requests; use \"stop web\" instead";
        assert_eq!(said(&service, "web-1:3000"), Err(last.to_owned()));
    }

    #[test]
    fn weights_are_bounded() {
        for weight in [1, 1000] {
            assert_eq!(Change::weight(weight).unwrap(), Change::Weight(weight));
        }
        for weight in [0, 1001] {
            assert!(Change::weight(weight).unwrap_err().to_string().contains("is not between 1 and 1000; "));
        }
    }
}

//! The deployed services by name, and the conflicts between them.

use std::collections::BTreeMap;

use sluice_config::{Action, Conditions, Config, Exceptions};

use super::api::Listed;
use super::error::ServiceError;
use super::model::Service;
use super::options::ServiceOptions;

/// Services by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Services(BTreeMap<String, Service>);

impl Services {
    /// The service of this name.
    ///
    /// # Errors
    /// When there is no such service.
    pub fn get(&self, name: &str) -> Result<&Service, ServiceError> {
        self.0.get(name).ok_or(ServiceError::NotFound)
    }

    /// All services, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Service> {
        self.0.values()
    }

    /// Adds a service, or replaces the service of the same name.
    pub fn set(&mut self, service: Service) {
        self.0.insert(service.name.clone(), service);
        self.take_tls_from_roots();
    }

    /// Removes a service.
    ///
    /// # Errors
    /// When there is no service of this name.
    pub fn remove(&mut self, name: &str) -> Result<Service, ServiceError> {
        let removed = self.0.remove(name).ok_or(ServiceError::NotFound)?;
        self.take_tls_from_roots();
        Ok(removed)
    }

    /// Checks that a service of this name may have these options: no other service may serve one of its paths on one of
    /// its hosts.
    ///
    /// # Errors
    /// When another service does.
    pub fn check(&self, name: &str, options: &ServiceOptions) -> Result<(), ServiceError> {
        let taken = self.0.values().filter(|other| other.name != name).any(|other| {
            let both = |ours: &[String], theirs: &[String]| ours.iter().any(|one| theirs.contains(one));
            both(&options.hosts, &other.options.hosts)
                && both(&options.path_prefixes, &other.options.path_prefixes)
        });
        if taken { Err(ServiceError::HostInUse) } else { Ok(()) }
    }

    /// The output of `list`.
    pub fn list(&self) -> BTreeMap<String, Listed> {
        self.0.values().map(|service| (service.name.clone(), Listed::of(service))).collect()
    }

    /// The service that serves `/` on a host; its TLS settings apply to the host.
    fn root_of(&self, host: &str) -> Option<&Service> {
        let wildcard = host.find('.').filter(|dot| *dot > 0).map(|dot| format!("*{}", &host[dot..]));
        let serving = |host: &str| {
            let mut on_host =
                self.0.values().filter(|service| service.options.hosts.iter().any(|h| h == host));
            let any = on_host.clone().next().is_some();
            any.then(|| on_host.find(|service| service.options.serves_root()))
        };
        serving(host).or_else(|| serving(&wildcard?)).or_else(|| serving("")).flatten()
    }

    fn take_tls_from_roots(&mut self) {
        let below: Vec<_> = self.0.values().filter(|service| !service.options.serves_root()).collect();
        let settings: Vec<_> = below
            .into_iter()
            .map(|service| {
                let host = service.options.hosts.first().map_or("", String::as_str);
                let root =
                    self.root_of(host).map(|root| (root.options.tls_enabled, root.options.tls_redirect));
                (service.name.clone(), root.unwrap_or((false, true)))
            })
            .collect();
        for (name, (enabled, redirect)) in settings {
            if let Some(service) = self.0.get_mut(&name) {
                (service.options.tls_enabled, service.options.tls_redirect) = (enabled, redirect);
            }
        }
    }
}

impl FromIterator<Service> for Services {
    fn from_iter<I: IntoIterator<Item = Service>>(services: I) -> Self {
        let mut set = Self(services.into_iter().map(|service| (service.name.clone(), service)).collect());
        set.take_tls_from_roots();
        set
    }
}

/// Checks that a service does not conflict with the configuration file: no cluster or route has its name, and no route
/// without conditions serves one of its paths on one of its hosts.
///
/// # Errors
/// When there is a conflict.
pub fn check_against(config: &Config, name: &str, options: &ServiceOptions) -> Result<(), ServiceError> {
    let clash = |what, name: &str| Err(ServiceError::InConfiguration { what, name: name.to_owned() });
    if config.clusters.contains_key(name) {
        return clash("cluster", name);
    }
    for route in &config.routes {
        let same_host = match route.hosts.as_slice() {
            [] => options.hosts.iter().any(String::is_empty),
            hosts => {
                hosts.iter().any(|host| options.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(host)))
            }
        };
        let prefix = format!("/{}", route.path_prefix.trim_matches('/'));
        let same_place = same_host
            && options.path_prefixes.contains(&prefix)
            && route.path.is_none()
            && route.path_regex.is_none()
            && route.conditions == Conditions::default()
            && route.not == Exceptions::default();
        let same_name =
            route.name == name || matches!(&route.action, Action::Cluster(cluster) if cluster == name);
        if same_place || same_name {
            return clash("route", &route.name);
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn options(hosts: &[&str], paths: &[&str]) -> ServiceOptions {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let mut options =
            ServiceOptions { hosts: texts(hosts), path_prefixes: texts(paths), ..ServiceOptions::default() };
        options.normalize();
        options
    }

    fn service(name: &str, options: ServiceOptions) -> Service {
        Service { name: name.to_owned(), options, ..Service::default() }
    }

    #[test]
    fn two_services_must_not_share_host_and_path() {
        // kamal-proxy's own cases.
        let set: Services = [
            service("1", options(&["example.com"], &[])),
            service("2", options(&["app.example.com"], &[])),
            service("3", options(&["app.example.com"], &["/api"])),
        ]
        .into_iter()
        .collect();
        let free = |name: &str, options: ServiceOptions| set.check(name, &options).is_ok();
        assert!(free("2", options(&["app.example.com"], &[])));
        assert!(free("4", options(&["api.example.com"], &[])));
        assert!(free("4", options(&[], &[])));
        assert!(free("4", options(&["app.example.com"], &["/app"])));
        assert!(free("3", options(&["app.example.com"], &["/api"])));
        assert!(!free("4", options(&["app.example.com"], &[])));
        assert!(!free("4", options(&["app.example.com"], &["/api"])));
        let only: Services = [service("1", options(&[], &[]))].into_iter().collect();
        assert!(only.check("2", &options(&["app.example.com"], &[])).is_ok());
        let error = only.check("2", &options(&[], &["/"])).unwrap_err();
        assert_eq!(error.to_string(), "host settings conflict with another service");
    }

    #[test]
    fn tls_settings_of_a_host_come_from_its_root_service() {
        // kamal-proxy's own cases.
        let with_tls = |enabled, redirect, options| ServiceOptions {
            tls_enabled: enabled,
            tls_redirect: redirect,
            ..options
        };
        let mut set = Services::default();
        set.set(service("1", with_tls(true, false, options(&["1.example.com"], &[]))));
        set.set(service("2", options(&["1.example.com"], &["/api"])));
        set.set(service("3", with_tls(false, true, options(&["2.example.com"], &[]))));
        set.set(service("4", options(&["2.example.com"], &["/api"])));
        let tls = |set: &Services, name: &str| {
            let options = &set.get(name).unwrap().options;
            (options.tls_enabled, options.tls_redirect)
        };
        assert_eq!((tls(&set, "1"), tls(&set, "2")), ((true, false), (true, false)));
        assert_eq!((tls(&set, "3"), tls(&set, "4")), ((false, true), (false, true)));
        set.remove("1").unwrap();
        assert_eq!(tls(&set, "2"), (false, true));
        assert!(matches!(set.remove("1"), Err(ServiceError::NotFound)));
    }

    #[test]
    fn a_service_must_not_conflict_with_the_configuration_file() {
        let text = "listeners: [{address: \"127.0.0.1:0\"}]\n\
                    clusters: {web: {endpoints: [\"127.0.0.1:1\"]}}\n\
                    routes: [{hosts: [a.test], path_prefix: /api, cluster: web, name: api}]\n";
        let config = sluice_config::parse("test", text, &[]).unwrap();
        let check = |name, options| check_against(&config, name, &options).map_err(|error| error.to_string());
        assert!(check("app", options(&["a.test"], &[])).is_ok());
        assert!(check("app", options(&[], &["/api"])).is_ok());
        let said = |what, name| {
            Err(format!("the configuration file has a {what} \"{name}\"; deploy under another name"))
        };
        assert_eq!(check("web", options(&["b.test"], &[])), said("cluster", "web"));
        assert_eq!(check("api", options(&["b.test"], &[])), said("route", "api"));
        assert_eq!(check("app", options(&["A.test"], &["api"])), said("route", "api"));
    }
}

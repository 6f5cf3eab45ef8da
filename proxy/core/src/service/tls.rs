//! What a service needs from listeners that terminate TLS for services (`tls.services`), in the form of configuration:
//! the certificate store and the ACME keeper treat it like entries of the configuration file.

use std::path::PathBuf;

use sluice_config::{
    AcmeChallenge, AcmeDirectory, CertificateFiles, Config, HttpUrl, ListenerAcme, OnDemand, Question, Tls,
};

use super::error::ServiceError;
use super::model::Service;
use super::options::ServiceOptions;
use super::target;

/// Timeout of an `ask` request, in milliseconds: the same as in kamal-proxy.
const ASK_TIMEOUT_MS: u64 = 2000;

/// The certificates of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServiceTls {
    /// None: it is served without TLS, or with the certificates of the service at the root path of its hosts.
    #[default]
    Off,
    /// From files.
    Files(CertificateFiles),
    /// Issued for its hosts.
    Hosts {
        /// The hosts, in lower case.
        names: Vec<String>,
        /// The authority, if it differs from the configuration's.
        directory: Option<AcmeDirectory>,
    },
    /// Issued for any name that the `ask` URL allows.
    OnDemand(OnDemand),
}

impl ServiceTls {
    /// The TLS needs of a service.
    ///
    /// # Errors
    /// When its `tls_on_demand_url` or its authority cannot be used.
    pub fn of(service: &Service) -> Result<Self, ServiceError> {
        let options = &service.options;
        if !options.tls_enabled || !options.serves_root() {
            return Ok(Self::Off);
        }
        if let Some(files) = files(options) {
            return Ok(Self::Files(files));
        }
        let directory = directory(options)?;
        if !options.tls_on_demand_url.is_empty() {
            return on_demand(service).map(Self::OnDemand);
        }
        let named = options.hosts.iter().filter(|host| !host.is_empty());
        let names = named.map(|host| host.to_ascii_lowercase()).collect();
        Ok(Self::Hosts { names, directory })
    }

    /// Whether a configuration can serve it.
    ///
    /// # Errors
    /// Names what is missing, and what to write.
    pub fn check(&self, config: &Config) -> Result<(), ServiceError> {
        if *self == Self::Off {
            return Ok(());
        }
        if matches!(self, Self::Hosts { names, .. } if names.is_empty()) {
            return Err(ServiceError::Invalid("host must be set when using TLS".to_owned()));
        }
        let serves = |tls: &Tls| tls.services;
        if !config.listeners.iter().any(|listener| listener.tls.as_ref().is_some_and(serves)) {
            let message = "--tls: no listener terminates TLS for services; \
                           write tls: {services: true} on one, and acme: {terms_agreed: true}";
            return Err(ServiceError::NotYet(message.to_owned()));
        }
        match self {
            Self::Off | Self::Files(_) => Ok(()),
            Self::Hosts { names, .. } => check_authority(config, names),
            Self::OnDemand(_) => check_authority(config, &[]),
        }
    }

    /// Adds it to the TLS configuration of a listener.
    pub fn add_to(&self, tls: &mut Tls) {
        match self {
            Self::Off => {}
            Self::Files(files) => {
                if !tls.certificates.contains(files) {
                    tls.certificates.push(files.clone());
                }
            }
            Self::Hosts { names, directory } => {
                let acme = tls.acme.get_or_insert_with(ListenerAcme::default);
                for name in names {
                    if acme.names.contains(name) {
                        // The file configures the name, with the file's authority.
                        continue;
                    }
                    acme.names.push(name.clone());
                    let other = directory.iter().map(|directory| (name.clone(), directory.clone()));
                    acme.directories.extend(other);
                }
            }
            Self::OnDemand(on_demand) => {
                let acme = tls.acme.get_or_insert_with(ListenerAcme::default);
                acme.on_demand.get_or_insert_with(|| on_demand.clone());
            }
        }
    }
}

/// Whether an authority is configured that can issue certificates for `names`.
fn check_authority(config: &Config, names: &[String]) -> Result<(), ServiceError> {
    let Some(acme) = &config.acme else {
        let message = "--tls: no certificate authority is configured; write acme: {terms_agreed: true}";
        return Err(ServiceError::NotYet(message.to_owned()));
    };
    let has_wildcard = names.iter().any(|name| name.contains('*'));
    if has_wildcard && acme.challenge != AcmeChallenge::Dns01 {
        return Err(ServiceError::WildcardTls);
    }
    Ok(())
}

/// The authority that a service names, if any.
fn directory(options: &ServiceOptions) -> Result<Option<AcmeDirectory>, ServiceError> {
    let url = &options.acme_directory;
    if url.is_empty() {
        return Ok(None);
    }
    if !url.starts_with("https://") {
        let message = format!("tls-acme-directory: {url:?} is not a URL that starts with https://");
        return Err(ServiceError::Invalid(message));
    }
    if !options.tls_on_demand_url.is_empty() {
        let message = "tls-on-demand-url: on-demand certificates come from the authority of the configuration \
                       (acme.directory); leave out --tls-staging and --tls-acme-directory";
        return Err(ServiceError::Invalid(message.to_owned()));
    }
    Ok(Some(AcmeDirectory::of_url(url)))
}

fn files(options: &ServiceOptions) -> Option<CertificateFiles> {
    let (cert, key) = (&options.tls_certificate_path, &options.tls_private_key_path);
    let (cert, key) = (PathBuf::from(cert), PathBuf::from(key));
    let named = !cert.as_os_str().is_empty() && !key.as_os_str().is_empty();
    named.then_some(CertificateFiles::Pair { cert, key, ocsp: None })
}

/// If the URL is only a path, the service's first target is asked.
fn on_demand(service: &Service) -> Result<OnDemand, ServiceError> {
    let url = &service.options.tls_on_demand_url;
    let invalid = |mistake| ServiceError::Invalid(format!("tls-on-demand-url: {mistake}"));
    let (ask_url, question) = if url.starts_with('/') && !url.starts_with("//") {
        let endpoints = target::endpoints(&service.active_targets)?;
        let address = endpoints.into_iter().next().ok_or(ServiceError::NoTarget)?.address;
        (HttpUrl { tls: false, address, path: url.clone() }, Question::OwnHost)
    } else {
        (HttpUrl::parse(url, "/").map_err(invalid)?, Question::Host)
    };
    if !ask_url.path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(ServiceError::Unsendable("tls-on-demand-url"));
    }
    Ok(OnDemand { ask_url, question, timeout_ms: ASK_TIMEOUT_MS, ..OnDemand::default() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn service(json: serde_json::Value) -> Service {
        let mut service: Service = serde_json::from_value(
            serde_json::json!({"name": "web", "active_targets": ["web-1:3000"], "options": json}),
        )
        .unwrap();
        service.options.normalize();
        service
    }

    fn config(listener: &str, more: &str) -> Config {
        let text = format!(
            "listeners: [{{address: '127.0.0.1:443', tls: {listener}}}]\nclusters: {{a: {{endpoints: ['127.0.0.1:1']}}}}\n{more}"
        );
        sluice_config::parse("test.yaml", &text, &[]).unwrap()
    }

    #[test]
    fn hosts_are_added_to_those_of_the_file() {
        let mut config = config(
            "{services: true, acme: {names: [a.test]}}",
            "acme: {terms_agreed: true, directory: staging}",
        );
        let hosts = ServiceTls::of(&service(serde_json::json!({
            "tls_enabled": true, "hosts": ["A.test", "b.test"], "acme_directory": super::super::options::ACME_STAGING,
        })))
        .unwrap();
        hosts.check(&config).unwrap();
        let tls = config.listeners[0].tls.as_mut().unwrap();
        hosts.add_to(tls);
        let acme = tls.acme.as_ref().unwrap();
        assert_eq!(acme.names, ["a.test", "b.test"]);
        assert_eq!(
            acme.directories.iter().collect::<Vec<_>>(),
            [(&"b.test".to_owned(), &AcmeDirectory::Staging)]
        );
    }

    #[test]
    fn a_certificate_from_files_needs_no_authority() {
        let mut config = config("{services: true}", "");
        let own = serde_json::json!({
            "tls_enabled": true, "hosts": ["*.test"], "tls_certificate_path": "/c", "tls_private_key_path": "/k",
        });
        let files = ServiceTls::of(&service(own)).unwrap();
        files.check(&config).unwrap();
        let tls = config.listeners[0].tls.as_mut().unwrap();
        files.add_to(tls);
        files.add_to(tls);
        assert_eq!(tls.certificates.len(), 1);
        assert_eq!(tls.acme, None);
    }

    #[test]
    fn the_error_names_what_is_missing() {
        let issued =
            ServiceTls::of(&service(serde_json::json!({"tls_enabled": true, "hosts": ["*.test"]}))).unwrap();
        let said = |config: &Config| issued.check(config).unwrap_err().to_string();
        let files = "{certificates: [{cert: /c}]}";
        assert!(said(&config(files, "")).contains("no listener terminates TLS for services"));
        assert!(said(&config("{services: true}", "")).contains("no certificate authority is configured"));
        let http = config("{services: true}", "acme: {terms_agreed: true}");
        assert_eq!(said(&http), "automatic TLS does not support wildcards");
        let nobody = ServiceTls::of(&service(serde_json::json!({"tls_enabled": true}))).unwrap();
        assert_eq!(nobody.check(&http).unwrap_err().to_string(), "host must be set when using TLS");
        let dns = "acme: {terms_agreed: true, challenge: dns-01, dns_hook: {command: /bin/true}}";
        issued.check(&config("{services: true}", dns)).unwrap();
        ServiceTls::of(&service(serde_json::json!({"hosts": ["a.test"]})))
            .unwrap()
            .check(&config(files, ""))
            .unwrap();
    }

    #[test]
    fn an_unusable_authority_is_refused() {
        let of = |more: serde_json::Value| {
            let mut options = serde_json::json!({"tls_enabled": true, "hosts": ["a.test"]});
            options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ServiceTls::of(&service(options)).map(drop).map_err(|error| error.to_string())
        };
        let plain = of(serde_json::json!({"acme_directory": "http://ca.test/"})).unwrap_err();
        assert!(plain.contains("starts with https://"), "{plain}");
        let other = serde_json::json!({"acme_directory": "https://ca.test/", "tls_on_demand_url": "/may"});
        let other = of(other).unwrap_err();
        assert!(other.contains("acme.directory"), "{other}");
        of(serde_json::json!({"acme_directory": "https://ca.test/"})).unwrap();
    }

    #[test]
    fn on_demand_asks_the_application_or_another() {
        let of = |url: &str| {
            ServiceTls::of(&service(serde_json::json!({"tls_enabled": true, "tls_on_demand_url": url})))
                .map_err(|error| error.to_string())
        };
        let ServiceTls::OnDemand(own) = of("/may?k=v").unwrap() else { panic!() };
        assert_eq!(
            (own.ask_url.to_string().as_str(), own.question),
            ("http://web-1:3000/may?k=v", Question::OwnHost)
        );
        let ServiceTls::OnDemand(other) = of("http://ask.test:80/x").unwrap() else { panic!() };
        assert_eq!(
            (other.ask_url.to_string().as_str(), other.question),
            ("http://ask.test:80/x", Question::Host)
        );
        for (url, why) in
            [("ftp://a.test/", "is not a URL"), ("//a/b", "is not a URL"), ("/a b", "percent-encode")]
        {
            assert!(of(url).unwrap_err().contains(why), "{url}");
        }
    }
}

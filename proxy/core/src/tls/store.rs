//! Which certificate a client gets, by the requested name. The content may be replaced at any time; new handshakes then
//! use it, without a new rustls configuration.

use crate::tls::TlsConfigError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate::Certificate;
use super::demand::Demand;
use super::set::Set;

/// The ALPN protocol that certificate authorities use to validate names (RFC 8737).
pub const CHALLENGE_PROTOCOL: &[u8] = b"acme-tls/1";

/// The certificates of one listener, for all its workers.
#[derive(Debug, Default)]
pub struct CertificateStore {
    /// Certificates from files.
    files: ArcSwap<Names>,
    /// Certificates added at run time.
    issued: ArcSwap<Names>,
    challenges: ArcSwap<HashMap<String, Arc<CertifiedKey>>>,
    /// Where requested names without a certificate are reported.
    demand: ArcSwapOption<Demand>,
    /// The source of `files`. Handshakes do not read it.
    set: Mutex<Arc<Set>>,
}

/// Certificates by name; of several with the same name, valid ones first.
#[derive(Clone, Debug, Default)]
struct Names {
    exact: HashMap<String, Vec<Arc<Certificate>>>,
    /// Keyed by the part after `*.`.
    wildcard: HashMap<String, Vec<Arc<Certificate>>>,
    all: Vec<Arc<Certificate>>,
}

impl Names {
    fn add(&mut self, names: &[String], certificate: &Arc<Certificate>) {
        for name in names {
            let name = name.to_ascii_lowercase();
            let place = match name.strip_prefix("*.") {
                Some(suffix) => self.wildcard.entry(suffix.to_owned()),
                None => self.exact.entry(name),
            };
            place.or_default().push(Arc::clone(certificate));
        }
        self.all.push(Arc::clone(certificate));
    }

    fn of(certificates: impl Iterator<Item = Arc<Certificate>>, now_unix_s: i64) -> Self {
        let mut names = Self::default();
        certificates.for_each(|certificate| names.add(&certificate.names, &certificate));
        let Self { exact, wildcard, .. } = &mut names;
        // An expired certificate is better than none, and worse than any other of that name. The order is otherwise
        // kept, so that the default certificate for unknown names does not depend on the date.
        for list in exact.values_mut().chain(wildcard.values_mut()) {
            list.sort_by_key(|certificate| !certificate.is_valid_at(now_unix_s));
        }
        names
    }

    /// Removes the certificate with these names.
    fn remove(&mut self, names: &[String]) {
        self.all.retain(|certificate| certificate.names != names);
        for list in self.exact.values_mut().chain(self.wildcard.values_mut()) {
            list.retain(|certificate| certificate.names != names);
        }
        self.exact.retain(|_, list| !list.is_empty());
        self.wildcard.retain(|_, list| !list.is_empty());
    }
}

impl CertificateStore {
    /// The certificate for `name`, of a kind that a client with these schemes can verify: by the exact name, else by
    /// the wildcard for it, else the first of all. `None` only if there is no certificate at all.
    pub fn find(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let (files, issued) = (self.files.load(), self.issued.load());
        let name = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let exact = |names: &Names| pick(names.exact.get(name.as_deref()?)?, schemes);
        let wildcard =
            |names: &Names| pick(names.wildcard.get(name.as_deref()?.split_once('.')?.1)?, schemes);
        let first = |names: &Names| pick(&names.all, schemes);
        exact(&files)
            .or_else(|| exact(&issued))
            .or_else(|| wildcard(&files))
            .or_else(|| wildcard(&issued))
            .or_else(|| first(&files))
            .or_else(|| first(&issued))
    }

    /// Whether there is a certificate for this name, exact or by wildcard.
    pub fn has(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let suffix = name.split_once('.').map(|(_, suffix)| suffix);
        [self.files.load(), self.issued.load()].iter().any(|names| {
            names.exact.contains_key(&name)
                || suffix.is_some_and(|suffix| names.wildcard.contains_key(suffix))
        })
    }

    /// Serves a certificate for these names from now on. Replaces one that was added earlier for the same names.
    ///
    /// # Errors
    /// Why it cannot be served to any client.
    pub fn put(
        &self,
        names: &[String],
        certified: Arc<CertifiedKey>,
        source: &str,
    ) -> Result<(), TlsConfigError> {
        let names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let certificate = Certificate::new(certified, source.to_owned())?;
        let certificate = Arc::new(Certificate { names: names.clone(), ..certificate });
        self.issued.rcu(|issued| {
            let mut issued = Names::clone(issued);
            issued.remove(&names);
            issued.add(&names, &certificate);
            issued
        });
        Ok(())
    }

    /// The certificate added at run time for exactly this name.
    pub fn issued(&self, name: &str) -> Option<Arc<Certificate>> {
        let issued = self.issued.load();
        let found = match name.strip_prefix("*.") {
            Some(suffix) => issued.wildcard.get(suffix),
            None => issued.exact.get(name),
        };
        found.and_then(|list| list.first()).cloned()
    }

    /// Removes the certificates added at run time for which `keep` returns false.
    pub fn keep_issued(&self, keep: impl Fn(&Certificate) -> bool) {
        if self.issued.load().all.iter().all(|certificate| keep(certificate)) {
            return;
        }
        self.issued.rcu(|issued| {
            let mut kept = Names::default();
            let certificates = issued.all.iter().filter(|certificate| keep(certificate));
            certificates.for_each(|certificate| kept.add(&certificate.names, certificate));
            kept
        });
    }

    /// Sets or clears where names without a certificate are reported.
    pub fn set_demand(&self, demand: Option<Demand>) {
        self.demand.store(demand.map(Arc::new));
    }

    /// Responds to challenges for `name` with this certificate, until [`Self::end_challenge`].
    pub fn begin_challenge(&self, name: &str, certified: &Arc<CertifiedKey>) {
        self.challenges.rcu(|challenges| {
            let mut challenges = HashMap::clone(challenges);
            challenges.insert(name.to_ascii_lowercase(), Arc::clone(certified));
            challenges
        });
    }

    /// Stops responding to challenges for `name`.
    pub fn end_challenge(&self, name: &str) {
        self.challenges.rcu(|challenges| {
            let mut challenges = HashMap::clone(challenges);
            challenges.remove(&name.to_ascii_lowercase());
            challenges
        });
    }

    /// The certificate for a challenge for `name`.
    pub(crate) fn challenge(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.challenges.load().get(&name.to_ascii_lowercase()).cloned()
    }

    /// The result of the last read of the files.
    pub(crate) fn set(&self) -> Arc<Set> {
        Arc::clone(&self.lock())
    }

    /// Serves this content of the files; certificates added at run time stay.
    pub(crate) fn replace(&self, set: Arc<Set>, now_unix_s: i64) {
        self.files.store(Arc::new(Names::of(set.certificates().cloned(), now_unix_s)));
        *self.lock() = set;
    }

    /// All certificates, those from files first.
    pub fn certificates(&self) -> Vec<Arc<Certificate>> {
        let (files, issued) = (self.files.load(), self.issued.load());
        files.all.iter().chain(&issued.all).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Set>> {
        // Only ever replaced as a whole.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first certificate that the client can verify; if there is none, the first of all, so that the failure names what
/// is missing.
fn pick(list: &[Arc<Certificate>], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
    let fits = |one: &&Arc<Certificate>| one.certified.key.choose_scheme(schemes).is_some();
    let found = list.iter().find(fits).or_else(|| list.first());
    found.map(|certificate| Arc::clone(&certificate.certified))
}

impl ResolvesServerCert for CertificateStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut protocols = hello.alpn().into_iter().flatten();
        if protocols.any(|protocol| protocol == CHALLENGE_PROTOCOL) {
            // Only the response to a challenge may be served with this protocol (RFC 8737 section 4).
            return self.challenge(hello.server_name()?);
        }
        if let (Some(demand), Some(name)) = (&*self.demand.load(), hello.server_name())
            && !self.has(name)
        {
            demand.want(name);
        }
        self.find(hello.server_name(), hello.signature_schemes())
    }
}

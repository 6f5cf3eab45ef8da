//! Certificates by ACME as values again; see `emit`.

use serde_yaml::Value;

use super::out::{Out, file, texts};
use super::{Acme, ListenerAcme, Word};

/// What the process says of it.
pub(super) fn acme(acme: &Acme) -> Value {
    let mut out = Out::default();
    out.put("contacts", texts(&acme.contacts));
    out.put("directory", acme.directory.word());
    out.put_some("ca_file", acme.ca_file.as_deref().map(file));
    out.put_some("state_folder", acme.state_folder.as_deref().map(file));
    // Nothing is read without it.
    out.put("terms_agreed", true);
    out.put("challenge", acme.challenge.word());
    out.put_some("profile", acme.profile.clone());
    let hook = acme.dns_hook.as_ref().map(|hook| {
        let mut out = Out::default();
        out.put("command", file(&hook.command));
        out.put("arguments", texts(&hook.arguments));
        hook.write_numbers(&mut out.0);
        out.done()
    });
    out.put_some("dns_hook", hook);
    let account = acme.external_account.as_ref().map(|account| {
        let mut out = Out::default();
        out.put("key_id", account.key_id.as_str());
        out.put("hmac_file", file(&account.hmac_file));
        out.done()
    });
    out.put_some("external_account", account);
    acme.write_numbers(&mut out.0);
    out.done()
}

/// What a listener says of it.
pub(super) fn listener(acme: &ListenerAcme) -> Value {
    let mut out = Out::default();
    out.put("names", texts(&acme.names));
    let on_demand = acme.on_demand.as_ref().map(|on_demand| {
        let mut out = Out::default();
        out.put("ask_url", on_demand.ask_url.to_string());
        on_demand.write_numbers(&mut out.0);
        out.done()
    });
    out.put("on_demand", on_demand.unwrap_or(Value::from("off")));
    out.done()
}

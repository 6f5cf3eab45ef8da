//! Fields of requests and responses that a service adds to the access log, named as in kamal-proxy: `req_x_custom`,
//! `resp_cache_control`.

use sluice_http::{FieldRef, is_token};

use super::error::ServiceError;
use super::options::TargetOptions;

/// The maximum number of logged fields of a request, and of a response.
pub const FIELDS_MAX: usize = 32;
/// The maximum length of a field name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// The maximum length of a logged value, in bytes; longer values are truncated.
pub const VALUE_BYTES_MAX: usize = 1024;

/// A logged field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedField {
    name: String,
    key: String,
}

/// The additional fields that a service logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedFields {
    pub(crate) request: Vec<LoggedField>,
    /// The fields of responses.
    pub response: Vec<LoggedField>,
}

impl LoggedFields {
    /// The fields that the options name and that can be logged: a state file written by kamal-proxy may name anything.
    pub(crate) fn new(options: &TargetOptions) -> Self {
        Self {
            request: fields("req_", &options.log_request_headers),
            response: fields("resp_", &options.log_response_headers),
        }
    }

    /// Keys and values for a record, once the response's values are known. If the response is not from a target, its
    /// values are empty.
    pub fn of<'s, 'h>(
        &'s self,
        request: impl Iterator<Item = FieldRef<'h>> + Clone,
        response: &[Vec<u8>],
    ) -> Vec<(&'s str, Vec<u8>)> {
        let asked = self.request.iter().map(|field| (field.key.as_str(), field.value(request.clone())));
        let answered = self
            .response
            .iter()
            .enumerate()
            .map(|(index, field)| (field.key.as_str(), response.get(index).cloned().unwrap_or_default()));
        asked.chain(answered).collect()
    }
}

impl LoggedField {
    /// The logged value of these fields: the values of all fields of this name, joined with commas.
    pub fn value<'h>(&self, fields: impl Iterator<Item = FieldRef<'h>>) -> Vec<u8> {
        let mut value = Vec::new();
        let all = fields.filter(|field| field.name.eq_ignore_ascii_case(self.name.as_bytes()));
        for (index, field) in all.enumerate() {
            if index > 0 {
                value.push(b',');
            }
            let room = VALUE_BYTES_MAX.saturating_sub(value.len());
            value.extend_from_slice(&field.value[..field.value.len().min(room)]);
        }
        value.truncate(VALUE_BYTES_MAX);
        value
    }
}

fn fields(prefix: &str, names: &[String]) -> Vec<LoggedField> {
    let mut fields: Vec<LoggedField> = Vec::new();
    for name in names.iter().filter(|name| is_loggable(name)).take(FIELDS_MAX) {
        // A key must be valid in every format.
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        let key: String = prefix.chars().chain(name.to_ascii_lowercase().chars().map(plain)).collect();
        if !fields.iter().any(|known| known.key == key) {
            fields.push(LoggedField { name: name.clone(), key });
        }
    }
    fields
}

fn is_loggable(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX && is_token(name.as_bytes())
}

/// Whether the named fields can be logged.
///
/// # Errors
/// When there are too many fields, or when a name is not a field name.
pub fn check(options: &TargetOptions) -> Result<(), ServiceError> {
    for (flag, names) in [
        ("log-request-header", &options.log_request_headers),
        ("log-response-header", &options.log_response_headers),
    ] {
        if names.len() > FIELDS_MAX {
            return Err(ServiceError::Invalid(format!("{flag} takes {FIELDS_MAX} fields at most")));
        }
        if let Some(name) = names.iter().find(|name| !is_loggable(name)) {
            return Err(ServiceError::Invalid(format!(
                "{flag}: {name:?} is not a field name of at most {NAME_BYTES_MAX} bytes"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use sluice_http::FieldKind;

    fn options(request: &[&str], response: &[&str]) -> TargetOptions {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        TargetOptions {
            log_request_headers: texts(request),
            log_response_headers: texts(response),
            ..TargetOptions::default()
        }
    }

    fn field<'a>(name: &'a str, value: &'a [u8]) -> FieldRef<'a> {
        FieldRef { name: name.as_bytes(), value, kind: FieldKind::Other }
    }

    #[test]
    fn keys_match_kamal_proxys() {
        // The case of kamal-proxy's own test, and fields that occur several times.
        let fields =
            LoggedFields::new(&options(&["X-Custom", "x_custom", "None"], &["Cache-Control", "X-Custom"]));
        let request = [field("x-custom", b"hello"), field("X-CUSTOM", b"again")];
        let logged = fields.of(request.into_iter(), &[b"public, max-age=3600".to_vec()]);
        let logged: Vec<_> = logged.iter().map(|(key, value)| (*key, value.as_slice())).collect();
        let wanted: [(&str, &[u8]); 4] = [
            ("req_x_custom", b"hello,again"),
            ("req_none", b""),
            ("resp_cache_control", b"public, max-age=3600"),
            ("resp_x_custom", b""),
        ];
        assert_eq!(logged, wanted);
    }

    #[test]
    fn names_and_values_are_bounded() {
        let long = vec![b'a'; VALUE_BYTES_MAX];
        let fields = LoggedFields::new(&options(&["a"], &[]));
        for request in
            [vec![field("a", &long), field("a", b"b")], vec![field("a", &[&long[..], b"b"].concat())]]
        {
            assert_eq!(fields.request[0].value(request.into_iter()), long);
        }
        let name = "a".repeat(NAME_BYTES_MAX);
        assert!(check(&options(&[name.as_str(); FIELDS_MAX], &[])).is_ok());
        let many = check(&options(&[], &["a"; FIELDS_MAX + 1])).unwrap_err().to_string();
        assert_eq!(many, "log-response-header takes 32 fields at most");
        for name in ["", "a b", "a:b", &(name + "a")] {
            assert!(check(&options(&[name], &[])).is_err(), "{name}");
            assert_eq!(LoggedFields::new(&options(&[name], &[])), LoggedFields::default());
        }
    }
}

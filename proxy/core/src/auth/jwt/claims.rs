//! Claims as fields of a request.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Maximum bytes of a claim that is passed on.
const VALUE_BYTES_MAX: usize = 4096;

type FieldList = Vec<(Vec<u8>, Vec<u8>)>;

/// The subject, and the fields for the application; `wanted` has claims by field. `None` if a claim has what a field
/// cannot hold: leaving a part of it out could make it another one.
pub(super) fn fields_of(
    claims: &Map<String, Value>,
    wanted: &BTreeMap<String, String>,
) -> Option<(Option<String>, FieldList)> {
    let user = match claims.get("sub") {
        Some(Value::String(user)) => Some(checked(user.clone())?),
        Some(_) => return None,
        None => None,
    };
    let mut fields = FieldList::new();
    for (field, claim) in wanted {
        let Some(value) = find(claims, claim) else { continue };
        let value = text_of(value)?;
        if !value.is_empty() {
            fields.push((field.clone().into_bytes(), value.into_bytes()));
        }
    }
    Some((user, fields))
}

/// The claim of this name; without one, `a.b` is `b` within `a`.
fn find<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        find(claims.get(first)?.as_object()?, rest)
    })
}

/// Texts, numbers and truth values as they are, lists with commas between, and maps as JSON.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Array(items) => {
            let texts = items.iter().map(item_text).collect::<Option<Vec<_>>>()?;
            checked(texts.join(","))
        }
        Value::Object(_) => checked(value.to_string()),
        Value::String(text) => checked(text.clone()),
        Value::Bool(_) | Value::Number(_) => checked(value.to_string()),
    }
}

/// An item of a list. One with a comma would be read as two, and one with blanks around it as another one.
fn item_text(item: &Value) -> Option<String> {
    let is_plain = |text: &str| !text.is_empty() && !text.contains(',') && text.trim() == text;
    match item {
        Value::String(text) => is_plain(text).then(|| text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(item.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// What a field's value may hold (RFC 9110 section 5.5); text beyond ASCII is passed as UTF-8.
fn checked(text: String) -> Option<String> {
    let is_fit = text.len() <= VALUE_BYTES_MAX && !text.chars().any(char::is_control) && text.trim() == text;
    is_fit.then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(claims: &Value, claim: &str) -> Option<String> {
        let wanted = BTreeMap::from([("x-a".to_owned(), claim.to_owned())]);
        let (_, fields) = fields_of(claims.as_object().unwrap(), &wanted)?;
        Some(
            fields
                .into_iter()
                .next()
                .map_or_else(String::new, |(_, value)| String::from_utf8(value).unwrap()),
        )
    }

    #[test]
    fn claims_are_written_as_fields() {
        let claims = json!({
            "name": "Ann Lee", "age": 7, "admin": true, "none": null, "roles": ["a", "b", 3], "nobody": [],
            "realm": {"roles": ["x"]}, "https://example.com/roles": "dotted", "address": {"city": "Köln"},
        });
        for (claim, wanted) in [
            ("name", "Ann Lee"),
            ("age", "7"),
            ("admin", "true"),
            ("none", ""),
            ("roles", "a,b,3"),
            ("nobody", ""),
            ("realm.roles", "x"),
            ("https://example.com/roles", "dotted"),
            ("address", "{\"city\":\"Köln\"}"),
            ("absent", ""),
            ("name.first", ""),
        ] {
            assert_eq!(value(&claims, claim).as_deref(), Some(wanted), "{claim}");
        }
    }

    #[test]
    fn what_a_field_cannot_hold_refuses_the_token() {
        for wrong in [
            json!("a\r\nX-Admin: 1"),
            json!(["a", "b,admin"]),
            json!([["a"]]),
            json!(["x", " admin"]),
            json!(["", "a"]),
            json!(" a"),
            json!("x".repeat(5000)),
        ] {
            assert_eq!(value(&json!({"claim": wrong}), "claim"), None, "{wrong}");
        }
        assert!(fields_of(json!({"sub": "a\nb"}).as_object().unwrap(), &BTreeMap::new()).is_none());
        assert!(fields_of(json!({"sub": 7}).as_object().unwrap(), &BTreeMap::new()).is_none());
    }
}

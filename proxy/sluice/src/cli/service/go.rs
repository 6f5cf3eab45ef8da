//! Values of flags as parsed by Go's pflag, with its error messages.

use crate::usage::UsageError;
use std::str::FromStr;

/// An invalid value, with the message of Go's strconv.
#[derive(Debug, thiserror::Error)]
#[error("{function}: parsing {value:?}: {why}")]
pub(crate) struct Syntax {
    function: &'static str,
    value: String,
    why: &'static str,
}

/// A switch: `true`, `t`, `1` and their opposites, in three spellings.
pub(crate) fn boolean(text: &str) -> Result<bool, Syntax> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(Syntax { function: "strconv.ParseBool", value: text.to_owned(), why: "invalid syntax" }),
    }
}

/// A whole number; Go's octal, hexadecimal and underscores are not supported.
pub(crate) fn integer<T: TryFrom<i64>>(text: &str) -> Result<T, Syntax> {
    let error = |why| Syntax { function: "strconv.ParseInt", value: text.to_owned(), why };
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error("invalid syntax"));
    }
    let number = text.parse::<i64>().map_err(|_| error("value out of range"))?;
    T::try_from(number).map_err(|_| error("value out of range"))
}

/// A list: values separated by commas, quoted as in CSV if they contain commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List(Vec<String>);

impl FromStr for List {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let mut values = Vec::new();
        let mut rest = text;
        while !rest.is_empty() || !values.is_empty() {
            let (value, after) = match rest.strip_prefix('"') {
                Some(quoted) => quoted_value(quoted)?,
                None => bare_value(rest)?,
            };
            values.push(value);
            match after {
                Some(after) => rest = after,
                None => break,
            }
        }
        Ok(Self(values))
    }
}

/// A value up to the next comma, and what follows it.
fn bare_value(text: &str) -> Result<(String, Option<&str>), UsageError> {
    let (value, after) = text.split_once(',').map_or((text, None), |(value, after)| (value, Some(after)));
    if value.contains('"') {
        return Err("parse error: bare \" in non-quoted-field".into());
    }
    Ok((value.to_owned(), after))
}

/// The text after an opening quote up to the closing one; a doubled quote is a quote.
fn quoted_value(text: &str) -> Result<(String, Option<&str>), UsageError> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let Some((part, after)) = rest.split_once('"') else {
            return Err("parse error: extraneous or missing \" in quoted-field".into());
        };
        value.push_str(part);
        match after.as_bytes().first() {
            None => return Ok((value, None)),
            Some(b',') => return Ok((value, Some(&after[1..]))),
            Some(b'"') => {
                value.push('"');
                rest = &after[1..];
            }
            Some(_) => return Err("parse error: extraneous or missing \" in quoted-field".into()),
        }
    }
}

/// The values of a flag that may be given several times.
pub(crate) fn flatten(lists: &[List]) -> Vec<String> {
    lists.iter().flat_map(|list| list.0.iter().cloned()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let list = |text: &str| text.parse::<List>().map(|list| list.0.join("|"));
        for (text, values) in [
            ("", ""),
            ("a", "a"),
            ("a,b", "a|b"),
            ("a,,b", "a||b"),
            ("a,", "a|"),
            ("\"a,b\",c", "a,b|c"),
            ("\"a\"\"b\"", "a\"b"),
        ] {
            assert_eq!(list(text).unwrap(), values, "{text}");
        }
        assert!(list("a\"b").is_err() && list("\"a").is_err() && list("\"a\"b").is_err());
    }

    #[test]
    fn switches_and_numbers() {
        assert!(boolean("T").unwrap() && !boolean("0").unwrap());
        let said = boolean("maybe").unwrap_err().to_string();
        assert_eq!(said, "strconv.ParseBool: parsing \"maybe\": invalid syntax");
        assert_eq!(integer::<u16>("80").unwrap(), 80);
        let said = |text| integer::<u16>(text).unwrap_err().to_string();
        assert_eq!(said("x"), "strconv.ParseInt: parsing \"x\": invalid syntax");
        assert_eq!(said("70000"), "strconv.ParseInt: parsing \"70000\": value out of range");
    }
}

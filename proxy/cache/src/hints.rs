//! What a browser may fetch before the response is there (RFC 8297): the links of a stored response.

use sluice_http::ResponseHead;

use super::stored::StoredResponse;

/// Relations of links that are of use before the page.
const RELATIONS: [&[u8]; 4] = [b"preload", b"modulepreload", b"preconnect", b"dns-prefetch"];
/// Links of one response.
const LINKS_MAX: usize = 20;
/// Bytes of all of them; some browsers drop the connection when heads are long.
const BYTES_MAX: usize = 4096;

impl StoredResponse {
    /// A 103 response with the links that a browser may follow before this one is there again; `None` if there are none.
    pub fn early_hints(&self) -> Option<ResponseHead> {
        let fields = self.head().fields().filter(|field| field.name.eq_ignore_ascii_case(b"link"));
        let links = fields.flat_map(|field| links(field.value)).filter(|link| is_hint(link));
        let mut left = BYTES_MAX;
        let fits = |link: &&[u8]| left.checked_sub(link.len()).map(|rest| left = rest).is_some();
        let hints: Vec<_> = links.take(LINKS_MAX).take_while(fits).map(|link| (&b"Link"[..], link)).collect();
        if hints.is_empty() { None } else { self.head_with(103, |_| false, &hints) }
    }
}

/// The links of a field, each with its parameters (RFC 8288 section 3).
fn links(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_in_url, mut is_quoted, mut is_escaped) = (false, false, false);
    let parts = value.split(move |byte| {
        let was_escaped = is_escaped;
        is_escaped = is_quoted && !was_escaped && *byte == b'\\';
        match byte {
            b'"' if !is_in_url && !was_escaped => is_quoted = !is_quoted,
            b'<' if !is_quoted => is_in_url = true,
            b'>' if !is_quoted => is_in_url = false,
            _ => {}
        }
        *byte == b',' && !is_in_url && !is_quoted
    });
    parts.map(<[u8]>::trim_ascii).filter(|link| !link.is_empty())
}

/// Whether the first relation that a link has is one of those.
fn is_hint(link: &[u8]) -> bool {
    let Some(end) = link.iter().position(|byte| *byte == b'>').filter(|_| link.starts_with(b"<")) else {
        return false;
    };
    let mut parameters = link[end + 1..].split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let relations = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_at(parameter.iter().position(|byte| *byte == b'=')?);
        name.trim_ascii().eq_ignore_ascii_case(b"rel").then(|| value[1..].trim_ascii())
    });
    let relations = relations.unwrap_or_default();
    let relations =
        relations.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(relations);
    let mut relations = relations.split(u8::is_ascii_whitespace);
    relations.any(|relation| RELATIONS.iter().any(|hint| relation.eq_ignore_ascii_case(hint)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn links_of_use_before_the_page_are_hints() {
        for (value, wanted) in [
            ("</a.css>; rel=preload; as=style", &["</a.css>; rel=preload; as=style"][..]),
            ("</a,b>; rel=\"preload\" , </c>;rel=next", &["</a,b>; rel=\"preload\""]),
            ("<a>; title=\"x, <y>; rel=preload\"; rel=next", &[]),
            (
                "<a>; title=\"x\\\", y\"; rel=PreLoad, <b>; REL = modulepreload",
                &["<a>; title=\"x\\\", y\"; rel=PreLoad", "<b>; REL = modulepreload"],
            ),
            (
                "<https://a.test>; rel=\"dns-prefetch preconnect\"",
                &["<https://a.test>; rel=\"dns-prefetch preconnect\""],
            ),
            ("<a>; rel=stylesheet; rel=preload", &[]),
            ("a; rel=preload", &[]),
            ("<a; rel=preload", &[]),
            ("<a>", &[]),
            (",,", &[]),
            ("<a>; rel=\"preload", &[]),
        ] {
            let hints: Vec<_> = links(value.as_bytes()).filter(|link| is_hint(link)).collect();
            let wanted: Vec<_> = wanted.iter().map(|link| link.as_bytes()).collect();
            assert_eq!(hints, wanted, "{value}");
        }
    }
}

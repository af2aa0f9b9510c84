//! A refusal as a page: for people whose browser asked for a preview, and who would make little of JSON.
//!
//! It loads nothing, runs nothing, and may say words of a stranger's choice (a host name, what a service answered), so all of
//! it is escaped, and the browser is told to allow nothing besides.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderValue, header};
use wakeful_api_types::Problem;

/// Whether a caller would rather read a page than JSON. Who takes anything gets JSON.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<&str> = lines.flat_map(|line| line.split(',')).collect();
    let json = wish(&ranges, "application", "json").max(wish(&ranges, "application", "problem+json"));
    wish(&ranges, "text", "html") > json
}

/// From 0 to 1; the range that says most about a type counts.
fn wish(ranges: &[&str], kind: &str, of: &str) -> f32 {
    let said = ranges.iter().filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let (its_kind, its) = parts.next()?.split_once('/')?;
        let precise = match (its_kind.eq_ignore_ascii_case(kind), its.eq_ignore_ascii_case(of)) {
            (true, true) => 2,
            (true, false) if its == "*" => 1,
            (false, _) if (its_kind, its) == ("*", "*") => 0,
            _ => return None,
        };
        let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        Some((precise, quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0))))
    });
    said.max_by_key(|(precise, _)| *precise).map_or(0.0, |(_, wish)| wish)
}

/// The headers of a page.
pub(crate) fn dress(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    let nothing = "default-src 'none'; base-uri 'none'; form-action 'none'; sandbox";
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(nothing));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // The next try may find a service, and another program wants JSON.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
}

/// The page.
pub(crate) fn of(problem: &Problem) -> String {
    let title = format!("{} {}", problem.status, escaped(&problem.title));
    let hint =
        problem.hint.as_deref().map(|hint| format!("<p>What to do: {}</p>\n", escaped(hint))).unwrap_or_default();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<h1>{title}</h1>\n<p>{}</p>\n{hint}\
         <p>Code: <code>{}</code>, request: <code>{}</code></p>\n</html>\n",
        escaped(&problem.detail),
        escaped(&problem.code),
        escaped(&problem.request_id),
    )
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut all, c| {
        match c {
            '&' | '<' | '>' | '"' | '\'' => drop(write!(all, "&#{};", u32::from(c))),
            c => all.push(c),
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wakeful_model::Code;

    #[test]
    fn who_wants_a_page() {
        let wants = |accept: &'static str| {
            is_wanted(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
        };
        for page in [
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8",
            "Text/HTML",
            "text/*",
            "application/json;q=0.5, text/html;q=0.6",
            "*/*, application/json;q=0.1, application/problem+json;q=0",
        ] {
            assert!(wants(page), "{page}");
        }
        for json in [
            "",
            "*/*",
            "application/json",
            "application/json, text/html",
            "text/html;q=0.5, application/problem+json",
            "text/html;q=0",
            "text/html;q=nonsense",
            "text/html;q=NaN",
            "text/event-stream",
            "html",
            "image/*",
        ] {
            assert!(!wants(json), "{json}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }

    #[test]
    fn a_page_shows_words_and_nothing_else() {
        let problem = crate::problem::Problem::new(Code::BadGateway, "<script>alert('x')</script> & \"more\"");
        let page = of(&problem.hint("try </p><b>this").wire("req_1"));
        insta::assert_snapshot!(page, @r#"
        <!doctype html>
        <html lang="en">
        <meta charset="utf-8">
        <meta name="viewport" content="width=device-width">
        <meta name="color-scheme" content="light dark">
        <title>502 Bad Gateway</title>
        <h1>502 Bad Gateway</h1>
        <p>&#60;script&#62;alert(&#39;x&#39;)&#60;/script&#62; &#38; &#34;more&#34;</p>
        <p>What to do: try &#60;/p&#62;&#60;b&#62;this</p>
        <p>Code: <code>bad_gateway</code>, request: <code>req_1</code></p>
        </html>
        "#);
    }
}

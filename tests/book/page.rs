//! A page whose items begin with texts as the code prints them, and its comparison with these texts. The tests of the broker use this file, too.

/// The code that begins a text, in a line or as a block: its content, with the line breaks of the page as spaces.
fn leading_code(text: &str) -> Option<String> {
    let fence = text.chars().take_while(|c| *c == '`').count();
    let inside = text.get(fence..).filter(|_| fence > 0)?;
    let inside = inside.strip_prefix("text\n").unwrap_or(inside);
    let (code, _) = inside.split_once(&"`".repeat(fence))?;
    let words: Vec<&str> = code.split_whitespace().collect();
    Some(words.join(" "))
}

/// Quoted texts of a section: the code that begins each outermost item.
fn quoted(page: &str, section: &str) -> Vec<String> {
    let heading = format!("\n## {section}\n");
    let (_, rest) = page
        .split_once(&heading)
        .unwrap_or_else(|| panic!("there is no section {section}"));
    let body = rest.split("\n## ").next().unwrap();
    let items = body.split("\n- ").skip(1);
    let texts: Vec<_> = items.filter_map(leading_code).collect();
    assert!(!texts.is_empty(), "nothing is quoted in {section}");
    texts
}

/// Compares a section with what the code prints: nothing is missing on the page, and nothing is stale.
pub(crate) fn compare(page: &str, section: &str, printed: &[String]) {
    let quoted = quoted(page, section);
    let is_quoted_by = |text: &str, quote: &str| match quote.strip_suffix('…') {
        Some(beginning) => text.starts_with(beginning),
        None => text == quote,
    };
    for text in printed {
        assert!(
            quoted.iter().any(|quote| is_quoted_by(text, quote)),
            "section {section} lacks: {text}"
        );
    }
    for quote in &quoted {
        assert!(
            printed.iter().any(|text| is_quoted_by(text, quote)),
            "section {section} quotes what is not printed: {quote}"
        );
    }
}

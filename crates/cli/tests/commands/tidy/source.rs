//! Just enough of Rust's grammar to tell code from comments and strings, and to find where a block ends.

/// The text with comments, strings and characters blanked out; lines stay where they are.
pub(crate) fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            let blank = |c: &char| if *c == '\n' { '\n' } else { ' ' };
            out.extend(chars[at..end].iter().map(blank));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let in_word = at > 0 && word(chars[at - 1]);
    match chars[at] {
        '/' if next(at + 1) == '/' => find(chars, at, &['\n']),
        '/' if next(at + 1) == '*' => block_comment_end(chars, at),
        '"' => quoted_end(chars, at + 1, '"'),
        '\'' if next(at + 1) == '\\' => quoted_end(chars, at + 1, '\''),
        '\'' if next(at + 2) == '\'' => at + 3,
        'r' if !in_word || matches!(chars[at - 1], 'b' | 'c') => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            if next(at + 1 + hashes) != '"' {
                return at;
            }
            let close: Vec<char> = format!("\"{}", "#".repeat(hashes)).chars().collect();
            (find(chars, at + 2 + hashes, &close) + close.len()).min(chars.len())
        }
        _ => at,
    }
}

fn find(chars: &[char], from: usize, what: &[char]) -> usize {
    let found = |i: &usize| chars[*i..].starts_with(what);
    (from..chars.len()).find(found).unwrap_or(chars.len())
}

fn quoted_end(chars: &[char], mut at: usize, quote: char) -> usize {
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

fn block_comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        if chars[at..].starts_with(&['/', '*']) {
            depth += 1;
            at += 2;
        } else if chars[at..].starts_with(&['*', '/']) {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    chars.len()
}

/// Where the block that opens at or after `from` closes; nothing if a `;` comes first.
pub(crate) fn block_end(code: &str, from: usize) -> Option<usize> {
    let (mut braces, mut brackets) = (0, 0);
    for (at, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => braces += 1,
            '}' if braces == 1 => return Some(from + at + 1),
            '}' => braces -= 1,
            _ => {}
        }
    }
    None
}

/// `code` with its `#[cfg(test)] mod … { … }` blanked out.
pub(crate) fn without_test_modules(code: &str) -> String {
    let mark = "#[cfg(test)]";
    let mut out = code.to_string();
    let mut from = 0;
    while let Some(at) = out[from..].find(mark).map(|at| from + at) {
        from = at + mark.len();
        if let Some(end) = block_end(&out, from) {
            let lines = "\n".repeat(out[at..end].matches('\n').count());
            out.replace_range(at..end, &lines);
            from = at;
        }
    }
    out
}

/// Byte offsets of `word` in `text` where it is not part of a longer word.
pub(crate) fn words(text: &str, word: &str) -> Vec<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let whole = |at: &usize| !text[..*at].ends_with(part) && !text[*at + word.len()..].starts_with(part);
    let places = text.match_indices(word).map(|(at, _)| at);
    places.filter(whole).collect()
}

pub(crate) fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

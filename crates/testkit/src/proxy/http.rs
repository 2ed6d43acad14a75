//! The part of HTTP/1.1 that is needed to find the end of a request, and to answer one.

/// The length of the first whole request in `bytes`; nothing: it is not complete.
pub fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = find(bytes, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]);
    let header = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    };
    if header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        return chunked_end(bytes, head);
    }
    let body: usize = header("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    (bytes.len() >= head + body).then_some(head + body)
}

fn chunked_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let line = find(&bytes[at..], b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        at += line + 2 + size + 2;
        if bytes.len() < at {
            return None;
        }
        if size == 0 {
            return Some(at);
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// A whole answer that closes the connection.
pub fn answer(status: u16, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} By the proxy\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::request_length;

    #[test]
    fn where_a_request_ends() {
        let plain = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(request_length(plain), Some(plain.len()));
        assert_eq!(request_length(&plain[..plain.len() - 1]), None);
        let body = b"PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET";
        assert_eq!(request_length(body), Some(body.len() - 3));
        assert_eq!(request_length(&body[..body.len() - 4]), None);
        let chunked = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(request_length(chunked), Some(chunked.len()));
        assert_eq!(request_length(&chunked[..chunked.len() - 1]), None);
        assert_eq!(request_length(&chunked[..chunked.len() - 8]), None);
    }
}

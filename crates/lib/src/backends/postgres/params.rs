//! Unknown parameters of a URL. They are ignored, unless one looks like a misspelt security parameter.

use strsim::levenshtein;

use crate::text::did_you_mean;

/// The known parameters; the ones for security come first.
const KNOWN: [&str; 15] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "target_session_attrs",
    "application_name",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "passfile",
    "password",
    "port",
];

/// How many of [`KNOWN`] are for security.
const SAFETY: usize = 5;

/// libpq's other parameters with similar names, which have no effect here.
const OTHERS: [&str; 10] = [
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslkeylogfile",
    "sslnegotiation",
    "sslpassword",
    "sslsni",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
];

/// Refuses an unknown parameter that looks like a misspelt security parameter.
pub(super) fn refuse_misspelt(name: &str) -> Result<(), String> {
    let lower = name.to_lowercase();
    if OTHERS.contains(&name) {
        return Ok(());
    }
    let about_tls = lower.contains("ssl") || lower.contains("tls");
    let meant = KNOWN.iter().find(|known| **known == lower);
    let meant = meant.or_else(|| KNOWN[..SAFETY].iter().find(|known| levenshtein(&lower, known) <= 2));
    let meant = match meant {
        Some(known) => format!(" Did you mean {known}?"),
        None if about_tls => match did_you_mean(&lower, &KNOWN[..SAFETY]) {
            Some(known) => format!(" Did you mean {known}?"),
            None => String::new(),
        },
        None => return Ok(()),
    };
    let shown: String = name.escape_debug().take(40).collect();
    Err(format!("\"{shown}\" is not one of its parameters.{meant}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_safety_that_was_misspelt_is_not_missed() {
        for (wrong, meant) in [
            ("sslmod", "sslmode"),
            ("SSLMODE", "sslmode"),
            ("Sslmode", "sslmode"),
            ("ssl_mode", "sslmode"),
            ("tlsmode", "sslmode"),
            ("sslrootcet", "sslrootcert"),
            ("channel-binding", "channel_binding"),
            ("Target_Session_Attrs", "target_session_attrs"),
        ] {
            let said = refuse_misspelt(wrong).unwrap_err();
            assert!(said.ends_with(&format!("Did you mean {meant}?")), "{wrong}: {said}");
        }
        for other in ["foo", "pool", "pool_mode", "schema", "sslsni", "sslcrl", "keepalives", "gssencmode"] {
            assert_eq!(refuse_misspelt(other), Ok(()), "{other}");
        }
    }
}

//! What TLS errors mean, for HTTP and AMQP alike.

use std::borrow::Cow;
use std::error::Error;

use jiff::Timestamp;
use rustls::CertificateError;
use rustls::pki_types::UnixTime;

/// The first error of type `T` in a chain of causes. `std::io::Error` hides
/// what it wraps from `source`, so it is opened by hand.
pub(crate) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        current = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// How many names of a certificate are told, and how much of each.
const NAMES: usize = 5;
const NAME: usize = 100;

/// What a TLS error means and what to do. Of the server's certificate it tells the names, where
/// they are the trouble, and until when it was valid; the library's own text is not used.
pub(crate) fn why(error: &rustls::Error) -> Cow<'static, str> {
    let fixed = match error {
        rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) => {
            return for_others(presented).into();
        }
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            return format!("its certificate was valid until {}: renew it", day(*not_after)).into();
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
            return format!(
                "its certificate is valid from {} on: wait, or set the clocks right",
                day(*not_before)
            )
            .into();
        }
        // A bad signature is that of an authority that was made anew under its
        // old name.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "its certificate is signed by nobody we trust: put the signing authority into ca.crt",
        rustls::Error::InvalidCertificate(CertificateError::NotValidForName) => {
            "its certificate is for another name: use a host name that the certificate lists"
        }
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::NotValidYet) => {
            "its certificate is not valid at this time"
        }
        rustls::Error::InvalidCertificate(_) => "its certificate can't be verified",
        rustls::Error::AlertReceived(_) => "it refuses the handshake: it may want tls.crt and tls.key",
        rustls::Error::InvalidMessage(_) => "that port does not speak TLS",
        _ => "the handshake failed",
    };
    fixed.into()
}

/// The names come as the library prints them, such as `DnsName("mq.example")`.
fn for_others(presented: &[String]) -> String {
    let names: Vec<String> = presented.iter().map(|name| bare(name)).collect();
    let more = match names.len().saturating_sub(NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match names.is_empty() {
        true => "its certificate names no host: issue one with a subject alternative name".to_owned(),
        false => format!(
            "its certificate is for another name: use {}{more} as host name",
            names[..names.len().min(NAMES)].join(" or ")
        ),
    }
}

fn bare(printed: &str) -> String {
    let inner = printed.split_once('(').map_or(printed, |(_, inner)| inner);
    let is_part = |one: &char| one.is_ascii_alphanumeric() || ".-*_:".contains(*one);
    inner.chars().filter(is_part).take(NAME).collect()
}

fn day(time: UnixTime) -> String {
    let second = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(second).map_or_else(|_| "an unknown day".to_owned(), |time| time.to_string())
}

/// A fixed phrase for an I/O error.
pub(crate) fn why_io(kind: std::io::ErrorKind) -> &'static str {
    use std::io::ErrorKind;
    match kind {
        ErrorKind::ConnectionRefused => "connection refused",
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            "the connection was closed"
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "no route to it",
        ErrorKind::NotFound => "the name has no address",
        _ => "no connection",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_certificate_are_told_and_nothing_else_of_it() {
        let dns = |name: &str| format!("DnsName(\"{name}\")");
        assert_eq!(
            for_others(&[dns("mq.example"), "IpAddress(10.0.0.1)".to_owned()]),
            "its certificate is for another name: use mq.example or 10.0.0.1 as host name"
        );
        let many: Vec<String> = (0..7).map(|number| dns(&format!("{number}.example"))).collect();
        assert!(for_others(&many).ends_with("or 4.example and 2 more as host name"), "{}", for_others(&many));
        assert_eq!(bare("DnsName(\"a\u{1b}[31m<b>\")"), "a31mb");
        assert_eq!(bare(&dns(&"a".repeat(300))).len(), NAME);
        assert!(for_others(&[]).contains("names no host"));
    }
}

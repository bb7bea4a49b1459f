//! What TLS errors mean, for HTTP and AMQP alike.

use std::error::Error;

use rustls::CertificateError;

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

/// A fixed phrase for a TLS error. The library's own text is not used, since
/// it quotes the server's certificate.
pub(crate) fn why(error: &rustls::Error) -> &'static str {
    match error {
        // A bad signature is that of an authority that was made anew under its
        // old name.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "its certificate is signed by nobody we trust: put the signing authority into ca.crt",
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is for another name: use a host name that the certificate lists",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "its certificate is not valid at this time",
        rustls::Error::InvalidCertificate(_) => "its certificate can't be verified",
        rustls::Error::AlertReceived(_) => "it refuses the handshake: it may want tls.crt and tls.key",
        rustls::Error::InvalidMessage(_) => "that port does not speak TLS",
        _ => "the handshake failed",
    }
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

//! A connection as files: how a worker in a pod gets what a Secret holds.

use std::collections::BTreeMap;
use std::path::Path;

use crate::broker::{Endpoint, EndpointError};

/// The keys of a connection, which are the names of its files too.
const KEYS: [&str; 7] = ["uri", "amqpUri", "username", "password", "ca.crt", "tls.crt", "tls.key"];

/// Why a directory holds no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file can't be read.
    #[error("{file} can't be read: {source}")]
    Unreadable {
        /// Its path.
        file: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// What stands there is no connection.
    #[error("{directory} holds no connection: {source}")]
    Invalid {
        /// Its path.
        directory: String,
        /// Which key, and what to write.
        #[source]
        source: EndpointError,
    },
}

/// What a connection's Secret holds.
pub(crate) fn data(endpoint: &Endpoint) -> BTreeMap<&'static str, Vec<u8>> {
    let scheme = if endpoint.amqp.tls { "amqps" } else { "amqp" };
    let mut data = BTreeMap::from([
        ("uri", endpoint.base_url().into_bytes()),
        ("amqpUri", format!("{scheme}://{}", endpoint.amqp).into_bytes()),
        ("username", endpoint.credentials.username.clone().into_bytes()),
        ("password", endpoint.credentials.password.clone().into_bytes()),
    ]);
    if let Some(ca) = &endpoint.ca {
        data.insert("ca.crt", ca.clone());
    }
    if let Some(identity) = &endpoint.identity {
        data.insert("tls.crt", identity.chain.clone());
        data.insert("tls.key", identity.key.clone());
    }
    data
}

/// Reads a connection from a directory in which a Secret is mounted.
pub(crate) fn read(directory: &Path) -> Result<Endpoint, Error> {
    let mut found = BTreeMap::new();
    for key in KEYS {
        let file = directory.join(key);
        match std::fs::read(&file) {
            Ok(bytes) => drop(found.insert(key.to_owned(), bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Unreadable { file: file.display().to_string(), source }),
        }
    }
    Endpoint::from_secret(&found)
        .map_err(|source| Error::Invalid { directory: directory.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_survives_its_way_through_files() {
        let key = rcgen::generate_simple_self_signed(["rabbit".to_owned()]).unwrap();
        let (certificate, private) =
            (key.cert.pem().into_bytes(), key.signing_key.serialize_pem().into_bytes());
        let secret = BTreeMap::from([
            ("uri".to_owned(), b"https://rabbit:15671/prefix".to_vec()),
            ("amqpUri".to_owned(), b"amqps://[::1]:5671".to_vec()),
            ("username".to_owned(), b"u".to_vec()),
            ("password".to_owned(), b"p%/".to_vec()),
            ("ca.crt".to_owned(), certificate.clone()),
            ("tls.crt".to_owned(), certificate),
            ("tls.key".to_owned(), private),
        ]);
        let endpoint = Endpoint::from_secret(&secret).unwrap();
        let directory = std::env::temp_dir().join(format!("redrive-files-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for (key, bytes) in data(&endpoint) {
            std::fs::write(directory.join(key), bytes).unwrap();
        }
        let back = read(&directory);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(back.unwrap(), endpoint);
    }

    #[test]
    fn an_empty_directory_says_what_is_missing() {
        let text = read(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(text.contains("uri"), "{text}");
    }
}

//! How the client behaves towards servers that are slow, foreign, broken or
//! not to be trusted. No broker is needed.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../support/authority.rs"]
mod authority;
#[path = "../support/fake.rs"]
mod fake;

mod answers;
mod certificates;
mod limits;

use std::net::SocketAddr;
use std::time::Duration;

use redrive::broker::connection::Parts;
use redrive::broker::{AddressGuard, Endpoint, Management};

/// A guard that lets loopback through.
fn local() -> AddressGuard {
    AddressGuard::new(true, [])
}

/// An endpoint with the given URI.
fn endpoint(uri: &str) -> Endpoint {
    Endpoint::new(Parts { uri, username: "user", password: "secret", ..Parts::default() }).unwrap()
}

/// A client of a server on loopback, with 3 places.
fn client(address: SocketAddr) -> Management {
    client_within(address, Duration::from_secs(20))
}

/// The same with a limit per call.
fn client_within(address: SocketAddr, limit: Duration) -> Management {
    Management::with_limits(&endpoint(&format!("http://{address}")), local(), 3, limit).unwrap()
}

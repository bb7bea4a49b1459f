//! Which addresses a broker may have.
//!
//! Whoever may write a Secret chooses where the operator connects to. Checking
//! the name is not enough, since a name can lead anywhere and change between
//! two looks; so every resolved address is checked at every connect, for HTTP
//! and for AMQP.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Instance metadata services outside the link-local ranges.
const METADATA: [IpAddr; 4] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// An address that may not be talked to. It carries no name, so that its text
/// adds nothing to what the user wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {kind}, which a broker may not have here")]
pub struct AddressRefused {
    /// The address.
    pub address: IpAddr,
    /// What it is, such as `a loopback address`.
    pub kind: &'static str,
}

/// Decides which addresses may be connected to; cheap to clone.
#[derive(Clone, Debug)]
pub struct AddressGuard {
    allow_local: bool,
    api_servers: Arc<BTreeSet<IpAddr>>,
}

impl AddressGuard {
    /// A guard that refuses loopback, link-local, unspecified, multicast and
    /// metadata addresses and the given API servers; with `allow_local` it
    /// refuses nothing (for development).
    #[must_use]
    pub fn new(allow_local: bool, api_servers: impl IntoIterator<Item = IpAddr>) -> Self {
        let api_servers = api_servers.into_iter().map(embedded_v4).collect();
        Self { allow_local, api_servers: Arc::new(api_servers) }
    }

    /// Whether this address may be connected to.
    ///
    /// # Errors
    /// [`AddressRefused`] says what kind of address it is.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressRefused> {
        if self.allow_local {
            return Ok(());
        }
        // ::ffff:127.0.0.1 and 64:ff9b::127.0.0.1 lead to 127.0.0.1.
        let plain = embedded_v4(address);
        let kind = if self.api_servers.contains(&plain) {
            Some("an address of the Kubernetes API server")
        } else if METADATA.contains(&plain) {
            Some("a metadata service's address")
        } else {
            match plain {
                IpAddr::V4(v4) => refused_v4(v4),
                IpAddr::V6(v6) => refused_v6(v6),
            }
        };
        kind.map_or(Ok(()), |kind| Err(AddressRefused { address, kind }))
    }

    /// Checks a host that is an address already; names pass, since they are
    /// checked once they are resolved.
    ///
    /// # Errors
    /// [`AddressRefused`] as in [`AddressGuard::check`].
    pub fn check_literal(&self, host: &str) -> Result<(), AddressRefused> {
        host.parse().map_or(Ok(()), |address| self.check(address))
    }

    /// Resolves a host and leaves only addresses that may be connected to.
    /// Connect to these and never to the name, or the check is worth nothing.
    ///
    /// # Errors
    /// The resolver's error, or [`AddressRefused`] (inside the I/O error) when
    /// no address is left.
    pub async fn resolve(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let mut refused = None;
        let mut allowed = Vec::new();
        for address in tokio::net::lookup_host((host, port)).await? {
            match self.check(address.ip()) {
                Ok(()) => allowed.push(address),
                Err(error) => refused = Some(error),
            }
        }
        match (allowed.is_empty(), refused) {
            (false, _) => Ok(allowed),
            (true, Some(error)) => Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, error)),
            (true, None) => Err(std::io::Error::new(std::io::ErrorKind::NotFound, "no address")),
        }
    }
}

impl Resolve for AddressGuard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            // Port 0 is replaced by the URL's.
            let addresses = Self::resolve(&guard, name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

fn refused_v4(address: Ipv4Addr) -> Option<&'static str> {
    if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_link_local() {
        Some("a link-local address")
    } else if address.octets()[0] == 0 {
        // Linux connects 0.0.0.0 to the local machine.
        Some("an unspecified address")
    } else if address.is_multicast() || address.is_broadcast() {
        Some("a multicast or broadcast address")
    } else {
        None
    }
}

fn refused_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_unicast_link_local() {
        Some("a link-local address")
    } else if address.is_unspecified() {
        Some("an unspecified address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else {
        None
    }
}

/// The IPv4 address inside a mapped, compatible or NAT64 IPv6 address.
fn embedded_v4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let v4 = match v6.segments() {
        // "::" and "::1" are IPv6's own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
        }
        _ => None,
    };
    v4.map_or(address, IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn guard() -> AddressGuard {
        AddressGuard::new(false, ["10.96.0.1".parse().unwrap()])
    }

    #[rstest]
    #[case("127.0.0.1")]
    #[case("127.9.9.9")]
    #[case("::1")]
    #[case("::ffff:127.0.0.1")]
    #[case("::127.0.0.1")]
    #[case("64:ff9b::7f00:1")]
    #[case("169.254.169.254")]
    #[case("::ffff:169.254.169.254")]
    #[case("fe80::1")]
    #[case("fd00:ec2::254")]
    #[case("0.0.0.0")]
    #[case("0.1.2.3")]
    #[case("::")]
    #[case("224.0.0.1")]
    #[case("255.255.255.255")]
    #[case("ff02::1")]
    #[case("10.96.0.1")]
    #[case("::ffff:10.96.0.1")]
    fn an_address_that_is_not_a_brokers_is_refused(#[case] address: &str) {
        let address = address.parse().unwrap();
        assert!(guard().check(address).is_err(), "{address}");
        assert!(AddressGuard::new(true, ["10.96.0.1".parse().unwrap()]).check(address).is_ok());
    }

    #[rstest]
    #[case("10.96.0.2")]
    #[case("192.168.1.7")]
    #[case("203.0.113.9")]
    #[case("fd12:3456::9")]
    #[case("2001:db8::1")]
    fn an_ordinary_address_passes(#[case] address: &str) {
        assert!(guard().check(address.parse().unwrap()).is_ok(), "{address}");
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let error = AddressGuard::resolve(&guard(), "localhost", 1).await.unwrap_err();
        assert!(error.get_ref().unwrap().is::<AddressRefused>(), "{error}");
        assert!(
            !AddressGuard::resolve(&AddressGuard::new(true, []), "localhost", 1).await.unwrap().is_empty()
        );
    }
}

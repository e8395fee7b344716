//! The addresses that a client connects to.

use concentric_core::{BoxError, Error, ErrorKind};
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
};
use tower_service::Service;

/// The system's resolver, which may be limited to public addresses.
#[derive(Clone)]
pub(super) struct Resolver {
    system: GaiResolver,
    public_only: bool,
}

impl Resolver {
    pub(super) fn new(public_only: bool) -> Self {
        let system = GaiResolver::new();
        Self {
            system,
            public_only,
        }
    }
}

type Addresses = std::vec::IntoIter<SocketAddr>;

impl Service<Name> for Resolver {
    type Response = Addresses;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Addresses, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let public_only = self.public_only;
        let resolving = self.system.call(name);
        Box::pin(async move {
            let found: Vec<SocketAddr> = resolving.await?.collect();
            // One private address suffices: a name that has both is a sign of rebinding.
            match found.iter().find(|address| !is_public(address.ip())) {
                Some(address) if public_only => Err(refused(address.ip()).into()),
                _ => Ok(found.into_iter()),
            }
        })
    }
}

/// The error of a call to an address that is not public.
pub(super) fn refused(ip: IpAddr) -> Error {
    let what = format!("the address {ip} is not public, and this client connects to no other");
    Error::new(ErrorKind::Permission, what).with_code("private_address")
}

/// The address in a URL that has no name.
pub(super) fn literal(uri: &http::Uri) -> Option<IpAddr> {
    let host = uri.host()?;
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok()
}

/// Whether an address is reachable from the whole Internet (IANA's registries of special-purpose
/// addresses).
pub(super) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let reserved = matches!(
        ip.octets(),
        [0 | 10 | 127 | 240..=255, ..]
            | [100, 64..=127, ..]
            | [172, 16..=31, ..]
            | [169, 254, ..]
            | [192, 168, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    );
    !reserved && !ip.is_multicast()
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, high, low] = ip.segments();
    let [h, i] = high.to_be_bytes();
    let [j, k] = low.to_be_bytes();
    let last = Ipv4Addr::new(h, i, j, k);
    match (a, b) {
        // Mapped, compatible and translated addresses of IPv4.
        (0, 0) => (c, d, e) == (0, 0, 0) && f == 0xffff && is_public_v4(last),
        (0x64, 0xff9b) => (c, d, e, f) == (0, 0, 0, 0) && is_public_v4(last),
        (0x2002, high) => {
            let ([h, i], [j, k]) = (high.to_be_bytes(), c.to_be_bytes());
            is_public_v4(Ipv4Addr::new(h, i, j, k))
        }
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // Only 2000::/3 is allocated.
        _ => a >> 13 == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().expect("an address"))
    }

    #[test]
    fn reserved_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        for text in [
            "1.1.1.1",
            "100.63.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450:4001::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::",
        ] {
            assert!(public(text), "{text}");
        }
    }

    #[test]
    fn an_address_in_a_url_is_found() {
        let found = |url: &str| literal(&url.parse().expect("a URL")).map(|ip| ip.to_string());
        assert_eq!(found("http://127.0.0.1:8/x").as_deref(), Some("127.0.0.1"));
        assert_eq!(found("http://[::1]:8/x").as_deref(), Some("::1"));
        assert_eq!(found("http://localhost/"), None);
    }
}

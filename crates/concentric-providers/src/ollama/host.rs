//! Parsing of server addresses in the format of `OLLAMA_HOST`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The URL of `host`: a host, `host:port`, or either with a scheme and a path, as Ollama's own
/// client reads it (`envconfig.ConnectableHost`).
///
/// The default port is 11434, or the scheme's port if there is a scheme. An unspecified address,
/// which a server listens on, becomes the loopback address.
pub(super) fn address(host: &str) -> String {
    let host = host.trim();
    let (scheme, rest, default_port) = match host.split_once("://") {
        None if host == "ollama.com" => ("https", host, "443"),
        None => ("http", host, "11434"),
        Some((scheme @ "https", rest)) => (scheme, rest, "443"),
        Some((scheme @ "http", rest)) => (scheme, rest, "80"),
        Some((scheme, rest)) => (scheme, rest, "11434"),
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    // User information is preserved.
    let (user, authority) = match authority.rfind('@') {
        Some(at) => authority.split_at(at + 1),
        None => ("", authority),
    };
    let (name, port) = split(authority);
    let port = port
        .filter(|port| port.parse::<u16>().is_ok())
        .unwrap_or(default_port);
    let name = match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        _ if name.is_empty() => "localhost".to_owned(),
        _ => name.to_owned(),
    };
    format!(
        "{scheme}://{user}{name}:{port}{}",
        path.trim_end_matches('/')
    )
}

/// Splits an authority into host and port. IPv6 addresses are in brackets or have no port.
fn split(authority: &str) -> (&str, Option<&str>) {
    if let Some(rest) = authority.strip_prefix('[') {
        let (name, rest) = rest.split_once(']').unwrap_or((rest, ""));
        return (name, rest.strip_prefix(':'));
    }
    match authority.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') => (name, Some(port)),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn every_host_format_is_parsed() {
        let cases = [
            ("", "http://localhost:11434"),
            ("example.com", "http://example.com:11434"),
            ("example.com:1234", "http://example.com:1234"),
            (":1234", "http://localhost:1234"),
            ("http://example.com", "http://example.com:80"),
            ("https://example.com", "https://example.com:443"),
            (
                "https://example.com:8443/a/b/",
                "https://example.com:8443/a/b",
            ),
            ("example.com/ollama", "http://example.com:11434/ollama"),
            ("ollama.com", "https://ollama.com:443"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("::", "http://[::1]:11434"),
            ("[::]:5", "http://[::1]:5"),
            ("fe80::1", "http://[fe80::1]:11434"),
            ("[fe80::1]:9", "http://[fe80::1]:9"),
            ("example.com:99999", "http://example.com:11434"),
            ("https://a:b@example.com", "https://a:b@example.com:443"),
            (" 10.0.0.1 ", "http://10.0.0.1:11434"),
        ];
        for (host, expected) in cases {
            assert_eq!(address(host), expected, "{host}");
        }
    }
}

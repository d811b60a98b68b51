//! The addresses behind `controllerAddr` and `namesrvAddr`: parsed once, resolved again and again.
//! Pure.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tracing::warn;

/// The setting is no list of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing between the separators.
    #[error("no address; expected host:port;host:port")]
    Empty,
    /// One entry is not `host:port`.
    #[error("address {entry:?} is not host:port")]
    Bad {
        /// The entry.
        entry: String,
    },
}

/// The configured entries and what each stands for now. A name stands for itself until it was
/// resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    text: String,
    is_name: bool,
    addresses: Vec<String>,
}

impl Addresses {
    /// Entries are separated by `;`; empty ones are skipped.
    ///
    /// # Errors
    /// There is no entry, or one is not `host:port`.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let mut entries = Vec::new();
        for entry in text
            .split(';')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            let parsed = entry.parse::<SocketAddr>().ok();
            let is_name = parsed.is_none();
            if parsed.map_or_else(|| !is_host_and_port(entry), |address| address.port() == 0) {
                return Err(AddressError::Bad {
                    entry: entry.to_owned(),
                });
            }
            let text = entry.to_owned();
            entries.push(Entry {
                addresses: vec![text.clone()],
                text,
                is_name,
            });
        }
        if entries.is_empty() {
            return Err(AddressError::Empty);
        }
        Ok(Self { entries })
    }

    /// Every address, each once.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for address in self.entries.iter().flat_map(|entry| &entry.addresses) {
            if !all.contains(address) {
                all.push(address.clone());
            }
        }
        all
    }

    /// The entries that have to be resolved.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        let names = self.entries.iter().filter(|entry| entry.is_name);
        names.map(|entry| entry.text.clone()).collect()
    }

    /// Takes what a name resolved to; a failure or an empty answer changes nothing.
    pub fn resolved(&mut self, host: &str, found: io::Result<Vec<String>>) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.text == host) else {
            return;
        };
        match found {
            Ok(found) if !found.is_empty() => entry.addresses = found,
            Ok(_) => warn!(host, kept = ?entry.addresses, "the name has no address now"),
            Err(error) => warn!(host, %error, kept = ?entry.addresses, "cannot resolve"),
        }
    }
}

fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(':') && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

/// Whether the address `advertised` by a controller reached at `reached` can be used here. One that
/// names "this machine" or "any" means the controller's own machine, so it is of use only when the
/// controller was reached on this machine.
pub(super) fn meant_for_us(advertised: &str, reached: &str) -> bool {
    let Ok(advertised) = advertised.parse::<SocketAddr>() else {
        return is_host_and_port(advertised);
    };
    if advertised.port() == 0 || advertised.ip().is_unspecified() {
        return false;
    }
    let local = |ip: IpAddr| ip.is_loopback();
    let reached_here = reached.parse::<SocketAddr>().map_or_else(
        |_| reached.starts_with("localhost:"),
        |reached| local(reached.ip()),
    );
    !local(advertised.ip()) || reached_here
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_addresses_or_names_with_a_port() {
        let addresses = Addresses::parse(" 10.0.0.1:9878; ;c.example:9878;").expect("two entries");
        assert_eq!(addresses.all(), ["10.0.0.1:9878", "c.example:9878"]);
        assert_eq!(addresses.hosts(), ["c.example:9878"]);
        assert_eq!(Addresses::parse(" ; "), Err(AddressError::Empty));
        for bad in [
            "host",
            "host:",
            ":1",
            "host:0",
            "host:70000",
            "a:b:1",
            "10.0.0.1:0",
        ] {
            let error = Addresses::parse(bad).expect_err(bad).to_string();
            assert!(error.contains(bad), "{error}");
        }
    }

    #[test]
    fn b15_a_failing_resolver_keeps_the_last_addresses() {
        let mut addresses = Addresses::parse("c.example:9878").expect("one entry");
        let host = "c.example:9878";
        addresses.resolved(host, Err(io::Error::from(io::ErrorKind::TimedOut)));
        assert_eq!(addresses.all(), ["c.example:9878"]);
        addresses.resolved(
            host,
            Ok(vec!["10.0.0.1:9878".into(), "10.0.0.2:9878".into()]),
        );
        assert_eq!(addresses.all(), ["10.0.0.1:9878", "10.0.0.2:9878"]);
        addresses.resolved(host, Err(io::Error::from(io::ErrorKind::TimedOut)));
        addresses.resolved(host, Ok(vec![]));
        assert_eq!(addresses.all(), ["10.0.0.1:9878", "10.0.0.2:9878"]);
        addresses.resolved(host, Ok(vec!["10.0.0.3:9878".into()]));
        assert_eq!(addresses.all(), ["10.0.0.3:9878"]);
    }

    #[test]
    fn b12_an_address_that_means_the_other_machine_is_refused() {
        let table = [
            ("127.0.0.1:9878", "10.0.0.1:9878", false),
            ("0.0.0.0:9878", "10.0.0.1:9878", false),
            ("0.0.0.0:9878", "127.0.0.1:9878", false),
            ("127.0.0.1:9879", "127.0.0.1:9878", true),
            ("127.0.0.1:9879", "localhost:9878", true),
            ("10.0.0.2:9878", "10.0.0.1:9878", true),
            ("10.0.0.2:0", "10.0.0.1:9878", false),
            ("[::1]:9878", "10.0.0.1:9878", false),
            ("c1.example:9878", "10.0.0.1:9878", true),
            ("nonsense", "10.0.0.1:9878", false),
        ];
        for (advertised, reached, want) in table {
            assert_eq!(
                meant_for_us(advertised, reached),
                want,
                "{advertised} by {reached}"
            );
        }
    }
}

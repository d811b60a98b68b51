//! One file for a broker with a controller inside: the keys of both, none of which the other reads
//! but `bindAddress`.

use std::path::Path;

use super::{BrokerConf, ConfError, ControllerConf, Reader};

/// The settings of a broker and of the controller in its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedConf {
    /// The broker; its warnings are those of the whole file.
    pub broker: BrokerConf,
    /// The controller.
    pub controller: ControllerConf,
}

impl EmbeddedConf {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ConfError`], naming file, line and key.
    pub fn open(path: &Path) -> Result<Self, ConfError> {
        Self::read(Reader::open(path)?)
    }

    /// Reads the keys of an opened file. Without `controllerAddr` the broker takes the controllers
    /// of `controllerDLegerPeers`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read(mut keys: Reader) -> Result<Self, ConfError> {
        let mut controller = ControllerConf::read(keys.clone())?;
        let peers: Vec<&str> = controller
            .peers
            .iter()
            .map(|it| it.address.as_str())
            .collect();
        keys.set_default("controllerAddr", &peers.join(";"));
        let ports = keys.clone();
        let mut broker = BrokerConf::read(keys)?;
        let own = controller.self_address().rsplit_once(':');
        let own = own.and_then(|(_, port)| port.parse::<u16>().ok());
        for (key, port) in [
            ("listenPort", broker.listen.port()),
            ("haListenPort", broker.ha_listen.port()),
        ] {
            if Some(port) == own {
                let allowed = "a port other than the controller's own in controllerDLegerPeers";
                return Err(ports.bad(key, &port.to_string(), allowed));
            }
        }
        // What neither knows has no effect.
        let theirs = std::mem::take(&mut controller.warnings);
        broker.warnings.retain(|warning| theirs.contains(warning));
        Ok(Self { broker, controller })
    }

    /// Every supported key that was read, each once, with the value in force.
    #[must_use]
    pub fn effective(&self) -> Vec<(&'static str, String)> {
        let mut all = self.broker.effective.clone();
        let more = self.controller.effective.iter();
        all.extend(
            more.filter(|(key, _)| !self.broker.effective.iter().any(|(known, _)| known == key))
                .cloned(),
        );
        all
    }
}

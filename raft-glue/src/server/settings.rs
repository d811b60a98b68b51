//! Reading and changing settings by request (1009, 1010).
//!
//! Invariant: only the settings listed here can be changed, and none of them is a path, an address
//! or a member; a request with one bad line changes nothing. Changes last until the controller
//! stops.

use crate::command::Code;
use crate::config::check_interval;
use crate::decider::{Decider, LiveSettings, Refusal};
use crate::remoting::RemotingCommand;

/// Longest body of a change, in bytes.
const TEXT_LIMIT: usize = 64 * 1024;

pub(super) fn print(decider: &Decider, request: &RemotingCommand) -> RemotingCommand {
    let settings = *decider.settings.lock();
    let config = &decider.config;
    let lines = [
        ("controllerDLegerGroup", config.group.clone()),
        ("controllerDLegerPeers", config.peers.text()),
        ("controllerDLegerSelfId", config.self_id.clone()),
        (
            "controllerStorePath",
            config.store_path.display().to_string(),
        ),
        (
            "enableElectUncleanMaster",
            settings.enable_elect_unclean_master.to_string(),
        ),
        (
            "notifyBrokerRoleChanged",
            settings.notify_broker_role_changed.to_string(),
        ),
        (
            "scanInactiveMasterInterval",
            settings.scan_inactive_master_interval_ms.to_string(),
        ),
        (
            "scanNotActiveBrokerInterval",
            settings.scan_not_active_broker_interval_ms.to_string(),
        ),
    ];
    let text: String = lines
        .iter()
        .map(|(key, value)| format!("{key}={value}\n"))
        .collect();
    request
        .answer(Code::Success.value())
        .with_body(text.into_bytes())
}

pub(super) fn update(
    decider: &Decider,
    request: &RemotingCommand,
) -> Result<RemotingCommand, Refusal> {
    let text = std::str::from_utf8(&request.body)
        .ok()
        .filter(|text| text.len() <= TEXT_LIMIT)
        .ok_or_else(|| Refusal::new(Code::SystemError, "the body is no text of settings"))?;
    let mut settings = decider.settings.lock();
    let mut changed = *settings;
    for line in text.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            change(&mut changed, line)?;
        }
    }
    *settings = changed;
    tracing::info!(?changed, "settings changed by a request");
    Ok(request.answer(Code::Success.value()))
}

fn change(settings: &mut LiveSettings, line: &str) -> Result<(), Refusal> {
    let bad = |why: String| Refusal::new(Code::SystemError, why);
    let (key, value) = line
        .split_once('=')
        .ok_or_else(|| bad(format!("{line} is not key=value")))?;
    let (key, value) = (key.trim(), value.trim());
    let flag = || {
        value
            .parse()
            .map_err(|_| bad(format!("{key}: {value} is not true or false")))
    };
    let interval = |key: &'static str| {
        let ms = value
            .parse()
            .map_err(|_| bad(format!("{key}: {value} is no number")))?;
        check_interval(key, ms)
            .map(|()| ms)
            .map_err(|error| bad(error.to_string()))
    };
    match key {
        "enableElectUncleanMaster" => settings.enable_elect_unclean_master = flag()?,
        "notifyBrokerRoleChanged" => settings.notify_broker_role_changed = flag()?,
        "scanInactiveMasterInterval" => {
            settings.scan_inactive_master_interval_ms = interval("scanInactiveMasterInterval")?;
        }
        "scanNotActiveBrokerInterval" => {
            settings.scan_not_active_broker_interval_ms = interval("scanNotActiveBrokerInterval")?;
        }
        _ => {
            let why = format!("{key} cannot be changed by a request: change the file and restart");
            return Err(Refusal::new(Code::NoPermission, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LiveSettings {
        LiveSettings {
            enable_elect_unclean_master: false,
            notify_broker_role_changed: true,
            scan_not_active_broker_interval_ms: 500,
            scan_inactive_master_interval_ms: 500,
        }
    }

    #[test]
    fn only_listed_settings_change() {
        let mut settings = settings();
        change(&mut settings, "enableElectUncleanMaster = true").unwrap();
        change(&mut settings, "scanInactiveMasterInterval=250").unwrap();
        assert!(settings.enable_elect_unclean_master);
        assert_eq!(settings.scan_inactive_master_interval_ms, 250);
        let code =
            |settings: &mut LiveSettings, line: &str| change(settings, line).unwrap_err().code;
        for key in [
            "controllerStorePath",
            "configStorePath",
            "rocketmqHome",
            "configBlackList",
        ] {
            assert_eq!(
                code(&mut settings, &format!("{key}=/x")),
                Code::NoPermission
            );
        }
        for line in [
            "x",
            "enableElectUncleanMaster=yes",
            "scanInactiveMasterInterval=0",
        ] {
            assert_eq!(code(&mut settings, line), Code::SystemError);
        }
    }
}

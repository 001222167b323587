//! Settings from the environment, read once.

use std::sync::OnceLock;

use crate::copy::Order;

/// How many devices there are at most: their names and addresses stay readable.
const DEVICES_MAX: usize = 16;

pub(crate) struct Settings {
    /// How many devices there are.
    pub(crate) devices: usize,
    /// How many of them, the last ones, have a port that is down.
    pub(crate) down: usize,
    /// The network interface they are on, where one is named.
    pub(crate) interface: Option<String>,
    /// In which order the bytes of a WRITE land.
    pub(crate) order: Order,
}

/// The settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings::from(|name| std::env::var(name).ok()))
}

impl Settings {
    fn from(variable: impl Fn(&str) -> Option<String>) -> Self {
        let count = |name| variable(name).and_then(|count| count.parse().ok());
        let devices: Option<usize> = count("DOORBELL_FAKE_DEVICES");
        let relaxed = variable("DOORBELL_FAKE_ORDER").is_some_and(|order| order == "relaxed");
        Self {
            devices: devices.unwrap_or(1).min(DEVICES_MAX),
            down: count("DOORBELL_FAKE_DOWN").unwrap_or(0),
            interface: variable("DOORBELL_FAKE_INTERFACE"),
            order: if relaxed { Order::Relaxed } else { Order::Ascending },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use crate::copy::Order;

    #[test]
    fn what_is_not_said_is_the_default() {
        let settings = Settings::from(|_| None);
        assert_eq!(
            (settings.devices, settings.down, settings.interface),
            (1, 0, None)
        );
        assert_eq!(settings.order, Order::Ascending);
        let settings = Settings::from(|name| {
            let value = match name {
                "DOORBELL_FAKE_DEVICES" => "3",
                "DOORBELL_FAKE_DOWN" => "2",
                "DOORBELL_FAKE_ORDER" => "relaxed",
                _ => "eth7",
            };
            Some(value.to_owned())
        });
        assert_eq!((settings.devices, settings.down), (3, 2));
        assert_eq!(settings.order, Order::Relaxed);
        assert_eq!(settings.interface.as_deref(), Some("eth7"));
        assert_eq!(Settings::from(|_| Some("0".to_owned())).devices, 0);
        assert_eq!(Settings::from(|_| Some("4711".to_owned())).devices, 16);
    }
}

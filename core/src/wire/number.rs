//! Random identifiers. An identifier is never zero: on the wire, zero stands for none. A side that forgets to draw
//! entropy would also send zero.

/// Defines a type for such a number, which is displayed as hexadecimal digits.
macro_rules! drawn_number {
    ($(#[$doc:meta])+ $name:ident) => {
        $(#[$doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(core::num::NonZeroU64);

        impl $name {
            /// The identifier with this number; `None` for zero.
            #[must_use]
            pub const fn new(raw: u64) -> Option<Self> {
                match core::num::NonZeroU64::new(raw) {
                    Some(raw) => Some(Self(raw)),
                    None => None,
                }
            }

            /// The number.
            #[must_use]
            pub const fn to_u64(self) -> u64 {
                self.0.get()
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

pub(super) use drawn_number;

#[cfg(test)]
mod tests {
    use crate::wire::{InstanceId, SessionId};
    use std::format;

    #[test]
    fn each_is_shown_by_its_name_and_is_never_zero() {
        let instance = InstanceId::new(0xab).unwrap();
        assert_eq!(
            format!("{instance} {instance:?}"),
            "00000000000000ab InstanceId(00000000000000ab)"
        );
        assert_eq!(
            format!("{:?}", SessionId::new(1).unwrap()),
            "SessionId(0000000000000001)"
        );
        assert_eq!((InstanceId::new(0), SessionId::new(0)), (None, None));
    }
}

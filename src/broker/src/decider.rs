//! The decisions of the broker. They use copies that the program cannot change any more. No system call is made here.

use core::fmt;
use std::collections::BTreeSet;

use crate::policy::Policy;

/// Number of bytes of a path that are read. The paths of interest are shorter.
pub const PATH_BYTES: usize = 32;

/// A device node that programs open: `/dev/infiniband/uverbsN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(u16);

impl NodeName {
    /// Parses a path that ends with a zero byte. Accepts only the spelling that libibverbs uses.
    #[must_use]
    pub fn parse(path: &[u8]) -> Option<Self> {
        let end = path.iter().position(|byte| *byte == 0)?;
        let number = path.get(..end)?.strip_prefix(b"/dev/infiniband/uverbs")?;
        let is_number =
            number.iter().all(u8::is_ascii_digit) && (number.len() == 1 || number.first() != Some(&b'0'));
        let number = core::str::from_utf8(number).ok().filter(|_| is_number)?;
        number.parse().ok().map(Self)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uverbs{}", self.0)
    }
}

/// Access to the host's facts that decisions need.
pub trait Facts {
    /// A context that was given to the program.
    type Context;

    /// The name of the RDMA device of a node. `None` if the node does not exist.
    fn device(&self, node: NodeName) -> Option<String>;

    /// Removes from `contexts` the contexts that no process has open.
    fn retain_open(&self, contexts: &mut Vec<Self::Context>);
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The policy does not allow the device: for the program it does not exist.
    NoSuchDevice,
    /// The policy's limit of open contexts is reached.
    TooManyContexts,
}

/// The decision about a trapped call.
#[expect(clippy::exhaustive_enums, reason = "it is the kernel's, refused or done")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The kernel executes the call with the rights of the program.
    Native,
    /// The call fails.
    Refuse(Refusal),
    /// The broker executes the call for the program, on this node.
    Allow(NodeName),
}

/// The state of one sandbox.
#[derive(Debug)]
pub struct Decider<F: Facts> {
    policy: Policy,
    facts: F,
    contexts: Vec<F::Context>,
    /// Numbers of the devices that were given. A write to any other file is not a doorbell.
    devices: BTreeSet<u64>,
    last_refusal: Refusal,
}

impl<F: Facts> Decider<F> {
    /// Creates the state of a sandbox without contexts.
    pub const fn new(policy: Policy, facts: F) -> Self {
        Self {
            policy,
            facts,
            contexts: Vec::new(),
            devices: BTreeSet::new(),
            last_refusal: Refusal::NoSuchDevice,
        }
    }

    /// The host's facts.
    pub const fn facts(&self) -> &F {
        &self.facts
    }

    /// Decides about a path of a `stat`.
    pub fn look(&self, path: &[u8]) -> Decision {
        let Some(node) = NodeName::parse(path) else {
            return Decision::Native;
        };
        match self.facts.device(node) {
            Some(device) if self.policy.allows(&device) => Decision::Allow(node),
            _ => Decision::Refuse(Refusal::NoSuchDevice),
        }
    }

    /// Decides about a path of an `open`. The caller reports a context by [`given`](Decider::given) after it gave it.
    pub fn open(&mut self, path: &[u8]) -> Decision {
        let mut decision = self.look(path);
        let limit = usize::try_from(self.policy.contexts).unwrap_or(usize::MAX);
        if let Decision::Allow(_) = decision {
            if self.contexts.len() >= limit {
                self.facts.retain_open(&mut self.contexts);
            }
            if self.contexts.len() >= limit {
                decision = Decision::Refuse(Refusal::TooManyContexts);
            }
        }
        if let Decision::Refuse(refusal) = decision {
            self.last_refusal = refusal;
        }
        decision
    }

    /// Decides about a path of an `inotify_add_watch`. After a failed open, libibverbs watches `/dev/char` for seconds. No file will appear there for
    /// the program, so the watch fails with the error of the open.
    pub fn watch(&self, path: &[u8]) -> Decision {
        if path.starts_with(b"/dev/char/\0") {
            Decision::Refuse(self.last_refusal)
        } else {
            Decision::Native
        }
    }

    /// Records a context that was given, and its device number.
    pub fn given(&mut self, context: F::Context, device: u64) {
        self.contexts.push(context);
        self.devices.insert(device);
    }

    /// Whether a device with this number was given, so that the program may ring its doorbell.
    pub fn has_given(&self, device: u64) -> bool {
        self.devices.contains(&device)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use super::{Decider, Decision, Facts, NodeName, Refusal};
    use crate::policy::Policy;

    /// A host with devices `rxe0` and `rxe1`, a node that belongs to no device, and contexts that the test closes.
    #[derive(Clone, Default)]
    struct Script(Rc<RefCell<BTreeSet<u32>>>);

    impl Facts for Script {
        type Context = u32;

        fn device(&self, node: NodeName) -> Option<String> {
            ["uverbs0", "uverbs1"]
                .iter()
                .position(|name| *name == node.to_string())
                .map(|number| format!("rxe{number}"))
        }

        fn retain_open(&self, contexts: &mut Vec<u32>) {
            contexts.retain(|context| self.0.borrow().contains(context));
        }
    }

    fn decider(contexts: u32) -> (Script, Decider<Script>) {
        let policy = Policy {
            devices: vec!["rxe0".into()],
            contexts,
            ..Policy::default()
        };
        let script = Script::default();
        (script.clone(), Decider::new(policy, script))
    }

    const ALLOWED: &[u8] = b"/dev/infiniband/uverbs0\0";
    const DENIED: &[u8] = b"/dev/infiniband/uverbs1\0";

    #[test]
    fn a_path_is_a_node_in_one_spelling_alone() {
        assert_eq!(NodeName::parse(b"/dev/infiniband/uverbs0\0"), Some(NodeName(0)));
        assert_eq!(
            NodeName::parse(b"/dev/infiniband/uverbs191\0junk"),
            Some(NodeName(191))
        );
        for other in [
            &b"/dev/infiniband/uverbs0"[..],
            b"/dev/infiniband/uverbs\0",
            b"/dev/infiniband/uverbs00\0",
            b"/dev/infiniband/uverbs+1\0",
            b"/dev/infiniband/uverbs0/\0",
            b"/dev/infiniband/uverbs0/../umad0\0",
            b"/dev/infiniband/uverbs99999\0",
            b"/dev/infiniband/../mem\0",
            b"/dev//infiniband/uverbs0\0",
            b"dev/infiniband/uverbs0\0",
            b"\0/dev/infiniband/uverbs0\0",
            b"/dev/infiniband/uverbs\xFF\0",
            b"",
        ] {
            assert_eq!(NodeName::parse(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn all_but_the_nodes_of_allowed_devices_are_native_or_absent() {
        let (_, mut decider) = decider(8);
        assert_eq!(decider.look(ALLOWED), Decision::Allow(NodeName(0)));
        assert_eq!(decider.open(ALLOWED), Decision::Allow(NodeName(0)));
        for absent in [DENIED, b"/dev/infiniband/uverbs7\0"] {
            assert_eq!(decider.look(absent), Decision::Refuse(Refusal::NoSuchDevice));
            assert_eq!(decider.open(absent), Decision::Refuse(Refusal::NoSuchDevice));
        }
        for other in [
            &b"/etc/passwd\0"[..],
            b"/dev/infiniband/rdma_cm\0",
            b"/dev/mem\0",
            b"",
        ] {
            assert_eq!(decider.look(other), Decision::Native);
            assert_eq!(decider.open(other), Decision::Native);
        }
    }

    #[test]
    fn the_limit_holds_and_a_closed_context_makes_room() {
        let (script, mut decider) = decider(2);
        for context in 0..2 {
            assert_eq!(decider.open(ALLOWED), Decision::Allow(NodeName(0)));
            script.0.borrow_mut().insert(context);
            decider.given(context, 0x103);
        }
        for _ in 0..1000 {
            assert_eq!(decider.open(ALLOWED), Decision::Refuse(Refusal::TooManyContexts));
        }
        assert_eq!(
            decider.look(ALLOWED),
            Decision::Allow(NodeName(0)),
            "it is still there"
        );
        script.0.borrow_mut().remove(&0);
        assert_eq!(decider.open(ALLOWED), Decision::Allow(NodeName(0)));
        script.0.borrow_mut().insert(2);
        decider.given(2, 0x103);
        assert_eq!(decider.open(ALLOWED), Decision::Refuse(Refusal::TooManyContexts));
    }

    #[test]
    fn a_context_that_was_not_given_does_not_count() {
        let (_, mut decider) = decider(1);
        for _ in 0..1000 {
            assert_eq!(decider.open(ALLOWED), Decision::Allow(NodeName(0)));
        }
        assert!(!decider.has_given(0x103));
    }

    #[test]
    fn the_wait_for_a_node_ends_at_once_with_the_error_of_the_open() {
        let (_, mut decider) = decider(1);
        let wait = b"/dev/char/\0 and what stood there before";
        assert_eq!(decider.watch(wait), Decision::Refuse(Refusal::NoSuchDevice));
        decider.given(0, 1);
        // The facts report it as closed. The decider then allows and keeps it again.
        decider.facts().0.borrow_mut().insert(0);
        assert_eq!(decider.open(ALLOWED), Decision::Refuse(Refusal::TooManyContexts));
        assert_eq!(decider.watch(wait), Decision::Refuse(Refusal::TooManyContexts));
        assert_eq!(decider.watch(b"/dev/\0"), Decision::Native);
        assert_eq!(decider.watch(b"/dev/char/"), Decision::Native, "it has no end");
    }

    #[test]
    fn doorbells_are_those_of_devices_that_were_given() {
        let (_, mut decider) = decider(1);
        decider.given(0, 7);
        assert!(decider.has_given(7) && !decider.has_given(8));
    }
}

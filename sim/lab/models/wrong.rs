// Mistakes in the places of a desk, one at a time. Included by the build.

/// A mistake: pairs of a text that stands in the file once, and the text that replaces it.
struct Wrong {
    name: &'static str,
    steps: &'static [(&'static str, &'static str)],
}

const WRONG: &[Wrong] = &[
    // Wake-ups.
    Wrong {
        name: "asked_without_a_wake_up",
        steps: &[(
            "        queue.signals.wake_accepting();\n        Ok(AcceptPlace {",
            "        Ok(AcceptPlace {",
        )],
    },
    Wrong {
        name: "woken_before_it_is_asked_for",
        steps: &[
            (
                "        let mut asked = queue.asked();",
                "        queue.signals.wake_accepting();\n        let mut asked = queue.asked();",
            ),
            (
                "        drop(asked);\n        queue.signals.wake_accepting();\n        Ok(AcceptPlace {",
                "        drop(asked);\n        Ok(AcceptPlace {",
            ),
        ],
    },
    Wrong {
        name: "asked_uncounted",
        steps: &[("        queue.count_asked(&asked);\n", "")],
    },
    Wrong {
        name: "signal_taken_behind_the_look",
        steps: &[
            ("        self.signals.take_accepting();\n", ""),
            (
                "        match self.take()? {",
                "        let taken = self.take();\n        self.signals.take_accepting();\n        match taken? {",
            ),
        ],
    },
    Wrong {
        name: "answered_without_a_wake_up",
        steps: &[(
            "                self.signals.wake_handshakes();\n",
            "                let _ = false.then(|| self.signals.wake_handshakes());\n",
        )],
    },
    Wrong {
        name: "woken_before_it_is_answered",
        steps: &[
            (
                "            if self.serve(|wanted|",
                "            self.signals.wake_handshakes();\n            if self.serve(|wanted|",
            ),
            ("                self.signals.wake_handshakes();\n", ""),
        ],
    },
    Wrong {
        name: "left_unlooked_at",
        steps: &[(
            "            if self.is_asked() {\n",
            "            if false && self.is_asked() {\n",
        )],
    },
    Wrong {
        name: "published_without_a_wake_up",
        steps: &[(
            "                unaccepted = self.queue.abandon();\n            }\n            \
             self.queue.signals.wake_accepting();\n",
            "                unaccepted = self.queue.abandon();\n            }\n",
        )],
    },
    Wrong {
        name: "closed_without_a_wake_up",
        steps: &[(
            "        self.pass(|owners| owners.is_closed = true);\n        self.signals.wake_accepting();\n",
            "        self.pass(|owners| owners.is_closed = true);\n",
        )],
    },
    Wrong {
        name: "given_up_last_without_a_wake_up",
        steps: &[(
            "        if is_closed {\n",
            "        if false && is_closed {\n",
        )],
    },
    // Contents of places, and their owners.
    Wrong {
        name: "published_before_it_is_there",
        steps: &[
            (
                "            self.queue.exchange(index, AcceptEntry::Connected(connected));\n",
                "",
            ),
            (
                "            if is_abandoned {\n",
                "            self.queue.exchange(index, AcceptEntry::Connected(connected));\n            if is_abandoned {\n",
            ),
        ],
    },
    Wrong {
        name: "withdrawn_and_left_there",
        steps: &[(
            "        drop(asked);\n        self.exchange(index, AcceptEntry::Empty);\n",
            "        drop(asked);\n",
        )],
    },
    Wrong {
        name: "abandoned_unlooked_at",
        steps: &[(
            "            if is_abandoned {\n",
            "            if false && is_abandoned {\n",
        )],
    },
    Wrong {
        name: "abandoned_behind_the_last_look",
        steps: &[
            (
                "        self.pass(|owners| (owners.is_closed, owners.is_abandoned) = (true, true));\n",
                "        self.pass(|owners| owners.is_closed = true);\n",
            ),
            (
                "        }\n        left\n",
                "        }\n        self.pass(|owners| owners.is_abandoned = true);\n        left\n",
            ),
        ],
    },
    Wrong {
        name: "abandoned_is_looked_at_first",
        steps: &[
            ("                owners.is_abandoned\n", ""),
            (
                "            let is_abandoned = self.queue.pass(",
                "            let is_abandoned = self.queue.owners().is_abandoned;\n            self.queue.pass(",
            ),
        ],
    },
    Wrong {
        name: "published_as_no_news",
        steps: &[(
            "        let news = !owners.published.is_empty() || owners.is_over();\n",
            "        let news = owners.is_over();\n",
        )],
    },
    Wrong {
        name: "over_as_no_news",
        steps: &[(
            "        let news = !owners.published.is_empty() || owners.is_over();\n",
            "        let news = !owners.published.is_empty();\n",
        )],
    },
    Wrong {
        name: "free_before_it_is_emptied",
        steps: &[
            (
                "                Ok(self.exchange(index, AcceptEntry::Empty))\n",
                "                Ok(Some(index))\n",
            ),
            (
                "            None => Ok(None),\n        })\n",
                "            None => Ok(None),\n        })\n        .map(|taken| taken.and_then(|index| self.exchange(index, AcceptEntry::Empty)))\n",
            ),
        ],
    },
    Wrong {
        name: "taken_stays_held",
        steps: &[("                owners.free.push(index);\n", "")],
    },
    Wrong {
        name: "given_up_stays_held",
        steps: &[(
            "            owners.free.push(index);\n            owners.is_closed\n",
            "            owners.is_closed\n",
        )],
    },
    Wrong {
        name: "last_published_first",
        steps: &[("owners.published.pop_front()", "owners.published.pop_back()")],
    },
    // Locks that do not lock.
    Wrong {
        name: "owners_without_a_lock",
        steps: &[
            (
                "use super::locks::{Arc, Mutex, MutexGuard};",
                "use super::locks::{Arc, Mutex, MutexGuard, Torn, TornGuard};",
            ),
            ("    owners: Mutex<Owners>,", "    owners: Torn<Owners>,"),
            ("owners: Mutex::new(Owners", "owners: Torn::new(Owners"),
            (
                "fn owners(&self) -> MutexGuard<",
                "fn owners(&self) -> TornGuard<",
            ),
        ],
    },
    Wrong {
        name: "asked_without_a_lock",
        steps: &[
            (
                "use super::locks::{Arc, Mutex, MutexGuard};",
                "use super::locks::{Arc, Mutex, MutexGuard, Torn, TornGuard};",
            ),
            (
                "    asked: Mutex<VecDeque<u32>>,",
                "    asked: Torn<VecDeque<u32>>,",
            ),
            ("asked: Mutex::new(VecDeque", "asked: Torn::new(VecDeque"),
            ("fn asked(&self) -> MutexGuard<", "fn asked(&self) -> TornGuard<"),
        ],
    },
    Wrong {
        name: "places_without_a_lock",
        steps: &[
            (
                "use super::locks::{Arc, Mutex, MutexGuard};",
                "use super::locks::{Arc, Mutex, MutexGuard, Torn, TornGuard};",
            ),
            (
                "    table: Box<[Mutex<AcceptEntry<W, A, C>>]>,",
                "    table: Box<[Torn<AcceptEntry<W, A, C>>]>,",
            ),
            ("Mutex::new(AcceptEntry::Empty)", "Torn::new(AcceptEntry::Empty)"),
            (
                "-> Option<MutexGuard<'_, AcceptEntry<W, A, C>>>",
                "-> Option<TornGuard<'_, AcceptEntry<W, A, C>>>",
            ),
        ],
    },
];

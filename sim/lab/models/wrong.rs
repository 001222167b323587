// Mistakes in the places of a desk, one at a time. Included by the build.

/// A mistake: pairs of a text that stands in the file once, and the text that replaces it.
struct Wrong {
    name: &'static str,
    steps: &'static [(&'static str, &'static str)],
}

const WRONG: &[Wrong] = &[
    // Wake-ups.
    Wrong {
        name: "asked_untold",
        steps: &[(
            "        places.signals.tell_accepting();\n        Ok(Place {",
            "        Ok(Place {",
        )],
    },
    Wrong {
        name: "told_before_it_is_asked_for",
        steps: &[
            (
                "        let mut asked = places.asked();",
                "        places.signals.tell_accepting();\n        let mut asked = places.asked();",
            ),
            (
                "        drop(asked);\n        places.signals.tell_accepting();\n        Ok(Place {",
                "        drop(asked);\n        Ok(Place {",
            ),
        ],
    },
    Wrong {
        name: "asked_uncounted",
        steps: &[("        places.count_asked(&asked);\n", "")],
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
        name: "answered_untold",
        steps: &[(
            "                self.signals.tell_handshakes();\n",
            "                let _ = false.then(|| self.signals.tell_handshakes());\n",
        )],
    },
    Wrong {
        name: "told_before_it_is_answered",
        steps: &[
            (
                "            if self.serve(|wanted|",
                "            self.signals.tell_handshakes();\n            if self.serve(|wanted|",
            ),
            ("                self.signals.tell_handshakes();\n", ""),
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
        name: "published_untold",
        steps: &[(
            "                drop(self.places.abandon());\n            }\n            \
             self.places.signals.tell_accepting();\n",
            "                drop(self.places.abandon());\n            }\n",
        )],
    },
    Wrong {
        name: "closed_untold",
        steps: &[(
            "        self.pass(|turns| turns.is_closed = true);\n        self.signals.tell_accepting();\n",
            "        self.pass(|turns| turns.is_closed = true);\n",
        )],
    },
    Wrong {
        name: "given_up_last_untold",
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
                "            self.places.exchange(index, Entry::Connected(connected));\n",
                "",
            ),
            (
                "            if is_abandoned {\n",
                "            self.places.exchange(index, Entry::Connected(connected));\n            if is_abandoned {\n",
            ),
        ],
    },
    Wrong {
        name: "withdrawn_and_left_there",
        steps: &[(
            "        drop(asked);\n        self.exchange(index, Entry::Empty);\n",
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
                "        self.pass(|turns| (turns.is_closed, turns.is_abandoned) = (true, true));\n",
                "        self.pass(|turns| turns.is_closed = true);\n",
            ),
            (
                "        }\n        left\n",
                "        }\n        self.pass(|turns| turns.is_abandoned = true);\n        left\n",
            ),
        ],
    },
    Wrong {
        name: "abandoned_is_looked_at_first",
        steps: &[
            ("                turns.is_abandoned\n", ""),
            (
                "            let is_abandoned = self.places.pass(",
                "            let is_abandoned = self.places.turns().is_abandoned;\n            self.places.pass(",
            ),
        ],
    },
    Wrong {
        name: "published_as_no_news",
        steps: &[(
            "        let news = !turns.published.is_empty() || turns.is_over();\n",
            "        let news = turns.is_over();\n",
        )],
    },
    Wrong {
        name: "over_as_no_news",
        steps: &[(
            "        let news = !turns.published.is_empty() || turns.is_over();\n",
            "        let news = !turns.published.is_empty();\n",
        )],
    },
    Wrong {
        name: "free_before_it_is_emptied",
        steps: &[
            (
                "                Ok(self.exchange(index, Entry::Empty))\n",
                "                Ok(Some(index))\n",
            ),
            (
                "            None => Ok(None),\n        })\n",
                "            None => Ok(None),\n        })\n        .map(|taken| taken.and_then(|index| self.exchange(index, Entry::Empty)))\n",
            ),
        ],
    },
    Wrong {
        name: "taken_stays_held",
        steps: &[("                turns.free.push(index);\n", "")],
    },
    Wrong {
        name: "given_up_stays_held",
        steps: &[(
            "            turns.free.push(index);\n            turns.is_closed\n",
            "            turns.is_closed\n",
        )],
    },
    Wrong {
        name: "last_published_first",
        steps: &[("turns.published.pop_front()", "turns.published.pop_back()")],
    },
    // Locks that do not lock.
    Wrong {
        name: "turns_without_a_lock",
        steps: &[
            (
                "use super::locks::{Arc, Mutex, MutexGuard};",
                "use super::locks::{Arc, Mutex, MutexGuard, Torn, TornGuard};",
            ),
            ("    turns: Mutex<Turns>,", "    turns: Torn<Turns>,"),
            ("turns: Mutex::new(Turns", "turns: Torn::new(Turns"),
            (
                "fn turns(&self) -> MutexGuard<",
                "fn turns(&self) -> TornGuard<",
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
                "    table: Box<[Mutex<Entry<W, A, C>>]>,",
                "    table: Box<[Torn<Entry<W, A, C>>]>,",
            ),
            ("Mutex::new(Entry::Empty)", "Torn::new(Entry::Empty)"),
            (
                "-> Option<MutexGuard<'_, Entry<W, A, C>>>",
                "-> Option<TornGuard<'_, Entry<W, A, C>>>",
            ),
        ],
    },
];

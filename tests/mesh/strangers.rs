//! A member that may say anything, by the fuzzer's seeds and by made-up bytes.

use crate::replay::{folder, replay};
use crate::stranger::check;

#[test]
fn strangers() {
    replay("mesh_stranger", |bytes| {
        let _ = check(bytes);
    });
}

/// The check's stranger does get to be a member, is heard, and is seen through: the fuzzer has all of it to look at.
#[test]
fn a_stranger_comes_to_what_its_seed_says() {
    let of_seed = |name: &str| check(&std::fs::read(folder("mesh_stranger").join(name)).unwrap());
    let honest = of_seed("honest");
    assert!(
        !honest.has_forged && honest.came == 4 && honest.taken == 3,
        "{honest:?}"
    );
    let wrong = of_seed("wrong");
    assert!(
        !wrong.has_forged && wrong.came == 2 && wrong.dropped > 2,
        "{wrong:?}"
    );
    let forged = of_seed("forged");
    assert!(forged.has_forged, "{forged:?}");
    let again = of_seed("again");
    assert!(
        !again.has_forged && again.came == 2 && again.taken > 0,
        "{again:?}"
    );
}

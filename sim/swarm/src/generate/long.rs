//! The long profile: links under outages of seconds.

use doorbell_sim::Random;

use crate::case::Case;
use crate::generate::links;

/// Nothing of a plan begins later than this, nor lasts longer: links try to recover for longer, and back-off is at its cap
/// long before.
const TROUBLE_NS: u64 = 2_000_000_000;

/// The part that is left to chance.
pub(crate) fn case(random: &mut Random) -> Case {
    links::case(random, TROUBLE_NS)
}

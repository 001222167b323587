//! From a seed to a case: each profile makes its own.

mod classes;
mod crowded;
mod full;
mod hostile;
mod late;
mod links;
mod long;
mod mesh;
pub(crate) mod quick;
mod requests;
mod sleepy;
mod steady;
mod transfers;

use doorbell_sim::Random;

use crate::case::Case;
use crate::seed::{Profile, Seed};

/// How many cases of limits are about links.
const FULL_PER_MILLION: u32 = 250_000;

/// The case of a seed.
pub(crate) fn generate(seed: Seed) -> Case {
    let random = &mut Random::new(seed.number);
    match seed.profile {
        Profile::Quick => quick::case(random),
        Profile::Steady => steady::case(random),
        Profile::Long => long::case(random),
        Profile::Crowded if random.happens(FULL_PER_MILLION) => full::case(random),
        Profile::Crowded => crowded::case(random),
        Profile::Sleepy => sleepy::case(random),
        Profile::Hostile => hostile::case(random),
        Profile::Mesh => mesh::case(random),
    }
}

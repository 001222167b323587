//! Patterns of names, with `*` and `?`.

use core::fmt;

use super::RuleFault;

/// A name, or a pattern that names may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, RuleFault> {
        if text.is_empty() {
            return Err(RuleFault::NoName);
        }
        let is_foreign = |c: &char| c.is_whitespace() || c.is_control() || "/:=^,".contains(*c);
        match text.chars().find(is_foreign) {
            Some(character) => Err(RuleFault::Character(character)),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// Whether the pattern matches the whole of `name`.
    ///
    /// The time is at most proportional to the product of both lengths: after a mismatch, only the last `*` is extended, by one
    /// character.
    pub(super) fn is_like(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (self.0.chars(), name.chars());
        // The rest of the pattern after the last `*`, and the rest of the name that this `*` has not matched.
        let mut last_star = None;
        loop {
            let (mut next_pattern, mut next_name) = (pattern.clone(), name.clone());
            match (next_pattern.next(), next_name.next()) {
                (None, None) => return true,
                (Some('*'), _) => {
                    last_star = Some((next_pattern.clone(), name.clone()));
                    pattern = next_pattern;
                }
                (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
                    (pattern, name) = (next_pattern, next_name);
                }
                _ => {
                    let Some((behind, mut left)) = last_star.take() else {
                        return false;
                    };
                    if left.next().is_none() {
                        return false;
                    }
                    last_star = Some((behind.clone(), left.clone()));
                    (pattern, name) = (behind, left);
                }
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn names_are_whole_and_stars_are_anything() {
        for (pattern, name, is_like) in [
            ("mlx5_1", "mlx5_1", true),
            ("mlx5_1", "mlx5_10", false),
            ("mlx5_1", "xmlx5_1", false),
            ("mlx5_?", "mlx5_1", true),
            ("mlx5_?", "mlx5_", false),
            ("mlx5_?", "mlx5_10", false),
            ("mlx5_*", "mlx5_", true),
            ("mlx5_*", "mlx5_10", true),
            ("*", "anything", true),
            ("*_1", "a_1_1", true),
            ("*_1", "a_1_2", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**?", "", false),
            ("**?", "x", true),
            ("a*aaaaaaaab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(Pattern(pattern.into()).is_like(name), is_like, "{pattern} {name}");
        }
    }
}

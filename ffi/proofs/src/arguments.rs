//! Arguments of a program: `[--requests COUNT] [--plant]`.

/// Arguments of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arguments {
    /// Requests to post at least. Default a million.
    pub requests: u64,
    /// Whether to do, half way, what is to be shown never to be done.
    pub plant: bool,
}

/// The arguments of this program.
///
/// # Errors
/// One is not known.
pub fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments {
        requests: 1_000_000,
        plant: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--plant" => found.plant = true,
            "--requests" => {
                let count = words.next().and_then(|count| count.parse().ok());
                found.requests = count.ok_or("--requests wants a number")?;
            }
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(found)
}

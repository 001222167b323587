//! The node of a command: opened with what the command was told, and what it goes without said.

use doorbell::{LogLevel, Node, RailFilter, Trust};

use crate::report::Failure;

/// A node that trusts these peers, on the rails that the rules let.
///
/// # Errors
/// libibverbs is not there, or the system gave no thread or no random bytes.
pub(crate) fn node(trust: Trust, rails: &RailFilter) -> Result<Node, Failure> {
    let mut node = Node::open(trust)?;
    node.set_rail_filter(rails.clone());
    Ok(node)
}

/// Says on standard error which ports nothing will be connected over though no rule leaves them out, where a log does not.
///
/// # Errors
/// The devices could not be listed.
pub(crate) fn say_passed_over(node: &Node, log: LogLevel) -> Result<(), Failure> {
    if matches!(log, LogLevel::Off | LogLevel::Error) {
        for what in node.passed_over()? {
            eprintln!("doorbell: passed over: {what}");
        }
    }
    Ok(())
}

//! The node of a command: opened with what the command was told, and what it goes without said.

use std::sync::Arc;

use doorbell::{LogLevel, Node, RailFilter};

use crate::peers::Trusted;
use crate::report::Failure;

/// A node that trusts these peers, by the keys of the moment where a file has them, on the rails that the rules let.
///
/// # Errors
/// libibverbs is not there, or the system gave no thread or no random bytes.
pub(crate) fn node(trusted: Trusted, rails: &RailFilter) -> Result<Arc<Node>, Failure> {
    let mut node = Node::open(trusted.trust)?;
    node.set_rail_filter(rails.clone());
    let node = Arc::new(node);
    if let Some(file) = trusted.file {
        file.follow(&node)?;
    }
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

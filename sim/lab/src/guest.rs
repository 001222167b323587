//! Code that runs inside a virtual machine: process 1, the agent that runs commands there, the set-up of its
//! network, and the move of a network device into another namespace. The wire between the agent and this side
//! is here too; the machines themselves are not.

pub(crate) mod agent;
pub(crate) mod init;
pub(crate) mod netdev;
pub(crate) mod network;
pub(crate) mod wire;

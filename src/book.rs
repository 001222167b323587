//! The book in `docs/`: `cargo test --doc -p doorbell` compiles and runs every Rust snippet of these pages.
//!
//! One private struct per page. A page with snippets about tokio is in `ffi/tokio/src/lib.rs` instead. Tests find structs and pages in step.

/// The README's example compiles.
#[doc = include_str!("../README.md")]
struct Readme;

#[doc = include_str!("../docs/start/lab.md")]
struct Lab;

#[doc = include_str!("../docs/start/first-program.md")]
struct FirstProgram;

#[doc = include_str!("../docs/concepts/choosing.md")]
struct Choosing;

#[doc = include_str!("../docs/concepts/node.md")]
struct Node;

#[doc = include_str!("../docs/concepts/worker.md")]
struct Worker;

#[doc = include_str!("../docs/concepts/channel.md")]
struct Channel;

#[doc = include_str!("../docs/concepts/cells-and-leases.md")]
struct CellsAndLeases;

#[doc = include_str!("../docs/concepts/credits.md")]
struct Credits;

#[doc = include_str!("../docs/concepts/completions.md")]
struct Completions;

#[doc = include_str!("../docs/concepts/windows.md")]
struct Windows;

#[doc = include_str!("../docs/concepts/rails.md")]
struct Rails;

#[doc = include_str!("../docs/concepts/links.md")]
struct Links;

#[doc = include_str!("../docs/concepts/transfers.md")]
struct Transfers;

#[doc = include_str!("../docs/concepts/quality-of-service.md")]
struct QualityOfService;

#[doc = include_str!("../docs/concepts/meshes.md")]
struct Meshes;

#[doc = include_str!("../docs/cookbook/request-and-answer.md")]
struct RequestAndAnswer;

#[doc = include_str!("../docs/cookbook/key-value-store.md")]
struct KeyValueStore;

#[doc = include_str!("../docs/cookbook/broadcast.md")]
struct Broadcast;

#[doc = include_str!("../docs/cookbook/large-objects.md")]
struct LargeObjects;

#[doc = include_str!("../docs/cookbook/hundred-channels.md")]
struct HundredChannels;

#[doc = include_str!("../docs/cookbook/submitting-threads.md")]
struct SubmittingThreads;

#[doc = include_str!("../docs/cookbook/thread-per-core.md")]
struct ThreadPerCore;

#[doc = include_str!("../docs/cookbook/graceful-shutdown.md")]
struct GracefulShutdown;

#[doc = include_str!("../docs/cookbook/many-rails.md")]
struct ManyRails;

#[doc = include_str!("../docs/testing.md")]
struct Testing;

#[doc = include_str!("../docs/sizing.md")]
struct Sizing;

#[doc = include_str!("../docs/cards/checklist.md")]
struct CardChecklist;

#[doc = include_str!("../docs/cards/nvidia.md")]
struct CardNvidia;

#[doc = include_str!("../docs/cards/intel.md")]
struct CardIntel;

#[doc = include_str!("../docs/cards/broadcom.md")]
struct CardBroadcom;

#[doc = include_str!("../docs/cards/aws.md")]
struct CardAws;

#[doc = include_str!("../docs/coming-from/ibverbs.md")]
struct FromIbverbs;

#[doc = include_str!("../docs/coming-from/ucx.md")]
struct FromUcx;

#[doc = include_str!("../docs/coming-from/libfabric.md")]
struct FromLibfabric;

#[doc = include_str!("../docs/coming-from/rust-crates.md")]
struct FromRustCrates;

#[doc = include_str!("../docs/when-it-fails/errors.md")]
struct Errors;

#[doc = include_str!("../docs/when-it-fails/completion-statuses.md")]
struct CompletionStatuses;

#[doc = include_str!("../docs/when-it-fails/closed-or-dead-peer.md")]
struct ClosedOrDeadPeer;

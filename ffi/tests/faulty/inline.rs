//! A device that takes fewer bytes inline than a queue pair asks for, and refuses.

use doorbell_core::provider::{
    CompletionQueueConfig, Context as _, ProtectionDomain as _, Provider as _, ProviderError, QueuePair as _,
    QueuePairConfig,
};
use doorbell_fake::Call;

use crate::Bench;
use crate::life::port;

/// A queue pair that asks for so many inline bytes, of a device that refuses the first attempt so. Returns the granted number.
fn granted(bench: &Bench, inline_bytes_max: u32, errno: i32) -> Result<u32, ProviderError> {
    let context = bench.rdma.open(&port(&bench.rdma).unwrap().device)?;
    let domain = context.protection_domain()?;
    let queue = CompletionQueueConfig {
        depth: 16,
        notify: false,
    };
    let (sends, receives) = (
        context.completion_queue(&queue)?,
        context.completion_queue(&queue)?,
    );
    let config = QueuePairConfig {
        channel: 1,
        send_depth: 4,
        receive_depth: 4,
        gather_max: 1,
        scatter_max: 1,
        inline_bytes_max,
    };
    bench.control.fail(Call::CreateQp, 0, errno);
    let made = domain.queue_pair(&sends, &receives, &config);
    bench.control.heal();
    Ok(made?.control.limits().inline_bytes_max)
}

#[test]
fn a_refusal_is_tried_again_with_fewer_inline_bytes() {
    const EINVAL: i32 = 22;
    const ENOMEM: i32 = 12;
    let bench = Bench::new();
    assert_eq!(granted(&bench, 220, EINVAL), Ok(96));
    // bnxt_re sets no errno.
    assert_eq!(granted(&bench, 220, 0), Ok(96));
    assert_eq!(granted(&bench, 80, EINVAL), Ok(64));
    // There is nothing less to ask for, or another reason.
    let errno = |outcome: Result<u32, ProviderError>| outcome.unwrap_err().errno;
    assert_eq!(errno(granted(&bench, 64, EINVAL)), EINVAL);
    assert_eq!(errno(granted(&bench, 220, ENOMEM)), ENOMEM);
}

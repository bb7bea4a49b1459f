//! How many tests run at a time: timing suffers where too many share two cores,
//! and a test that kills nodes must be alone.

use std::sync::{Arc, LazyLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const AT_A_TIME: u32 = 16;

static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_A_TIME as usize)));

/// The right to run; never ask for a second one while holding one.
pub(crate) struct Turn(#[expect(dead_code, reason = "held, never read")] OwnedSemaphorePermit);

impl Turn {
    pub(crate) async fn one() -> Self {
        Self::many(1).await
    }

    pub(crate) async fn all() -> Self {
        Self::many(AT_A_TIME).await
    }

    async fn many(count: u32) -> Self {
        Self(Arc::clone(&TURNS).acquire_many_owned(count).await.expect("never closed"))
    }
}

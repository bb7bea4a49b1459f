//! `redrive cancel`, `suspend` and `resume`: what may be done to a replay while it runs.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::cluster::{Cluster, answered};
use super::replay::{Ending, failed, text};
use super::{fail, print};
use crate::api::DlqReplay;

/// Which replay.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The replay's name.
    name: String,

    #[command(flatten)]
    cluster: Cluster,
}

/// What to do to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// End it for good.
    Cancel,
    /// Hold it.
    Suspend,
    /// Let it go on.
    Resume,
}

impl Steering {
    fn patch(self) -> serde_json::Value {
        match self {
            Self::Cancel => json!({"cancel": true}),
            Self::Suspend => json!({"suspend": true}),
            Self::Resume => json!({"suspend": false}),
        }
    }

    const fn done(self) -> &'static str {
        match self {
            Self::Cancel => "cancelled: it ends once what is on its way has arrived, and never runs again",
            Self::Suspend => "suspended: it is held once what is on its way has arrived",
            Self::Resume => "resumed",
        }
    }
}

/// Sets it, unless the replay has ended.
pub(super) fn run(arguments: &Arguments, steering: Steering) -> Ending {
    super::block_on(steer(arguments, steering)).unwrap_or_else(failed)
}

async fn steer(arguments: &Arguments, steering: Steering) -> Result<Ending, String> {
    let cluster = arguments.cluster.connect().await?;
    let api = cluster.api::<DlqReplay>();
    let replay = answered(api.get(&arguments.name)).await?;
    if replay.status.as_ref().is_some_and(|status| status.summary.is_some()) {
        fail(format!("the replay has ended already, {}", text::phase(&replay)));
        return Ok(Ending::Failed);
    }
    let patch = json!({"metadata": {"uid": replay.metadata.uid}, "spec": steering.patch()});
    answered(api.patch(&arguments.name, &PatchParams::default(), &Patch::Merge(patch))).await?;
    print(&format!("dlqreplay/{} {}\n", arguments.name, steering.done()));
    Ok(Ending::Good)
}

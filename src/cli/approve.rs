//! `redrive approve`: a second person looks at the plan of a replay and consents to it.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::cluster::{Cluster, Connected, answered};
use super::print;
use super::replay::follow::{Until, follow};
use super::replay::{Ending, failed, text};
use crate::api::{DlqReplay, ReplayPlan, Severity};

const AFTER_HELP: &str = "\
The approval holds for this plan and for at most so many messages. It can't be changed or taken
back; `redrive cancel NAME` ends the replay. Ask for one with: redrive replay PIPELINE

Exit codes:
  0  approved; with --watch: and it moved all that it selected
  1  an error, or no approval was given
  3, 4, 6  with --watch: as for `redrive replay`

Examples:
  redrive approve orders-20261129-220000
  redrive approve orders-20261129-220000 --max-messages 10 --comment \"small batch first\" --watch";

/// What `redrive approve` was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    /// The replay's name.
    name: String,

    /// The most messages that may move. Default: as many as the plan selects.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i64).range(1..))]
    max_messages: Option<i64>,

    /// Anything worth saying.
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,

    /// Approve without being asked.
    #[arg(short, long)]
    yes: bool,

    /// Approve only if the plan has this hash.
    #[arg(long, value_name = "HASH")]
    plan_hash: Option<String>,

    /// Show how far it is, until it has ended.
    #[arg(long)]
    watch: bool,

    #[command(flatten)]
    cluster: Cluster,
}

/// Shows the plan, asks, and sets the approval.
pub(super) fn run(arguments: &Arguments) -> Ending {
    super::block_on(approve(arguments)).unwrap_or_else(failed)
}

async fn approve(arguments: &Arguments) -> Result<Ending, String> {
    let cluster = arguments.cluster.connect().await?;
    let replay = answered(cluster.api::<DlqReplay>().get(&arguments.name)).await?;
    let me = cluster.own_name().await?;
    let plan = approvable(&replay, &me)?;
    if let Some(wanted) = arguments.plan_hash.as_ref().filter(|wanted| **wanted != plan.hash) {
        return Err(format!("the plan is {} and not {wanted}: look at it before you approve it", plan.hash));
    }
    let most = arguments.max_messages.unwrap_or_else(|| text::most(&replay, plan));
    print(&format!("{}\n", text::plan(&replay, plan)));
    if !arguments.yes {
        confirm(&me, most)?;
    }
    let approved = set(&cluster, &replay, arguments, &me, plan, most).await?;
    print(&format!("approved by {me}: at most {} messages move\n", text::number(most)));
    match arguments.watch {
        true => follow(&cluster, &approved, Until::Ended, true).await,
        false => Ok(Ending::Good),
    }
}

/// The plan to approve, or why there is nothing to approve.
fn approvable<'a>(replay: &'a DlqReplay, me: &str) -> Result<&'a ReplayPlan, String> {
    let status = replay.status.as_ref();
    if let Some(summary) = status.and_then(|status| status.summary.as_ref()) {
        return Err(format!(
            "the replay has ended ({}: {}): create a new one",
            text::clean(&summary.result),
            text::clean(&summary.message)
        ));
    }
    if replay.spec.cancel || replay.metadata.deletion_timestamp.is_some() {
        return Err("the replay was cancelled or deleted: create a new one".to_owned());
    }
    if replay.spec.dry_run {
        return Err("the replay is a dry run, which moves nothing: there is nothing to approve".to_owned());
    }
    if let Some(approval) = &replay.spec.approval {
        return Err(format!(
            "{} has approved it already, for at most {} messages",
            text::clean(&approval.approved_by),
            text::number(approval.max_messages)
        ));
    }
    if replay.spec.requested_by.as_deref() == Some(me) {
        return Err(format!(
            "{me} asked for this replay, and nobody approves what they asked for themselves: let a second person approve"
        ));
    }
    let Some(plan) = status.and_then(|status| status.plan.as_ref()) else {
        return Err(format!(
            "there is no plan to approve yet ({}): try again in a moment",
            text::phase(replay)
        ));
    };
    let errors: Vec<String> = plan
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| text::clean(&finding.message))
        .collect();
    if !errors.is_empty() {
        return Err(format!("by its plan it can't start: {}", errors.join("; ")));
    }
    if plan.matching == 0 {
        return Err("its plan selects no message: there is nothing to approve".to_owned());
    }
    Ok(plan)
}

fn confirm(me: &str, most: i64) -> Result<(), String> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err("nobody is there to be asked: look at the plan, and add --yes".to_owned());
    }
    let mut error = std::io::stderr();
    let _ = write!(error, "Approve as {me} that at most {} messages move? [y/N] ", text::number(most));
    let _ = error.flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(|error| format!("the answer can't be read: {error}"))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err("not approved".to_owned()),
    }
}

async fn set(
    cluster: &Connected,
    replay: &DlqReplay,
    arguments: &Arguments,
    me: &str,
    plan: &ReplayPlan,
    most: i64,
) -> Result<DlqReplay, String> {
    let mut approval = json!({"approvedBy": me, "maxMessages": most, "planHash": plan.hash});
    if let Some(comment) = &arguments.comment {
        approval["comment"] = comment.clone().into();
    }
    // The UID: a replay of the same name that was created meanwhile is another one.
    let patch = json!({"metadata": {"uid": replay.metadata.uid}, "spec": {"approval": approval}});
    let api = cluster.api::<DlqReplay>();
    answered(api.patch(&arguments.name, &PatchParams::default(), &Patch::Merge(patch))).await
}

#[cfg(test)]
#[path = "approve/tests.rs"]
mod tests;

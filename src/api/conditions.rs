//! Condition types and reasons: the words that status, events and metrics share.
//!
//! Reasons are an enum so that no controller can invent one, and so that the documentation can
//! list them all. Conditions themselves are Kubernetes' own type.

use std::fmt;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Builds an enum of words with its texts, the list of all of them, and `Display`.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$word_doc])* $word,)+
        }

        impl $name {
            /// All of them, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$word,)+];

            /// The word as it stands in status, events and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)+
                }
            }

            /// The value of that word, if it is one.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.as_str() == word)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// The types of conditions of a RetryPipeline.
    PipelineCondition {
        /// The summary: False whenever a message could be lost or go astray.
        Ready,
        /// False where a classic queue makes dead-lettering at-most-once.
        AtLeastOnce,
        /// True while the broker differs from what the pipeline says.
        Drifted,
        /// True while `suspend` keeps the operator from acting; Ready stays as it was.
        Suspended,
        /// True for what retrying can't cure.
        Stalled,
        /// True while the operator still works towards the current generation.
        Reconciling,
    }
}

words! {
    /// Why a condition of a RetryPipeline has its status.
    PipelineReason {
        /// Everything on the broker is as the pipeline says.
        Reconciled,
        /// Work is under way; no result yet.
        Progressing,
        /// No connection to the broker could be made, or it was lost.
        BrokerUnreachable,
        /// The broker took the connection but didn't answer in time.
        Timeout,
        /// The broker refused user name or password.
        Unauthorized,
        /// The broker knows the user, who lacks the rights for this.
        Forbidden,
        /// The broker's certificate isn't trusted or doesn't fit its name.
        TLSVerifyFailed,
        /// A Secret, or a key in it, is missing.
        SecretNotFound,
        /// The RabbitmqCluster doesn't exist.
        ClusterNotFound,
        /// The RabbitmqCluster has no replicas at present.
        ClusterScaledToZero,
        /// The cluster's owner hasn't granted this namespace what the resource uses.
        NamespaceNotAllowed,
        /// The same reference suddenly leads to another broker; nothing is written.
        BrokerChanged,
        /// The vhost doesn't exist.
        VhostNotFound,
        /// The broker is older than RabbitMQ 4.0, or than what the mode needs.
        UnsupportedBroker,
        /// A plugin that the pipeline needs isn't enabled.
        PluginMissing,
        /// An object exists with other arguments, which can't be changed.
        ArgumentMismatch,
        /// A policy exists already where ours would have to be.
        PolicyConflict,
        /// A foreign policy overrules ours, or is a danger to our queues.
        PolicyShadowed,
        /// An object belongs to someone else.
        Conflict,
        /// Messages are left in queues that were to be deleted.
        QueueNotEmpty,
        /// A new generation of queues takes over; the old one drains.
        Migrating,
        /// A repair without loss isn't possible.
        Blocked,
        /// Dead letters are held, since the queue that they lead to doesn't take them.
        DeadLettersStuck,
        /// A queue that the user chose to be classic is at-most-once.
        ClassicQueue,
        /// No difference was found.
        InSync,
        /// A difference was found.
        DriftFound,
        /// This version of the operator can't do it yet.
        NotSupportedYet,
        /// The resource is suspended.
        Suspended,
        /// The spec contradicts itself, or expands to something the broker can't hold.
        InvalidSpec,
    }
}

words! {
    /// The types of conditions of a DlqReplay.
    ReplayCondition {
        /// The summary: Unknown while it runs.
        Succeeded,
        /// True once a valid approval is there, or none is needed.
        Approved,
        /// True while messages move.
        Running,
        /// True while `suspend` holds it.
        Suspended,
        /// True for what retrying can't cure.
        Stalled,
        /// True while the operator still works on it.
        Reconciling,
    }
}

words! {
    /// Why a condition of a DlqReplay has its status; the printed phase as well.
    ReplayReason {
        /// The plan is being made; nothing moves.
        Planning,
        /// The plan is made and waits for a second person.
        AwaitingApproval,
        /// A second person has approved the plan.
        Approved,
        /// It fits into what may move without approval.
        WithinBudget,
        /// The pipeline asks for no approval.
        ApprovalNotRequired,
        /// The approval is older than 24 hours.
        ApprovalExpired,
        /// The approval is for another plan than the one that was made.
        ApprovalMismatch,
        /// It waits for its time or for another replay of the same pipeline.
        Scheduled,
        /// Messages move.
        Running,
        /// A guard holds it, or `suspend` does.
        Paused,
        /// A few messages test whether failures are over.
        Canary,
        /// A guard ended it for good.
        Stopped,
        /// A person ended it.
        Cancelled,
        /// Every selected message was moved.
        Completed,
        /// It reached the end, but some messages stayed.
        CompletedWithFailures,
        /// It couldn't be done.
        Failed,
        /// A replay of the same name and spec ran before.
        AlreadyRun,
        /// Nothing in this cluster makes sure who approved.
        ApprovalUnverifiable,
        /// `select.scanLimit` messages were read.
        ScanLimitReached,
        /// `deadline` has passed.
        DeadlineExceeded,
        /// The target takes no messages.
        Unroutable,
        /// A check before the start found a danger.
        PreflightFailed,
        /// The pipeline doesn't exist.
        PipelineNotFound,
        /// The spec contradicts itself or the pipeline's policy.
        InvalidSpec,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back() {
        for reason in PipelineReason::ALL {
            assert_eq!(PipelineReason::from_word(reason.as_str()), Some(*reason));
        }
        for reason in ReplayReason::ALL {
            assert_eq!(ReplayReason::from_word(&reason.to_string()), Some(*reason));
        }
    }

    #[test]
    fn every_reason_is_one_that_kubernetes_accepts() {
        let words = PipelineReason::ALL.iter().map(|word| word.as_str());
        for word in words.chain(ReplayReason::ALL.iter().map(|word| word.as_str())) {
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(word.chars().all(|c| c.is_ascii_alphanumeric()), "{word}");
        }
    }
}

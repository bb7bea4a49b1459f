//! How a replay ended, as an exit code.

use std::process::ExitCode;

/// How following a replay ended. The numbers are part of the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Ending {
    /// It moved all that it selected; or what was asked is done.
    Good,
    /// Something went wrong: the input, the cluster, or the replay itself.
    Failed,
    /// It reached its end, but messages stayed.
    WithFailures,
    /// It ended early, by itself or by a person.
    Stopped,
    /// It waits for a second person.
    AwaitingApproval,
    /// It never began.
    Refused,
}

impl Ending {
    /// What the process ends with. 2 is `redrive plan`'s "there are changes".
    pub(in crate::cli) fn exit_code(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    const fn number(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Failed => 1,
            Self::WithFailures => 3,
            Self::Stopped => 4,
            Self::AwaitingApproval => 5,
            Self::Refused => 6,
        }
    }

    /// What the reason of an ended replay means.
    pub(super) fn of(reason: &str) -> Self {
        match reason {
            "Completed" => Self::Good,
            "CompletedWithFailures" => Self::WithFailures,
            "Stopped" | "Cancelled" | "DeadlineExceeded" | "ScanLimitReached" | "Unroutable" => Self::Stopped,
            "PreflightFailed"
            | "PipelineNotFound"
            | "InvalidSpec"
            | "AlreadyRun"
            | "ApprovalUnverifiable"
            | "ApprovalExpired"
            | "ApprovalMismatch" => Self::Refused,
            // Failed, and whatever another version of the operator may say.
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::ReplayReason;

    #[test]
    fn every_reason_that_is_an_end_has_its_number() {
        let number = |reason: ReplayReason| Ending::of(reason.as_str()).number();
        assert_eq!(number(ReplayReason::Completed), 0);
        assert_eq!(number(ReplayReason::Failed), 1);
        assert_eq!(number(ReplayReason::CompletedWithFailures), 3);
        for reason in [
            ReplayReason::Stopped,
            ReplayReason::Cancelled,
            ReplayReason::DeadlineExceeded,
            ReplayReason::ScanLimitReached,
            ReplayReason::Unroutable,
        ] {
            assert_eq!(number(reason), 4, "{reason}");
        }
        for reason in [
            ReplayReason::PreflightFailed,
            ReplayReason::PipelineNotFound,
            ReplayReason::InvalidSpec,
            ReplayReason::AlreadyRun,
            ReplayReason::ApprovalUnverifiable,
        ] {
            assert_eq!(number(reason), 6, "{reason}");
        }
    }
}

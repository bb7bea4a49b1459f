//! What can go wrong between us and a broker.

use std::borrow::Cow;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

/// The cause of a [`BrokerError`], for logs; its text may come from a foreign
/// server, so it belongs into no status.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// Why a call failed. `Display` is fit for a condition's message: bounded,
/// without secrets, and without a word from a server that has not proved to be
/// a RabbitMQ, but for the names and dates of its certificate. Cloning is cheap, since one failure of a lane concerns all its
/// pipelines.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BrokerError {
    /// No connection, or it broke before the answer was complete.
    #[error("{address} can't be reached: {why}")]
    Unreachable {
        /// Host and port.
        address: String,
        /// A fixed phrase, such as `connection refused`.
        why: &'static str,
        /// What the operating system or the client said.
        #[source]
        source: Option<Cause>,
    },
    /// No connection within 5 seconds, or no complete answer within 30.
    #[error("{address} did not answer in time")]
    Timeout {
        /// Host and port.
        address: String,
        /// Which of the limits it was.
        #[source]
        source: Option<Cause>,
    },
    /// The operator refuses to talk to this address, see `guard`.
    #[error("{address} leads to {ip}, {kind}: brokers may not have such an address here")]
    AddressRefused {
        /// Host and port.
        address: String,
        /// What it led to.
        ip: IpAddr,
        /// What that is.
        kind: &'static str,
    },
    /// User or password are wrong (API-06). Read the Secret again, once.
    #[error("{address} refuses the user {username:?}: check username and password")]
    Unauthorized {
        /// Host and port.
        address: String,
        /// The user.
        username: String,
    },
    /// The user is known and lacks a permission or a tag, or the name is
    /// reserved (NAM-08). A new Secret does not help.
    #[error("the broker does not let the user {username:?} {action}: {reason}")]
    Forbidden {
        /// The user.
        username: String,
        /// What was tried, such as `declare queue "orders" in vhost "/"`.
        action: String,
        /// What the broker said.
        reason: String,
    },
    /// TLS failed: trust, name, validity, or no TLS at all.
    #[error("TLS with {address} failed: {why}")]
    Tls {
        /// Host and port.
        address: String,
        /// What to look at, and what to do.
        why: Cow<'static, str>,
        /// What the TLS library said.
        #[source]
        source: Option<Cause>,
    },
    /// Something answers that is no RabbitMQ, or not in the way it should.
    #[error("{address} does not answer like a RabbitMQ: {why}")]
    NotRabbit {
        /// Host and port.
        address: String,
        /// A fixed phrase, never the foreign server's words.
        why: &'static str,
    },
    /// The object of the call, or one that it needs, does not exist.
    #[error("can't {action}: {reason}")]
    NotFound {
        /// What was tried.
        action: String,
        /// What is missing.
        reason: String,
    },
    /// The vhost does not exist, or is said not to (VHO-09: before 4.3.1 and
    /// 4.2.7 a restarting node could say so of any). Confirm before cleaning up.
    #[error("the vhost {vhost:?} does not exist")]
    VhostNotFound {
        /// Its name.
        vhost: String,
    },
    /// The object exists with another value of something that can't change.
    #[error("{object} exists with another {key}: wanted {wanted}, found {found}{}", same_text(wanted, found))]
    Inequivalent {
        /// Such as `queue "orders"`.
        object: String,
        /// The argument or property.
        key: String,
        /// What we sent.
        wanted: String,
        /// What the broker has.
        found: String,
    },
    /// A limit of the vhost or the broker is reached (VHO-04, VHO-05).
    #[error("can't {action}: {reason}")]
    QuotaExceeded {
        /// What was tried.
        action: String,
        /// The broker's sentence, which names the limit.
        reason: String,
    },
    /// Bindings still lead from an exchange that should go only if unused.
    #[error("can't {action}: it is in use")]
    InUse {
        /// What was tried.
        action: String,
    },
    /// The broker understood and refused; the same call will fail again.
    #[error("can't {action}: the broker answers {status}: {reason}")]
    Refused {
        /// What was tried.
        action: String,
        /// The HTTP status, or the AMQP reply code.
        status: u16,
        /// The broker's sentence, cut to 500 characters.
        reason: String,
    },
    /// The broker or something before it failed (429, 5xx, and 400 where the call
    /// crashed inside the broker). An empty 500 on
    /// a write can also mean a body that no retry will cure (API-17).
    #[error("can't {action}: the server answers {status}")]
    ServerError {
        /// What was tried.
        action: String,
        /// The HTTP status.
        status: u16,
    },
    /// HTTP can't address this name or routing key (NAM-05, and see
    /// [`BrokerError::Unlistable`]); nothing was sent.
    #[error("{name:?} can't be addressed over HTTP: use another name")]
    Unaddressable {
        /// The name.
        name: String,
    },
    /// The broker fails to list the bindings of a vhost. Known cause (4.0.5 and
    /// 4.3.6): a binding with arguments whose routing key has a `~` before its
    /// last character makes every list that holds it fail.
    #[error(
        "the broker can't list the bindings of vhost {vhost:?}: one with arguments may have a ~ in its routing key, which breaks its management API; remove that one over AMQP"
    )]
    Unlistable {
        /// The vhost.
        vhost: String,
    },
    /// This process does not lead any more, and nothing was sent.
    #[error("nothing is written: another process may have taken over")]
    TermOver,
    /// The endpoint can't be turned into a client.
    #[error(
        "no client for {address} can be made: check ca.crt, tls.crt and tls.key, or without ca.crt the system's certificates"
    )]
    Setup {
        /// Host and port.
        address: String,
        /// What the TLS library said.
        #[source]
        source: Option<Cause>,
    },
}

/// IMM-02: `30000` and `"30000"` look alike in the broker's sentence.
fn same_text(wanted: &str, found: &str) -> &'static str {
    if wanted == found { " (of another type)" } else { "" }
}

impl BrokerError {
    /// Whether the same call can succeed later with nothing changed by us or
    /// the user: worth a retry with backoff. Everything else waits for a
    /// change (or a slow recheck).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            // NotFound: an object went away between the look and the call.
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::ServerError { .. }
            | Self::NotFound { .. }
            | Self::Unlistable { .. }
            | Self::TermOver
            | Self::InUse { .. } => true,
            Self::AddressRefused { .. }
            | Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::Tls { .. }
            | Self::NotRabbit { .. }
            | Self::VhostNotFound { .. }
            | Self::Inequivalent { .. }
            | Self::QuotaExceeded { .. }
            | Self::Refused { .. }
            | Self::Unaddressable { .. }
            | Self::Setup { .. } => false,
        }
    }

    /// The reason of the condition that this error turns into.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } | Self::ServerError { .. } => "BrokerUnreachable",
            Self::Timeout { .. } => "Timeout",
            Self::AddressRefused { .. } | Self::Forbidden { .. } => "Forbidden",
            Self::Unauthorized { .. } => "Unauthorized",
            Self::Tls { .. } | Self::Setup { .. } => "TLSVerifyFailed",
            Self::NotRabbit { .. } => "UnsupportedBroker",
            Self::VhostNotFound { .. } => "VhostNotFound",
            Self::Inequivalent { .. } => "ArgumentMismatch",
            Self::NotFound { .. } | Self::InUse { .. } | Self::TermOver => "Progressing",
            Self::QuotaExceeded { .. } | Self::Refused { .. } | Self::Unlistable { .. } => "Blocked",
            Self::Unaddressable { .. } => "InvalidSpec",
        }
    }
}

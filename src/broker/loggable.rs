//! Which log lines of the AMQP client may be seen.

use tracing::{Level, Metadata};

/// Where the client warns of returned messages, and shows them.
const RETURNS: &str = "lapin::returned_messages";

/// Whether a line can't hold the body of a message.
///
/// The AMQP client logs returned messages with their bodies as a warning, and every frame at the
/// level trace. So its lines are loggable from debug upwards, and none of those about returned
/// messages. Lines of all others are loggable, and so are spans.
#[must_use]
pub fn is_loggable(line: &Metadata<'_>) -> bool {
    let of_client = line.target() == "lapin" || line.target().starts_with("lapin::");
    line.is_span() || !of_client || (*line.level() <= Level::DEBUG && !line.target().starts_with(RETURNS))
}

//! The queues, each with the arguments whose absence could lose messages.

use super::super::model::{Arg, Args, Queue, QueueType};
use super::super::spec::Mode;
use super::super::validate::{Pipeline, Tier};

/// A queue that holds messages for one delay.
pub(in crate::topology) fn retry_queue(pipeline: &Pipeline, tier: &Tier, name: String, ttl: i64) -> Queue {
    let spec = &pipeline.spec;
    let mut queue = new_queue(name, spec.retry_type, spec.retry_group_size);
    let arguments = &mut queue.arguments;
    arguments.insert("x-message-ttl".into(), ttl.into());
    if spec.mode == Mode::Broker {
        // No dead-letter routing key: the message keeps its own.
        let exchange = pipeline.names().returns(tier.number);
        arguments.insert("x-dead-letter-exchange".into(), exchange.as_str().into());
    } else {
        arguments.insert("x-dead-letter-exchange".into(), "".into());
        arguments.insert("x-dead-letter-routing-key".into(), spec.source.queue.as_str().into());
    }
    if spec.retry_type == QueueType::Quorum {
        arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
        arguments.insert("x-delivery-limit".into(), (-1).into());
    }
    queue
}

pub(super) fn new_queue(name: String, kind: QueueType, group_size: Option<i64>) -> Queue {
    let mut arguments = Args::from([("x-queue-type".to_owned(), Arg::from(kind.as_str()))]);
    if kind == QueueType::Quorum {
        // What at-least-once dead-lettering needs at both of its ends.
        arguments.insert("x-overflow".into(), "reject-publish".into());
        if let Some(size) = group_size {
            arguments.insert("x-quorum-initial-group-size".into(), size.into());
        }
    }
    Queue { name, kind, arguments }
}

pub(super) fn holding_queue(name: String, kind: QueueType, group_size: Option<i64>) -> Queue {
    let mut queue = new_queue(name, kind, group_size);
    if kind == QueueType::Quorum {
        queue.arguments.insert("x-delivery-limit".into(), (-1).into());
    }
    queue
}

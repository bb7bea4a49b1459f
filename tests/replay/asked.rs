//! What a replay asks for, with the judge that it really has, and messages of every kind.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation};
use redrive::broker::replay::convert;
use redrive::replay::judge::RunJudge;
use redrive::replay::message::Message;
use redrive::replay::rewrite::Wire;
use redrive::replay::run::{OnFailure, Rewriting, Target};
use redrive::replay::selection::{Criteria, Selection};

use crate::lab::{Start, WORK, Worker, deliveries};
use crate::support::Vhost;

/// A replay as its resource describes it.
pub(crate) struct Asked {
    pub(crate) criteria: Criteria,
    pub(crate) rewriting: Rewriting,
    pub(crate) target: Target,
}

impl Asked {
    /// Everything, to the work queue, as the defaults are.
    pub(crate) fn all() -> Self {
        Self {
            criteria: Criteria::default(),
            rewriting: Rewriting {
                request: "shop/run".to_owned(),
                run: "uid".to_owned(),
                on_failure: OnFailure::DeadLetter,
                keep_expiration: false,
                idempotency: None,
                max_replays: 3,
                replay_limit_queue: None,
            },
            target: Target::Queue(WORK.to_owned()),
        }
    }

    /// Only messages for which the expression holds.
    pub(crate) fn matching(expression: &str) -> Self {
        let expression = Some(expression.to_owned());
        Self { criteria: Criteria { expression, ..Criteria::default() }, ..Self::all() }
    }

    /// The judge of its run.
    pub(crate) fn judge(&self) -> RunJudge {
        let selection = Selection::new(self.criteria.clone(), true).unwrap();
        let wire = Wire { frame_max: 131_072, max_body: None };
        RunJudge::new(selection, self.target.clone(), self.rewriting.clone(), wire, Box::new(now))
    }

    /// Runs it with guards that never trip, however many messages find no queue.
    pub(crate) fn go(self, vhost: &Vhost) -> Worker {
        let mut start = Start::all(50);
        start.orders.guard.max_unroutable = 100_000;
        self.go_as(start, vhost)
    }

    pub(crate) fn go_as(self, start: Start, vhost: &Vhost) -> Worker {
        start.go_by(vhost, self.judge(), self.target)
    }
}

fn now() -> u64 {
    let since: Duration = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Publishes a message that must find its queue.
pub(crate) async fn put(channel: &Channel, queue: &str, properties: BasicProperties, body: &[u8]) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirm = channel.basic_publish("".into(), queue.into(), options, body, properties).await.unwrap();
    assert!(matches!(confirm.await.unwrap(), Confirmation::Ack(None)), "it was routed");
}

/// Takes everything out of a queue, in its order.
pub(crate) async fn take_all(vhost: &Vhost, queue: &str) -> Vec<Message> {
    deliveries(vhost, queue).await.into_iter().map(convert::message).collect()
}

/// A persistent message with an id.
pub(crate) fn numbered(number: usize) -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2).with_message_id(number.to_string().into())
}

/// Headers from names and values.
pub(crate) fn headers<const N: usize>(pairs: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in pairs {
        table.insert(name.into(), value);
    }
    table
}

/// A header that is a text.
pub(crate) fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// A header of every type that the broker knows, the extremes of numbers among them.
pub(crate) fn every_type() -> FieldTable {
    let decimal = |scale, value| AMQPValue::DecimalValue(DecimalValue { scale, value });
    let list = vec![
        AMQPValue::Boolean(true),
        text("two"),
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void, AMQPValue::LongInt(-3)])),
        AMQPValue::FieldTable(headers([("inner", AMQPValue::Float(0.25))])),
    ];
    let inner = headers([
        ("deep", AMQPValue::FieldTable(headers([("deeper", AMQPValue::Timestamp(1))]))),
        ("list", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Double(-0.5)]))),
    ]);
    headers([
        ("bool", AMQPValue::Boolean(false)),
        ("i8", AMQPValue::ShortShortInt(i8::MIN)),
        ("u8", AMQPValue::ShortShortUInt(u8::MAX)),
        ("i16", AMQPValue::ShortInt(i16::MIN)),
        ("u16", AMQPValue::ShortUInt(u16::MAX)),
        ("i32", AMQPValue::LongInt(i32::MIN)),
        ("u32", AMQPValue::LongUInt(u32::MAX)),
        ("i64", AMQPValue::LongLongInt(i64::MIN)),
        ("i64-max", AMQPValue::LongLongInt(i64::MAX)),
        ("float", AMQPValue::Float(-1.5)),
        ("double", AMQPValue::Double(1e300)),
        ("decimal", decimal(2, 1_234)),
        ("decimal-max", decimal(255, u32::MAX)),
        ("text", text("naïve ☃")),
        ("no-text", AMQPValue::LongString(vec![0xFF_u8, 0x00].into())),
        ("nothing", text("")),
        ("bytes", AMQPValue::ByteArray(vec![0_u8, 0xFF].into())),
        ("when", AMQPValue::Timestamp(1_700_000_000)),
        ("void", AMQPValue::Void),
        ("list", AMQPValue::FieldArray(FieldArray::from(list))),
        ("no-list", AMQPValue::FieldArray(FieldArray::default())),
        ("table", AMQPValue::FieldTable(inner)),
        ("no-table", AMQPValue::FieldTable(FieldTable::default())),
    ])
}

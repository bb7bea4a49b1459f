//! What is carried out, in full.

use redrive::topology::model::{ObjectKey, QueueType};
use redrive::topology::spec::{Delays, Jitter, Mode, Settings, SourceExchange};

use crate::lab::{checked, orders};
use crate::{Change, application, arguments, lab_with, native, poison, policies, with};

#[test]
fn what_can_be_changed_is_carried_out() {
    let edits: [(&str, Change, Change); 17] = [
        (
            "None to Application with categories",
            |spec| {
                spec.mode = Mode::None;
                spec.dead_letter.quarantine = poison();
            },
            application,
        ),
        ("delays", |_| {}, |spec| spec.delays = Delays::List(vec![6_000, 60_000, 600_000])),
        ("retry.queueType", |_| {}, |spec| spec.retry_type = QueueType::Classic),
        ("retry.groupSize", |_| {}, |spec| spec.retry_group_size = Some(3)),
        ("template", |_| {}, |spec| spec.retry_template = "{queue}.wait.{attempt}".into()),
        ("numberFrom", |_| {}, |spec| spec.number_from = 1),
        ("jitter", |_| {}, |spec| spec.jitter = Some(Jitter { percent: 10, shards: 2 })),
        ("DLQ name", |_| {}, |spec| spec.dead_letter.template = "{queue}_error".into()),
        (
            "DLQ name and type",
            |_| {},
            |spec| {
                spec.dead_letter.template = "{queue}_error".into();
                spec.dead_letter.kind = QueueType::Classic;
            },
        ),
        ("categories", |_| {}, |spec| spec.dead_letter.quarantine = poison()),
        ("Broker to None", |_| {}, |spec| spec.mode = Mode::None),
        ("Broker to Native", |_| {}, native),
        ("Native to Broker", native, |spec| spec.mode = Mode::Broker),
        (
            "exchange",
            |_| {},
            |spec| {
                let exchange = SourceExchange { name: "other".into(), kind: "direct".into() };
                spec.source.exchange = Some(exchange);
                spec.source.bindings[0].exchange = "other".into();
            },
        ),
        (
            "numbers",
            |_| {},
            |spec| {
                arguments(spec);
                policies(spec);
            },
        ),
        ("one retry more", application, |spec| spec.delays = Delays::List(vec![5_000, 30_000, 60_000])),
        (
            "settings without numbers",
            |spec| spec.mode = Mode::None,
            |spec| spec.settings = Settings::Arguments,
        ),
    ];
    for (name, before, edit) in edits {
        let before = with(&orders(), before);
        let mut lab = lab_with(&before);
        let after = with(&before, edit);
        let diff = lab.settle(&checked(&after));
        assert!(diff.plan.is_empty(), "{name}: {}", diff.plan);
        assert_eq!(lab.applied, Some(after), "{name}");
    }
}

/// Nobody can tell that no client publishes to the old ones any more.
#[test]
fn with_the_delay_in_their_names_a_clients_queues_stay_beside_new_ones() {
    let by_delay: Change = |spec| {
        application(spec);
        spec.retry_template = "{queue}.wait.{delay}".into();
    };
    let before = with(&orders(), by_delay);
    let mut lab = lab_with(&before);
    let after = with(&before, |spec| spec.delays = Delays::List(vec![5_000, 60_000]));
    let diff = lab.settle(&checked(&after));
    assert!(diff.plan.is_empty(), "{}", diff.plan);
    for name in ["orders.wait.5s", "orders.wait.30s", "orders.wait.1m"] {
        assert!(lab.world.observed.queues.contains_key(name), "{name}");
        assert!(lab.inventory.contains_key(&ObjectKey::Queue(name.into())), "{name}");
    }
    let deleted = lab.removal(false, |removal| removal.delete()).to_string();
    assert!(deleted.contains("- queue    orders.wait.30s"), "it goes with the pipeline: {deleted}");
}

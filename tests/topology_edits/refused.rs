//! What is refused: nothing of it is written, and the sentence names field, from, to and a way round.

use redrive::topology::model::{Arg, ObjectKey, Queue, QueueType};
use redrive::topology::plan::BlockedBy;
use redrive::topology::spec::{
    Delays, Jitter, Mode, Ownership, Settings, SourceBinding, SourceExchange, Spec,
};

use crate::lab::{Lab, checked, orders};
use crate::world::Write;
use crate::{Change, application, arguments, lab_with, native, poison, policies, with};

const ANOTHER_PIPELINE: &str = "create another RetryPipeline with another source queue";

/// More of the same edit, all of which would be carried out by itself.
fn more(spec: &mut Spec) {
    spec.source
        .bindings
        .push(SourceBinding { exchange: "orders.exchange".into(), routing_key: "paid".into() });
    spec.dead_letter.parking_lot = true;
}

/// Checks that an edit is refused with this sentence, that nothing of it is done, and that taking
/// it back leaves nothing behind.
#[track_caller]
fn assert_refused(before: Change, edit: Change, sentence: &str, instead: &str) {
    let before = with(&orders(), before);
    let after = with(&before, edit);
    let mut lab = lab_with(&before);
    let (shape, inventory) = (lab.world.shape(), lab.inventory.clone());
    for spec in [after.clone(), with(&after, more)] {
        let diff = lab.round(&checked(&spec), |_, _| {});
        let [blocked] = diff.plan.blocked.as_slice() else { panic!("{sentence}: {}", diff.plan) };
        let text = blocked.to_string();
        // What a person can allow says so.
        let (by, then) = match &diff.plan.pending {
            Some(_) => (BlockedBy::AwaitsConsent, "takes"),
            None => (BlockedBy::NotSupportedYet, "is not supported yet"),
        };
        assert_eq!(blocked.by, by, "{text}");
        assert!(text.starts_with(&format!("{sentence} {then}")), "{sentence}: {text}");
        assert!(text.contains(instead) && text.contains("or take the edit back"), "{sentence}: {text}");
        assert_eq!(diff.plan.steps, [], "{sentence}");
        assert_eq!(diff.plan.draining, Vec::<String>::new(), "{sentence}");
        assert_eq!(diff.inventory, inventory, "{sentence}");
        assert_eq!(diff.missing, [], "{sentence}");
    }
    let back = lab.settle(&checked(&before));
    assert!(back.plan.is_empty(), "{sentence}: {}", back.plan);
    assert_eq!(lab.world.shape(), shape, "{sentence}");
}

#[test]
fn without_a_chain_the_dead_letter_queue_keeps_its_kind() {
    let classic: Change = |spec| spec.dead_letter.kind = QueueType::Classic;
    assert_refused(
        application,
        classic,
        "spec.deadLetter.queueType: from quorum to classic",
        ANOTHER_PIPELINE,
    );
}

#[test]
fn mode_application_is_neither_entered_nor_left() {
    let broker: Change = |spec| spec.mode = Mode::Broker;
    let none: Change = |spec| spec.mode = Mode::None;
    for (before, edit, sentence) in [
        ((|_| {}) as Change, application as Change, "spec.retry.mode: from Broker to Application"),
        (none, application, "spec.retry.mode: from Native or None to Application"),
        (native, application, "spec.retry.mode: from Native or None to Application"),
        (application, broker, "spec.retry.mode: from Application to Broker"),
        (application, none, "spec.retry.mode: from Application to None"),
        (application, native, "spec.retry.mode: from Application to Native"),
    ] {
        assert_refused(before, edit, sentence, ANOTHER_PIPELINE);
    }
    // With categories the source need not change, but whoever publishes must know.
    let chained: Change = |spec| {
        application(spec);
        spec.dead_letter.quarantine = poison();
    };
    assert_refused(chained, broker, "spec.retry.mode: from Application to Broker", ANOTHER_PIPELINE);
    let ladder: Change = |spec| spec.dead_letter.quarantine = poison();
    assert_refused(ladder, application, "spec.retry.mode: from Broker to Application", ANOTHER_PIPELINE);
    // And the same where a policy leads an External source.
    let external: Change = |spec| {
        application(spec);
        spec.source.ownership = Ownership::External;
    };
    assert_refused(external, none, "spec.retry.mode: from Application to None", ANOTHER_PIPELINE);
}

#[test]
fn in_mode_application_what_clients_know_stays() {
    for (edit, sentence) in [
        (
            (|spec| spec.delays = Delays::List(vec![6_000, 30_000])) as Change,
            "spec.retry.delays: from 5s to 6s",
        ),
        (|spec| spec.delays = Delays::List(vec![5_000]), "spec.retry.delays: from 2 or more to 1"),
        (|spec| spec.retry_type = QueueType::Classic, "spec.retry.queueType: from quorum to classic"),
        (|spec| spec.retry_group_size = Some(3), "spec.retry.groupSize: from none to 3"),
        (
            |spec| spec.retry_template = "{queue}.wait.{attempt}".into(),
            "spec.retry.naming.template: from names like orders.retry.0 to names like orders.wait.0",
        ),
        (|spec| spec.number_from = 7, "spec.retry.naming.numberFrom: from 0 to 7"),
        (
            |spec| spec.jitter = Some(Jitter { percent: 10, shards: 2 }),
            "spec.retry.jitter: from queues like orders.retry.0 to other shards of orders.retry.0",
        ),
        (
            |spec| spec.dead_letter.template = "{queue}.graveyard".into(),
            "spec.deadLetter.name: from \"orders.dlq\" to \"orders.graveyard\"",
        ),
        (
            |spec| spec.dead_letter.quarantine = poison(),
            "spec.deadLetter.quarantine: from no category to some",
        ),
    ] {
        assert_refused(application, edit, sentence, ANOTHER_PIPELINE);
    }
    let chained: Change = |spec| {
        application(spec);
        spec.dead_letter.quarantine = poison();
    };
    let bare: Change = |spec| spec.dead_letter.quarantine.clear();
    assert_refused(
        chained,
        bare,
        "spec.deadLetter.quarantine: from some categories to none",
        ANOTHER_PIPELINE,
    );
}

#[test]
fn numbers_in_arguments_stay() {
    for (edit, sentence, instead) in [
        (
            (|spec| spec.source.max_length = Some(9)) as Change,
            "spec.source.queue.maxLength: from 500 to 9",
            ANOTHER_PIPELINE,
        ),
        (
            |spec| spec.source.message_ttl = None,
            "spec.source.queue.messageTTL: from 1m to none",
            ANOTHER_PIPELINE,
        ),
        (
            |spec| spec.source.consumer_timeout = Some(180_000),
            "spec.source.queue.consumerTimeout: from 2m to 3m",
            ANOTHER_PIPELINE,
        ),
        // 6 × 3 + 2 is the broker's default, which needs no argument.
        (
            |spec| spec.source.delivery_limit = Some(6),
            "spec.source.deliveryLimit, retry.mode or the number of retries: from 17 to none",
            ANOTHER_PIPELINE,
        ),
        // The limit of the whole walk follows from how long the walk is.
        (
            |spec| spec.delays = Delays::List(vec![5_000]),
            "spec.source.deliveryLimit, retry.mode or the number of retries: from 17 to 11",
            ANOTHER_PIPELINE,
        ),
    ] {
        assert_refused(arguments, edit, sentence, instead);
    }
}

#[test]
fn delayed_retry_by_arguments_neither_comes_nor_goes() {
    let base: Change = |spec| spec.settings = Settings::Arguments;
    let native_base: Change = |spec| {
        spec.settings = Settings::Arguments;
        native(spec);
    };
    for (before, edit, sentence) in [
        (base, native as Change, "spec.retry.mode: from another to Native"),
        (native_base, |spec| spec.mode = Mode::None, "spec.retry.mode: from Native to None"),
    ] {
        let before = with(&orders(), before);
        let diff = lab_with(&before).diff(&checked(&with(&before, edit)));
        assert!(diff.plan.to_string().contains(sentence), "{sentence}: {}", diff.plan);
        assert_eq!(diff.plan.steps, [], "{sentence}");
    }
}

/// Policies hold its limit, but what a full one does is an argument.
#[test]
fn a_classic_source_gets_no_limit_later() {
    let classic: Change = |spec| spec.source.kind = QueueType::Classic;
    let limited: Change = |spec| spec.source.max_length = Some(9);
    let sentence = "spec.source.queue.maxLength: from no limit to a limit";
    assert_refused(classic, limited, sentence, ANOTHER_PIPELINE);
}

#[test]
fn numbers_stay_where_they_were_put() {
    assert_refused(arguments, policies, "spec.settings: from arguments to policy", ANOTHER_PIPELINE);
    let in_policies: Change = |spec| {
        arguments(spec);
        policies(spec);
    };
    let to_arguments: Change = |spec| spec.settings = Settings::Arguments;
    assert_refused(in_policies, to_arguments, "spec.settings: from policy to arguments", ANOTHER_PIPELINE);
}

#[test]
fn a_source_is_neither_taken_over_nor_given_away() {
    let external: Change = |spec| spec.source.ownership = Ownership::External;
    let managed: Change = |spec| spec.source.ownership = Ownership::Managed;
    assert_refused(|_| {}, external, "spec.source.ownership: from Managed to External", ANOTHER_PIPELINE);
    assert_refused(external, managed, "spec.source.ownership: from External to Managed", ANOTHER_PIPELINE);
    // Nobody is bound to it, and it is empty: it would have been taken for left over.
    let alone: Change = |spec| {
        application(spec);
        spec.source.bindings.clear();
        spec.source.exchange = None;
    };
    let before = with(&orders(), alone);
    let mut lab = lab_with(&before);
    lab.proven_empty.insert("orders".into());
    let diff = lab.diff(&checked(&with(&before, external)));
    assert_eq!((diff.plan.steps.len(), diff.plan.draining.len()), (0, 0), "{}", diff.plan);
}

#[test]
fn an_exchange_keeps_its_type() {
    let direct: Change = |spec| {
        spec.source.exchange = Some(SourceExchange { name: "orders.exchange".into(), kind: "direct".into() });
    };
    let instead = "give source.exchange.name another value in the same edit";
    assert_refused(|_| {}, direct, "spec.source.exchange.type: from topic to direct", instead);
}

#[test]
fn several_fields_are_refused_at_once_each_by_name() {
    let lab = lab_with(&with(&orders(), arguments));
    let edit: Change = |spec| {
        arguments(spec);
        spec.dead_letter.kind = QueueType::Classic;
        spec.dead_letter.max_length = None;
        spec.source.max_length = Some(9);
        spec.source.message_ttl = None;
    };
    let diff = lab.diff(&checked(&with(&orders(), edit)));
    let objects: Vec<&str> = diff.plan.blocked.iter().map(|blocked| blocked.object.as_str()).collect();
    assert_eq!(objects, ["spec.source.queue.maxLength", "spec.source.queue.messageTTL"]);
    assert_eq!(diff.plan.steps, [], "nor is what could be carried out");
}

/// What nobody asked for is no edit, whether there is one at the same time or not.
#[test]
fn what_somebody_else_made_differ_is_a_mismatch_and_no_edit() {
    let mut lab = lab_with(&orders());
    lab.world.write(&Write::DeleteQueue("orders.dlq".into())).expect("deleted");
    let kind = ("x-queue-type".to_owned(), Arg::from("classic"));
    let other = Queue { name: "orders.dlq".into(), kind: QueueType::Classic, arguments: [kind].into() };
    lab.world.write(&Write::PutQueue(other)).expect("declared by hand");
    let longer: Change = |spec| spec.delays = Delays::List(vec![5_000, 30_000, 60_000]);
    for spec in [orders(), with(&orders(), longer)] {
        let diff = lab.diff(&checked(&spec));
        let [blocked] = diff.plan.blocked.as_slice() else { panic!("{}", diff.plan) };
        assert_eq!((blocked.by, blocked.object.as_str()), (BlockedBy::ArgumentMismatch, "queue orders.dlq"));
    }
    // The drift stops no edit that has nothing to do with it.
    let diff = lab.diff(&checked(&with(&orders(), longer)));
    assert!(diff.plan.to_string().contains("+ queue    orders.retry.2"), "{}", diff.plan);

    let mut lab = lab_with(&orders());
    lab.world
        .observed
        .queues
        .get_mut("orders.dlq")
        .expect("the DLQ")
        .arguments
        .insert("x-max-age".into(), 1.into());
    let diff = lab.diff(&checked(&with(&orders(), longer)));
    assert_eq!(diff.plan.blocked[0].by, BlockedBy::ArgumentMismatch, "{}", diff.plan);
}

#[test]
fn what_was_carried_out_before_is_no_edit() {
    let spec = with(&orders(), application);
    let mut lab = lab_with(&spec);
    lab.world
        .observed
        .queues
        .get_mut("orders.retry.0")
        .expect("a tier")
        .arguments
        .insert("x-message-ttl".into(), 1.into());
    let by = |lab: &Lab| lab.diff(&checked(&spec)).plan.blocked[0].by;
    assert_eq!(by(&lab), BlockedBy::ArgumentMismatch);
    lab.applied = None;
    assert_eq!(by(&lab), BlockedBy::AwaitsConsent);
    lab.inventory.remove(&ObjectKey::Queue("orders.retry.0".into()));
    assert_eq!(by(&lab), BlockedBy::ArgumentMismatch, "a marker alone shows no edit");
}

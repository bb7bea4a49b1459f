//! What an edit changes, round by round.

use redrive::topology::spec::{Delays, Mode};

use crate::lab::{Lab, checked, orders};
use crate::{NEW, categories, edit, golden, with};

#[test]
fn a_delay_is_changed() {
    golden("edit-delay", &edit(&orders(), &with(|spec| spec.delays = Delays::List(vec![5_000, 60_000]))));
}

#[test]
fn a_tier_is_added() {
    let longer = with(|spec| spec.delays = Delays::List(vec![5_000, 30_000, 120_000]));
    golden("edit-tier-added", &edit(&orders(), &longer));
}

#[test]
fn a_tier_is_removed() {
    golden("edit-tier-removed", &edit(&orders(), &with(|spec| spec.delays = Delays::List(vec![5_000]))));
}

#[test]
fn a_tier_is_removed_while_messages_are_on_their_way() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    let shorter = checked(&with(|spec| spec.delays = Delays::List(vec![5_000])));
    lab.world.fill("orders", 3);
    lab.world.fill("orders.retry.1", 2);
    lab.round(&shorter, |_, _| {});
    lab.round(&shorter, |_, _| {});
    golden("edit-tier-draining", &lab.plan(&shorter));
}

#[test]
fn a_category_is_added() {
    golden("edit-category-added", &edit(&orders(), &with(|spec| spec.dead_letter.quarantine = categories())));
}

#[test]
fn a_reason_is_added_to_a_category() {
    let before = with(|spec| spec.dead_letter.quarantine = categories());
    let mut after = before.clone();
    after.dead_letter.quarantine[0].reasons.push("maxlen".into());
    golden("edit-category-reason", &edit(&before, &after));
}

#[test]
fn the_dlq_is_renamed() {
    golden(
        "edit-dlq-renamed",
        &edit(&orders(), &with(|spec| spec.dead_letter.template = "{queue}_error".into())),
    );
}

#[test]
fn the_ladder_is_switched_off() {
    golden("edit-broker-to-none", &edit(&orders(), &with(|spec| spec.mode = Mode::None)));
}

#[test]
fn broker_to_application_waits_for_a_person() {
    golden("edit-broker-to-application", &edit(&orders(), &with(|spec| spec.mode = Mode::Application)));
}

#[test]
fn a_binding_is_removed_from_the_list() {
    golden("edit-binding-removed", &edit(&orders(), &with(|spec| spec.source.bindings.clear())));
}

//! What is declared where nothing is yet, in every mode.

use std::fmt::Write as _;

use redrive::topology::diff::client_contract;
use redrive::topology::model::{Arg, QueueType};
use redrive::topology::spec::{Jitter, Mode, Settings};

use crate::lab::{Lab, checked, orders};
use crate::{NEW, OLD, categories, created, external, golden, lab_with, queue, with};

#[test]
fn create_in_mode_broker() {
    golden("create-broker-4.3", &created(NEW, &orders()));
    golden("create-broker-4.0", &created(OLD, &orders()));
}

#[test]
fn create_in_mode_application() {
    golden("create-application", &created(NEW, &with(|spec| spec.mode = Mode::Application)));
}

#[test]
fn create_in_mode_native() {
    let native = with(|spec| spec.mode = Mode::Native { min: 5_000, max: 600_000, attempts: 8 });
    golden("create-native", &created(NEW, &native));
}

#[test]
fn create_in_mode_none() {
    golden("create-none", &created(NEW, &with(|spec| spec.mode = Mode::None)));
}

#[test]
fn create_with_everything() {
    let spec = with(|spec| {
        spec.jitter = Some(Jitter { percent: 10, shards: 2 });
        spec.dead_letter.quarantine = categories();
        spec.dead_letter.parking_lot = true;
        spec.dead_letter.retention = Some(1_209_600_000);
        spec.dead_letter.max_length = Some(1_000_000);
        spec.source.max_length = Some(50_000);
        spec.source.single_active_consumer = true;
    });
    golden("create-everything", &created(NEW, &spec));
}

#[test]
fn create_with_settings_as_arguments() {
    let spec = with(|spec| {
        spec.settings = Settings::Arguments;
        spec.dead_letter.retention = Some(1_209_600_000);
        spec.source.delivery_limit = Some(5);
    });
    golden("create-arguments", &created(NEW, &spec));
}

#[test]
fn create_around_an_external_source() {
    let lab = lab_with(&[queue("orders", QueueType::Quorum, &[])]);
    golden("create-external", &lab.plan(&checked(&external())));
    golden("create-external-missing", &created(NEW, &external()));
    let own_way = [("x-dead-letter-exchange", Arg::from("legacy"))];
    let lab = lab_with(&[queue("orders", QueueType::Quorum, &own_way)]);
    golden("create-external-own-way", &lab.plan(&checked(&external())));
}

#[test]
fn create_behind_classic_queues() {
    let spec = with(|spec| {
        spec.source.kind = QueueType::Classic;
        spec.source.max_length = Some(1_000);
        spec.retry_type = QueueType::Classic;
        spec.dead_letter.kind = QueueType::Classic;
    });
    golden("create-classic", &created(NEW, &spec));
}

#[test]
fn the_client_contract_lists_what_applications_may_declare() {
    let mut text = String::new();
    for (title, spec) in [
        ("broker", orders()),
        ("application", with(|spec| spec.mode = Mode::Application)),
        ("external", external()),
    ] {
        let pipeline = checked(&spec);
        let desired = Lab::new(NEW).diff(&pipeline).desired;
        writeln!(text, "# {title}").expect("text");
        for queue in client_contract(&pipeline, &desired) {
            writeln!(text, "{}", serde_json::to_string(&queue).expect("JSON")).expect("text");
        }
    }
    golden("client-contract", &text);
}

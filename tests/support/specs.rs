//! Specifications for property tests: every mode and naming, small enough to read.

#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part of it")]

use proptest::prelude::*;
use redrive::topology::model::QueueType;
use redrive::topology::spec::{Category, Delays, Jitter, Mode, Ownership, Settings, SourceBinding, Spec};

use super::lab::orders;

/// What can't be changed in a pipeline's life.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    pub ownership: Ownership,
    pub kind: QueueType,
    pub settings: Settings,
    pub application: bool,
}

pub fn fixed() -> impl Strategy<Value = Fixed> {
    let settings = prop_oneof![
        4 => Just(Settings::Policy { priority: 10 }),
        1 => Just(Settings::Arguments),
    ];
    (any::<bool>(), 0..6_u8, settings, 0..6_u8).prop_map(|(external, kind, settings, mode)| Fixed {
        ownership: if external { Ownership::External } else { Ownership::Managed },
        kind: if kind == 0 { QueueType::Classic } else { QueueType::Quorum },
        settings: if external { Settings::Policy { priority: 10 } } else { settings },
        application: mode == 0,
    })
}

fn delays() -> impl Strategy<Value = Vec<i64>> {
    let pool = vec![1_000_i64, 5_000, 30_000, 120_000, 600_000];
    prop_oneof![
        proptest::sample::subsequence(pool.clone(), 1..=5),
        proptest::sample::subsequence(pool, 1..=5).prop_shuffle(),
    ]
}

fn categories() -> impl Strategy<Value = Vec<Category>> {
    let category = |name: &str, reasons: &[&str], headers: &[(&str, &str)]| Category {
        name: name.into(),
        reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
        headers: headers.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect(),
    };
    let pool = vec![
        category("poison", &["delivery_limit"], &[]),
        category("schema", &[], &[("x-opt-category", "schema")]),
        category("late", &["expired", "maxlen"], &[]),
        category("tenant", &["rejected", "expired"], &[("tenant", "42")]),
    ];
    // The same name with another meaning, so that an edit changes a live category.
    let other = category("schema", &["rejected"], &[("x-opt-category", "schema-2")]);
    let chosen = proptest::sample::subsequence(pool, 0..=4).prop_shuffle();
    (chosen, any::<bool>()).prop_map(move |(mut categories, swap)| {
        if swap && let Some(found) = categories.iter_mut().find(|found| found.name == "schema") {
            *found = other.clone();
        }
        categories
    })
}

fn jitter() -> impl Strategy<Value = Option<Jitter>> {
    prop_oneof![
        3 => Just(None),
        1 => (0..3_u32, 1..4_u32).prop_map(|(percent, shards)| Some(Jitter { percent: percent * 10, shards })),
    ]
}

fn mode(fixed: Fixed) -> BoxedStrategy<Mode> {
    if fixed.application {
        return Just(Mode::Application).boxed();
    }
    let native = Just(Mode::Native { min: 1_000, max: 60_000, attempts: 8 });
    if fixed.kind == QueueType::Classic {
        prop_oneof![3 => Just(Mode::Broker), 1 => Just(Mode::None)].boxed()
    } else {
        prop_oneof![4 => Just(Mode::Broker), 1 => Just(Mode::None), 1 => native].boxed()
    }
}

fn naming() -> impl Strategy<Value = (String, u32)> {
    let templates = ["{queue}.retry.{attempt}", "{queue}.wait.{delay}", "{attempt}-{queue}"];
    (proptest::sample::select(templates.to_vec()), 0..3_u32).prop_map(|(text, from)| (text.to_owned(), from))
}

fn bindings() -> impl Strategy<Value = Vec<SourceBinding>> {
    let keys = proptest::sample::subsequence(vec!["orders.created", "orders.paid", "#"], 0..=3);
    keys.prop_map(|keys| {
        let bind = |key: &str| SourceBinding { exchange: "orders.exchange".into(), routing_key: key.into() };
        keys.into_iter().map(bind).collect()
    })
}

/// A specification with these fixed parts.
pub fn spec(fixed: Fixed) -> impl Strategy<Value = Spec> {
    let dead_letter = (
        proptest::sample::select(vec!["{queue}.dlq", "{queue}_error"]),
        proptest::option::of(Just(86_400_000_i64)),
        (any::<bool>(), prop_oneof![4 => Just(None), 1 => Just(Some(3_i64))], 0..6_u8),
        categories(),
    );
    let source = (bindings(), any::<bool>(), proptest::option::of(1..40_i64));
    (mode(fixed), delays(), jitter(), naming(), dead_letter, source).prop_map(
        move |(mode, delays, jitter, (template, from), dead_letter, source)| {
            let mut spec = orders();
            spec.source.ownership = fixed.ownership;
            spec.source.kind = fixed.kind;
            spec.settings = fixed.settings;
            spec.mode = mode;
            spec.delays = Delays::List(delays);
            spec.jitter = jitter;
            spec.retry_template = template;
            spec.number_from = from;
            (spec.dead_letter.template, spec.dead_letter.retention) =
                (dead_letter.0.to_owned(), dead_letter.1);
            let (parking_lot, group_size, kind) = dead_letter.2;
            (spec.dead_letter.parking_lot, spec.dead_letter.quarantine) = (parking_lot, dead_letter.3);
            let is_classic = kind == 0;
            spec.dead_letter.kind = if is_classic { QueueType::Classic } else { QueueType::Quorum };
            spec.dead_letter.group_size = group_size.filter(|_| !is_classic);
            (spec.source.bindings, spec.source.exclusive_bindings) = (source.0, source.1);
            let has_limit = fixed.kind == QueueType::Quorum && !matches!(mode, Mode::Native { .. });
            spec.source.delivery_limit = source.2.filter(|_| has_limit);
            spec
        },
    )
}

/// Specifications of one pipeline, each an edit of the one before.
pub fn edits(count: usize) -> impl Strategy<Value = (Fixed, Vec<Spec>)> {
    fixed().prop_flat_map(move |fixed| {
        let specs = proptest::collection::vec(spec(fixed), count);
        (Just(fixed), specs)
    })
}

pub fn version() -> impl Strategy<Value = (u32, u32, u32)> {
    proptest::sample::select(vec![(4, 0, 5), (4, 3, 6)])
}

//! Policies of others that are dangerous, hide ours, or have to be merged.

use std::fmt::Write as _;

use redrive::topology::model::{ApplyTo, Arg, Policy, QueueType};
use redrive::topology::spec::Spec;

use crate::lab::{Lab, checked, orders};
use crate::world::Write;
use crate::{NEW, external, golden, lab_with, policy, queue};

#[test]
fn dangerous_policies_are_refused() {
    let keys: [(&str, Arg); 11] = [
        ("expires", 60_000.into()),
        ("message-ttl", 1_000.into()),
        ("max-length", 10.into()),
        ("max-length-bytes", 10.into()),
        ("dead-letter-exchange", "elsewhere".into()),
        ("dead-letter-routing-key", "elsewhere".into()),
        ("dead-letter-strategy", "at-most-once".into()),
        ("overflow", "drop-head".into()),
        ("delivery-limit", 3.into()),
        ("consumer-timeout", 60_000.into()),
        ("alternate-exchange", "elsewhere".into()),
    ];
    for (key, value) in keys {
        let mut lab = Lab::new(NEW);
        let mut foreign = policy("theirs", 5, &[(key, value)]);
        foreign.apply_to = if key == "alternate-exchange" { ApplyTo::Exchanges } else { ApplyTo::Queues };
        lab.world.observed.policies.push(foreign.clone());
        let mut text = format!("# as a user policy\n{}", lab.plan(&checked(&orders())));
        lab.world.observed.policies.clear();
        lab.world.observed.operator_policies = Some(vec![foreign]);
        write!(text, "# as an operator policy\n{}", lab.plan(&checked(&orders()))).expect("text");
        let refused = text.lines().filter(|line| line.starts_with('!') || line.starts_with('#'));
        let refused: Vec<&str> = refused.collect();
        golden(&format!("danger-{key}"), &format!("{}\n", refused.join("\n")));
    }
}

#[test]
fn a_policy_that_hides_ours_is_refused_at_first_and_reported_later() {
    let mut lab = Lab::new(NEW);
    let theirs =
        Policy { pattern: "^orders$".into(), ..policy("theirs", 10, &[("consumer-timeout", 60_000.into())]) };
    lab.world.observed.policies.push(theirs.clone());
    let mut text = format!("# at first\n{}", lab.plan(&checked(&orders())));
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.world.observed.policies.push(theirs);
    write!(text, "# later\n{}", lab.plan(&checked(&orders()))).expect("text");
    golden("policy-hidden", &text);
}

#[test]
fn an_external_source_with_a_policy_of_its_own() {
    let own = Policy { pattern: "^orders$".into(), ..policy("theirs", 1, &[("max-length", 1_000.into())]) };
    let mut lab = lab_with(&[queue("orders", QueueType::Quorum, &[]), Write::PutPolicy(own)]);
    let mut text = format!("# refused\n{}", lab.plan(&checked(&external())));
    let merging = Spec { merge_policy: true, ..external() };
    write!(text, "# merged\n{}", lab.plan(&checked(&merging))).expect("text");
    for (key, value) in [("overflow", Arg::from("drop-head")), ("expires", 1_000.into())] {
        lab.world.observed.policies[0].definition = [(key.to_owned(), value)].into();
        write!(text, "# with {key}\n{}", lab.plan(&checked(&merging))).expect("text");
    }
    golden("merge-policy", &text);
}

//! What the comparison sees, on the manifests that people apply.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, ParamKind, ParamRef, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
    Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::*;

const IDENTITY: &str = "replay-identity.redrive.dev";

fn ours() -> Vec<ValidatingAdmissionPolicy> {
    policies(&MANIFESTS).unwrap()
}

/// All that the manifests install.
fn installed() -> Vec<Installed> {
    let bindings = MANIFESTS.iter().flat_map(|text| serde_yaml::Deserializer::from_str(text));
    let bindings = bindings.map(|document| serde_yaml::Value::deserialize(document).unwrap());
    let bindings = bindings.filter(|document| document["kind"] == "ValidatingAdmissionPolicyBinding");
    let bindings = bindings.map(|document| serde_yaml::from_value(document).unwrap());
    let pair = |(policy, binding)| Installed { policy: Some(policy), binding: Some(binding) };
    ours().into_iter().zip(bindings).map(pair).collect()
}

/// The findings after a change to what is installed under the first name.
fn found_after(change: impl FnOnce(&mut Installed)) -> Vec<Fault> {
    let mut installed = installed();
    change(&mut installed[0]);
    match judge(&ours(), &installed) {
        Verdict::Verified { .. } => Vec::new(),
        Verdict::Unverified(findings) => {
            assert!(findings.iter().all(|finding| finding.policy == IDENTITY), "{findings:?}");
            findings.into_iter().map(|finding| finding.fault).collect()
        }
    }
}

fn found_in_policy(change: impl FnOnce(&mut ValidatingAdmissionPolicySpec)) -> Vec<Fault> {
    found_after(|installed| change(installed.policy.as_mut().unwrap().spec.as_mut().unwrap()))
}

fn found_in_binding(change: impl FnOnce(&mut ValidatingAdmissionPolicyBindingSpec)) -> Vec<Fault> {
    found_after(|installed| change(installed.binding.as_mut().unwrap().spec.as_mut().unwrap()))
}

fn some_labels() -> Option<LabelSelector> {
    Some(LabelSelector { match_labels: Some([("a".into(), "b".into())].into()), ..Default::default() })
}

#[test]
fn the_manifests_hold_four_policies_by_the_names_of_their_files() {
    let names: Vec<_> = ours().iter().map(|policy| name_of(policy).to_owned()).collect();
    let expected = [
        IDENTITY,
        "replay-after-approval.redrive.dev",
        "replay-worker-status.redrive.dev",
        "pipeline-floor.redrive.dev",
    ];
    assert_eq!(names, expected);
}

#[test]
fn what_the_manifests_install_is_verified() {
    assert_eq!(judge(&ours(), &installed()), Verdict::Verified { since: None });
}

#[test]
fn it_is_verified_since_the_youngest_policy_or_binding() {
    let time = |text: &str| Some(Time(text.parse().unwrap()));
    let mut installed = installed();
    installed[0].policy.as_mut().unwrap().metadata.creation_timestamp = time("2026-11-29T22:00:00Z");
    installed[1].binding.as_mut().unwrap().metadata.creation_timestamp = time("2026-11-29T23:00:00Z");
    installed[2].policy.as_mut().unwrap().metadata.creation_timestamp = time("2026-11-29T21:00:00Z");
    assert_eq!(judge(&ours(), &installed), Verdict::Verified { since: time("2026-11-29T23:00:00Z") });
}

#[test]
fn it_vouches_for_what_is_younger_than_the_policies() {
    let time = |text: &str| Time(text.parse().unwrap());
    let verified = Verdict::Verified { since: Some(time("2026-11-29T22:00:00Z")) };
    assert!(verified.vouches_for(&time("2026-11-29T22:00:05Z")));
    assert!(!verified.vouches_for(&time("2026-11-29T22:00:04Z")), "the policies may not have been in effect");
    assert!(!verified.vouches_for(&time("2026-11-29T21:00:00Z")));
    let late = time("2026-11-30T22:00:00Z");
    assert!(!Verdict::Verified { since: None }.vouches_for(&late), "nobody knows since when");
    assert!(!judge(&ours(), &[]).vouches_for(&late));
}

#[test]
fn a_cluster_with_nothing_names_every_policy() {
    let verdict = judge(&ours(), &[]);
    assert!(!verdict.is_verified());
    assert_eq!(
        verdict.to_string(),
        "nobody can tell who approved: the policy replay-identity.redrive.dev is missing, the policy \
         replay-after-approval.redrive.dev is missing, the policy replay-worker-status.redrive.dev is \
         missing, the policy pipeline-floor.redrive.dev is missing; apply the manifests in admission/ of \
         this version"
    );
}

#[test]
fn what_the_server_fills_in_makes_no_difference() {
    let found = found_after(|installed| {
        let policy = installed.policy.as_mut().unwrap().spec.as_mut().unwrap();
        policy.failure_policy = None;
        let constraints = policy.match_constraints.as_mut().unwrap();
        constraints.match_policy = Some("Equivalent".into());
        constraints.namespace_selector = Some(LabelSelector::default());
        constraints.object_selector = Some(LabelSelector::default());
        constraints.resource_rules.as_mut().unwrap()[0].scope = Some("*".into());
        let binding = installed.binding.as_mut().unwrap().spec.as_mut().unwrap();
        binding.match_resources = Some(MatchResources {
            match_policy: Some("Equivalent".into()),
            namespace_selector: Some(LabelSelector::default()),
            object_selector: Some(LabelSelector::default()),
            ..MatchResources::default()
        });
    });
    assert_eq!(found, []);
}

#[test]
fn stricter_or_reworded_is_as_good() {
    let found = found_after(|installed| {
        let policy = installed.policy.as_mut().unwrap().spec.as_mut().unwrap();
        let rules = policy.validations.as_mut().unwrap();
        rules[0].message = Some("bitte den eigenen Namen angeben".into());
        rules.push(Validation { expression: "false".into(), ..Validation::default() });
        let binding = installed.binding.as_mut().unwrap().spec.as_mut().unwrap();
        binding.validation_actions = Some(vec!["Audit".into(), "Deny".into()]);
    });
    assert_eq!(found, []);
}

#[test]
fn a_missing_policy_or_binding_is_found() {
    assert_eq!(found_after(|installed| installed.policy = None), [Fault::PolicyMissing]);
    assert_eq!(found_after(|installed| installed.binding = None), [Fault::BindingMissing]);
    assert_eq!(found_after(|installed| *installed = Installed::default()), [Fault::PolicyMissing]);
}

#[test]
fn every_rule_that_is_missing_or_changed_is_found() {
    let rules = ours()[0].spec.clone().unwrap().validations.unwrap();
    for (index, rule) in rules.iter().enumerate() {
        let lacking = vec![Fault::RuleMissing(rule.message.clone().unwrap())];
        let removed = found_in_policy(|policy| {
            policy.validations.as_mut().unwrap().remove(index);
        });
        assert_eq!(removed, lacking, "removed");
        let softened = found_in_policy(|policy| {
            policy.validations.as_mut().unwrap()[index].expression.push_str(" || true");
        });
        assert_eq!(softened, lacking, "softened");
    }
}

#[test]
fn a_policy_that_lets_pass_or_looks_away_is_found() {
    assert_eq!(found_in_policy(|policy| policy.failure_policy = Some("Ignore".into())), [Fault::FailsOpen]);
    assert_eq!(
        found_in_policy(|policy| policy.param_kind = Some(ParamKind::default())),
        [Fault::Parameterised]
    );
    assert_eq!(
        found_in_policy(|policy| {
            let exception = MatchCondition { name: "not-me".into(), expression: "false".into() };
            policy.match_conditions.as_mut().unwrap().push(exception);
        }),
        [Fault::Rewritten]
    );
    assert_eq!(
        found_in_policy(|policy| {
            policy.variables.as_mut().unwrap()[0].expression = "'requester@example.com'".into();
        }),
        [Fault::Rewritten]
    );
}

#[test]
fn a_policy_that_matches_less_is_found() {
    let narrowings: [fn(&mut MatchResources); 6] = [
        |constraints| constraints.namespace_selector = some_labels(),
        |constraints| constraints.object_selector = some_labels(),
        |constraints| constraints.exclude_resource_rules = constraints.resource_rules.clone(),
        |constraints| constraints.match_policy = Some("Exact".into()),
        |constraints| {
            constraints.resource_rules.as_mut().unwrap()[0].operations = Some(vec!["CREATE".into()])
        },
        |constraints| constraints.resource_rules.as_mut().unwrap()[0].resource_names = Some(vec!["a".into()]),
    ];
    for (index, narrow) in narrowings.into_iter().enumerate() {
        let found = found_in_policy(|policy| narrow(policy.match_constraints.as_mut().unwrap()));
        assert_eq!(found, [Fault::MatchesOthers], "narrowing {index}");
    }
}

#[test]
fn a_binding_that_does_not_refuse_everywhere_is_found() {
    let actions = |actions: &[&str]| Some(actions.iter().map(ToString::to_string).collect());
    for warning in [actions(&["Warn"]), actions(&["Audit"]), actions(&["Warn", "Audit"]), None] {
        let found = found_in_binding(|binding| binding.validation_actions = warning);
        assert_eq!(found, [Fault::NotDenying]);
    }
    let narrowed = |resources| found_in_binding(|binding| binding.match_resources = Some(resources));
    let namespaces = MatchResources { namespace_selector: some_labels(), ..MatchResources::default() };
    assert_eq!(narrowed(namespaces), [Fault::Narrowed]);
    let objects = MatchResources { object_selector: some_labels(), ..MatchResources::default() };
    assert_eq!(narrowed(objects), [Fault::Narrowed]);
    let rules = Some(vec![NamedRuleWithOperations::default()]);
    let excluding = MatchResources { exclude_resource_rules: rules.clone(), ..MatchResources::default() };
    assert_eq!(narrowed(excluding), [Fault::Narrowed]);
    let including = MatchResources { resource_rules: rules, ..MatchResources::default() };
    assert_eq!(narrowed(including), [Fault::Narrowed]);
    assert_eq!(
        found_in_binding(|binding| binding.policy_name = Some("another".into())),
        [Fault::BindsAnother]
    );
    assert_eq!(
        found_in_binding(|binding| binding.param_ref = Some(ParamRef::default())),
        [Fault::Parameterised]
    );
}

/// The faults of the floor's policy with another expression for the cluster's floor.
fn with_cluster_floor(expression: &str) -> bool {
    let mut installed = installed();
    let policy = installed[3].policy.as_mut().unwrap().spec.as_mut().unwrap();
    let floor = &mut policy.variables.as_mut().unwrap()[0];
    assert_eq!(floor.name, CLUSTER_FLOOR);
    floor.expression = expression.into();
    judge(&ours(), &installed).is_verified()
}

#[test]
fn a_cluster_may_set_its_own_floor_and_nothing_else() {
    assert!(with_cluster_floor("'requireApproval=true,maxRate=50'"));
    assert!(!with_cluster_floor("request.userInfo.username == 'me' ? 'maxRate=50' : ''"));
    assert!(!with_cluster_floor("'' + request.name + ''"));
    assert!(!with_cluster_floor("'"));
}

#[test]
fn the_operators_role_may_read_these_policies_by_name() {
    let roles = include_str!("../../../../admission/roles.yaml");
    let named: Vec<serde_yaml::Value> = serde_yaml::Deserializer::from_str(roles)
        .map(|document| serde_yaml::Value::deserialize(document).unwrap())
        .filter(|role| role["metadata"]["name"] == "redrive-operator")
        .flat_map(|role| role["rules"].as_sequence().unwrap().clone())
        .filter(|rule| rule["apiGroups"][0] == "admissionregistration.k8s.io")
        .flat_map(|rule| rule["resourceNames"].as_sequence().unwrap().clone())
        .collect();
    assert_eq!(named, ours().iter().map(|policy| name_of(policy).into()).collect::<Vec<serde_yaml::Value>>());
}

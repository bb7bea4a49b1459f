//! Whether the operator sees that approvals are checked, on a real API server.

use redrive::controller::dlq_replay::verifiability::{Verdict, policies, verify, verify_against};
use serde_json::json;

use crate::place::{Place, until};

const VALIDATING: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

async fn verdict(place: &Place) -> Verdict {
    let texts = place.texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    verify_against(&place.admin, &policies(&texts).unwrap()).await.unwrap()
}

fn unverified(findings: &str) -> String {
    format!("nobody can tell who approved: {findings}; apply the manifests in admission/ of this version")
}

#[tokio::test]
async fn policies_count_only_while_all_of_them_are_enforced() {
    let place = Place::new("verified").await;
    let Verdict::Verified { since: Some(since) } = verdict(&place).await else {
        panic!("all is installed: {}", verdict(&place).await);
    };

    let binding = place.installed(BINDING, "replay-identity");
    let name = binding["metadata"]["name"].as_str().unwrap();
    let mut warning = binding.clone();
    warning["spec"]["validationActions"] = json!(["Warn"]);
    place.apply(&warning).await;
    assert_eq!(verdict(&place).await.to_string(), unverified(&format!("the binding {name} does not deny")));

    let mut narrowed = binding.clone();
    narrowed["spec"]["matchResources"] = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
    place.apply(&narrowed).await;
    assert_eq!(
        verdict(&place).await.to_string(),
        unverified(&format!("the binding {name} leaves requests out"))
    );

    place.delete(&binding).await;
    let expected = unverified(&format!("the policy {name} has no binding of that name"));
    assert_eq!(verdict(&place).await.to_string(), expected);

    // Recreated: what happened in between can't be believed.
    until("a second passes", || async {
        place.apply(&binding).await;
        let now = verdict(&place).await;
        let younger = matches!(&now, Verdict::Verified { since: Some(now) } if *now > since);
        if !younger {
            place.delete(&binding).await;
        }
        younger
    })
    .await;

    let policy = place.installed(VALIDATING, "pipeline-floor");
    let mut open = policy.clone();
    open["spec"]["failurePolicy"] = "Ignore".into();
    place.apply(&open).await;
    let name = policy["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        verdict(&place).await.to_string(),
        unverified(&format!("the policy {name} lets pass what it can't judge"))
    );
    place.delete(&policy).await;
    assert_eq!(verdict(&place).await.to_string(), unverified(&format!("the policy {name} is missing")));
    place.leave().await;
}

/// The operator's role allows to read our policies by name, and no others.
#[tokio::test]
async fn the_operators_role_is_enough_to_find_out() {
    let place = Place::new("finds-out").await;
    let operator = place.account("redrive", &["redrive-operator"]).await;
    let unreadable = |verdict: &Verdict| verdict.to_string().contains("the operator may not read the policy");
    assert!(unreadable(&verify(&operator.client).await.unwrap()), "no right is bound in the whole cluster");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": place.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "redrive-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "redrive", "namespace": place.namespace}],
    });
    place.apply(&binding).await;
    until("the policies can be read", || async { !unreadable(&verify(&operator.client).await.unwrap()) })
        .await;
    let texts = place.texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let others = verify_against(&operator.client, &policies(&texts).unwrap()).await.unwrap();
    assert!(unreadable(&others), "other policies are none of its business: {others}");
    place.delete(&binding).await;
    place.leave().await;
}

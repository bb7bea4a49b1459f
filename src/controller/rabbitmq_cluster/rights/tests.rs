use serde_json::json;

use super::*;
use crate::controller::rabbitmq_cluster::facts::tests::facts;

fn with(allowed: &str, grants: &str) -> Facts {
    let annotations =
        json!({"rabbitmq.com/topology-allowed-namespaces": allowed, "redrive.dev/grants": grants});
    facts(json!({"metadata": {"annotations": annotations}}))
}

fn uses() -> [Use; 2] {
    [Use::queue("source.queue.name", "orders.queue"), Use::exchange("source.exchange.name", "events")]
}

fn refused(facts: &Facts, namespace: &str, everything: bool) -> Option<String> {
    check_names(facts, namespace, "/shop", &uses(), everything).err().map(|error| error.to_string())
}

#[test]
fn the_clusters_own_namespace_needs_no_leave() {
    assert_eq!(refused(&with("", ""), "messaging", false), None);
    assert_eq!(refused(&with("", "malformed"), "messaging", false), None);
}

#[test]
fn another_namespace_needs_its_place_in_the_list_and_a_grant() {
    let all = "shop=/shop";
    for (allowed, grants, namespace, text) in [
        ("", all, "shop", "adds it to the annotation rabbitmq.com/topology-allowed-namespaces"),
        ("billing", all, "shop", "does not allow the namespace \"shop\""),
        (
            "*",
            "",
            "shop",
            "nothing on the vhost \"/shop\": its owner adds \"shop=/shop:events+orders.queue\"",
        ),
        ("shop", "shop=/other", "shop", "nothing on the vhost \"/shop\""),
        ("shop, billing", all, "billing", "grants the namespace \"billing\" nothing"),
        ("shop", "shop=/shop:orders.", "shop", "exchange \"events\" (source.exchange.name): use names"),
        (
            "shop",
            "shop=/shop:orders.",
            "shop",
            "adds \"shop=/shop:events\" to the annotation redrive.dev/grants",
        ),
        ("shop", "billing=/b; shop", "shop", "grants nobody anything, since its entry 2 names no vhost"),
    ] {
        let said = refused(&with(allowed, grants), namespace, false).unwrap_or_default();
        assert!(said.contains(text), "{allowed} {grants}: {said}");
    }
    for (allowed, grants) in [("shop", all), ("billing, shop ", all), ("*", "shop=/shop:orders.+events")] {
        assert_eq!(refused(&with(allowed, grants), "shop", false), None, "{allowed} {grants}");
    }
}

#[test]
fn with_cluster_wide_rights_the_list_alone_decides() {
    assert_eq!(refused(&with("shop", ""), "shop", true), None);
    assert_eq!(refused(&with("shop", "malformed"), "shop", true), None);
    assert!(refused(&with("billing", "shop=/shop"), "shop", true).is_some());
}

#[test]
fn a_malformed_grant_of_another_tenant_is_not_repeated() {
    let said = refused(&with("*", "rival=/secret-vhost:; shop=/shop"), "shop", false).unwrap();
    assert!(!said.contains("rival") && !said.contains("secret-vhost"), "{said}");
}

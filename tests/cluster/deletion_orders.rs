//! A pipeline and what its deletion needs go in every order: it never sticks, and what stays on
//! the broker is told.

use futures::StreamExt;
use reqwest::Method;
use serde_json::Value;

use crate::deletion::{deletion, queue_names};
use crate::support::world::{POLL, World};

/// Worlds at a time.
const AT_ONCE: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Secret,
    /// The rights of the operator's user in the vhost.
    Rights,
    Vhost,
    Pipeline,
}

const STEPS: [Step; 4] = [Step::Secret, Step::Rights, Step::Vhost, Step::Pipeline];

fn orders_of(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let first = |step: &Step| {
        let rest: Vec<Step> = steps.iter().copied().filter(|other| other != step).collect();
        let step = *step;
        orders_of(&rest).into_iter().map(move |order| [vec![step], order].concat())
    };
    steps.iter().flat_map(first).collect()
}

async fn take(world: &World, step: Step) {
    match step {
        Step::Secret => world.delete_secret().await,
        // They are gone where the vhost is.
        Step::Rights => {
            let path = ["permissions", &world.vhost, &world.namespace];
            world.broker.call(Method::DELETE, &path, Value::Null).await;
        }
        Step::Vhost => world.broker.delete(&["vhosts", &world.vhost]).await,
        Step::Pipeline => world.delete("orders").await,
    }
}

/// `slowly` lets the operator see each step by itself.
async fn ends(spec: &Value, order: &[Step], slowly: bool) {
    let mut world = World::new("goes").await;
    world.as_user("pass", "policymaker", ".*").await;
    world.start();
    world.create_ready("orders", spec.clone()).await;
    for (index, step) in order.iter().enumerate() {
        if slowly && index > 0 {
            tokio::time::sleep(POLL * 3 / 2).await;
        }
        // The broker still shows what is left.
        if index == order.len() - 1 && *step == Step::Vhost {
            world.until_gone("orders").await;
            if !queue_names(&world).await.is_empty() {
                let event = world.until_event("orders", "Orphaned").await;
                assert!(event.contains("queue orders.queue"), "{order:?}: {event}");
            }
        }
        take(&world, *step).await;
    }
    world.until_gone("orders").await;
    world.leave().await;
}

async fn each_order_ends(policy: &str) {
    let orders = orders_of(&STEPS);
    assert_eq!(orders.len(), 24);
    let spec = deletion(policy);
    let runs = orders.iter().flat_map(|order| [false, true].map(|slowly| ends(&spec, order, slowly)));
    futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_order_ends_with_delete() {
    each_order_ends("Delete").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_order_ends_with_delete_if_empty() {
    each_order_ends("DeleteIfEmpty").await;
}

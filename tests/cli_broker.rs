//! `redrive plan --broker` against real brokers: start them with `hack/dev up` and
//! name them with `eval "$(hack/dev env)"`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "support/command.rs"]
mod command;

use std::collections::{BTreeMap, BTreeSet};

use command::{Ended, feed};
use redrive::api::RetryPipelineSpec;
use redrive::broker::connection::Parts;
use redrive::broker::{AddressGuard, Endpoint, Management};
use redrive::topology::diff::{self, Context};
use redrive::topology::effective::PolicyIndex;
use redrive::topology::model::{Binding, Destination, Exchange, Queue, QueueType};
use redrive::topology::ownership::Inventory;
use redrive::topology::plan::Step;
use redrive::topology::spec::Identity;
use redrive::topology::validate;
use reqwest::Url;
use rstest::rstest;
use serde_json::Value;

/// A vhost of a real broker that goes when the test ends.
struct Vhost {
    uri: Url,
    name: String,
    management: Management,
}

impl Vhost {
    async fn new(version: &str, test: &str) -> Self {
        // Two providers are linked in; the first test of this process chooses.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let uri = broker(version);
        let name = format!("cli-{test}-{version}-{}", std::process::id());
        let mut plain = uri.clone();
        plain.set_username("").unwrap();
        plain.set_password(None).unwrap();
        let endpoint = Endpoint::new(Parts {
            uri: plain.as_str(),
            username: uri.username(),
            password: uri.password().unwrap(),
            ..Parts::default()
        })
        .unwrap();
        let management = Management::new(&endpoint, AddressGuard::new(true, [])).unwrap();
        let vhost = Self { uri, name, management };
        vhost.call(reqwest::Method::PUT).await;
        vhost
    }

    async fn call(&self, method: reqwest::Method) {
        let url = self.uri.join(&format!("/api/vhosts/{}", self.name)).unwrap();
        reqwest::Client::new().request(method, url).send().await.unwrap().error_for_status().unwrap();
    }

    /// A manifest whose pipeline lives in this vhost.
    fn manifest(&self, more: &str) -> String {
        format!(
            "apiVersion: redrive.dev/v1alpha1\nkind: RetryPipeline\nmetadata: {{name: orders, namespace: shop}}\n\
             spec:\n  broker: {{secretRef: {{name: s}}}}\n  vhost: {}\n{more}",
            self.name
        )
    }

    fn orders(&self) -> String {
        self.manifest(
            "  source:\n    queue: {name: orders}\n    exchange: {name: events, type: topic}\n    bindings: [{exchange: \
             events, routingKey: order.created}]\n  retry: {delays: [1s, 2s]}\n  deadLetter: {retention: 14d}\n",
        )
    }

    /// Does what the operator of a cluster would do for a manifest.
    async fn apply(&self, manifest: &str, cluster: &str) {
        let document: Value = serde_yaml::from_str(manifest).unwrap();
        let spec: RetryPipelineSpec = serde_json::from_value(document["spec"].clone()).unwrap();
        let identity = Identity {
            cluster: cluster.to_owned(),
            namespace: "shop".to_owned(),
            name: "orders".to_owned(),
            uid: format!("uid-in-{cluster}"),
        };
        let pipeline = validate::validate(identity, spec.to_topology()).unwrap();
        let facts = self.management.overview().await.unwrap().facts;
        let observed = self.management.snapshot(&self.name).await.unwrap();
        let difference = diff::diff(&Context {
            pipeline: &pipeline,
            facts: &facts,
            observed: &observed,
            policies: &PolicyIndex::new(&observed.policies, None),
            inventory: &Inventory::new(),
            adopt: true,
            proven_empty: &BTreeSet::new(),
            contested: &BTreeMap::new(),
            edited: true,
            consent: None,
        });
        assert_eq!(difference.plan.blocked, []);
        for planned in difference.plan.steps {
            self.run(planned.step).await;
        }
    }

    async fn run(&self, step: Step) {
        let (management, vhost) = (&self.management, self.name.as_str());
        match step {
            Step::CreateQueue { queue, marker } => {
                management.put_queue(vhost, &queue).await.unwrap();
                management.bind(vhost, &marker).await.unwrap();
            }
            Step::CreateExchange { exchange, marker } => {
                management.put_exchange(vhost, &exchange).await.unwrap();
                if let Some(marker) = marker {
                    management.bind(vhost, &marker).await.unwrap();
                }
            }
            Step::Mark(binding) | Step::Bind(binding) => management.bind(vhost, &binding).await.unwrap(),
            Step::SetPolicy(policy) => {
                management.put_policy(vhost, &policy).await.unwrap();
            }
            other => panic!("a first plan does not contain {other}"),
        }
    }

    fn plan(&self, manifest: &str, arguments: &[&str]) -> Ended {
        plan(self.uri.as_str(), manifest, arguments, &[])
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        // A destructor can't await; a thread of its own can.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(self.call(reqwest::Method::DELETE));
            });
        });
    }
}

fn broker(version: &str) -> Url {
    let variable = format!("REDRIVE_BROKER_{version}_URI");
    let uri = std::env::var(&variable);
    let uri = uri.unwrap_or_else(|_| panic!("{variable} is not set: run eval \"$(hack/dev env)\" first"));
    uri.parse().unwrap()
}

fn plan(uri: &str, manifest: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = command::redrive(&["plan", "-f", "-", "--broker", uri]);
    feed(command.args(arguments).envs(variables.iter().copied()), manifest).into()
}

const ANYWHERE: &str = "apiVersion: redrive.dev/v1alpha1\nkind: RetryPipeline\nmetadata: {name: orders}\nspec:\n  \
                        broker: {secretRef: {name: s}}\n  vhost: no-such-vhost\n  source: {queue: {name: orders}}\n";

#[test]
fn a_broker_that_is_not_there_is_an_error() {
    let ended = plan("http://user:secret@127.0.0.1:1", ANYWHERE, &[], &[]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (1, "error: 127.0.0.1:1 can't be reached: connection refused\n")
    );
}

#[rstest]
fn a_wrong_password_is_an_error_and_is_not_repeated(#[values("43", "40")] version: &str) {
    let uri = broker(version);
    let ended = plan(uri.as_str(), ANYWHERE, &[], &[("REDRIVE_BROKER_PASSWORD", "not-the-password")]);
    assert_eq!(ended.code, 1);
    let (host, port, user) = (uri.host_str().unwrap(), uri.port().unwrap(), uri.username());
    let why = format!("error: {host}:{port} refuses the user {user:?}: check username and password\n");
    assert_eq!(ended.err, why);
}

#[rstest]
fn a_missing_vhost_is_an_error_of_its_pipeline(#[values("43", "40")] version: &str) {
    let ended = plan(broker(version).as_str(), ANYWHERE, &[], &[]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (1, "error: standard input, document 1: the vhost \"no-such-vhost\" does not exist\n")
    );
}

#[rstest]
#[tokio::test]
async fn an_empty_vhost_needs_everything(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "empty").await;
    let ended = vhost.plan(&vhost.orders(), &["--cluster-id", "test"]);
    assert_eq!((ended.code, ended.err.as_str()), (2, ""));
    for wanted in
        ["+ queue    orders.dlq", "~ policy   redrive:test:shop:orders:dlq", "key \"order.created\""]
    {
        assert!(ended.out.contains(wanted), "{wanted} is not in {}", ended.out);
    }
    assert!(ended.out.contains("about 0.0"), "the cost is missing in {}", ended.out);
}

#[rstest]
#[tokio::test]
async fn a_settled_pipeline_needs_nothing(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "settled").await;
    vhost.apply(&vhost.orders(), "test").await;
    // Cluster and UID come from the markers; an id that is given must be the same.
    for arguments in [&[][..], &["--cluster-id", "test"]] {
        let ended = vhost.plan(&vhost.orders(), arguments);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
        assert!(ended.out.contains("nothing to do"), "{}", ended.out);
        assert!(!ended.out.contains("Cost"), "{}", ended.out);
    }
    let ended = vhost.plan(&vhost.orders(), &["-o", "json"]);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["outcome"], "nothing");
    assert_eq!(report["pipelines"][0]["steps"], serde_json::json!([]));
    assert_eq!(report["pipelines"][0]["cost"]["policyWrites"], 0);
}

#[rstest]
#[tokio::test]
async fn damage_is_named(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "damaged").await;
    vhost.apply(&vhost.orders(), "test").await;
    let way_back = Binding {
        source: "orders.return.1".to_owned(),
        destination: Destination::Queue("orders".to_owned()),
        routing_key: String::new(),
        arguments: [].into(),
    };
    vhost.management.unbind(&vhost.name, &way_back).await.unwrap();
    vhost.management.delete_queue(&vhost.name, "orders.retry.0").await.unwrap();
    vhost.management.delete_policy(&vhost.name, "redrive:test:shop:orders:dlq").await.unwrap();
    let ended = vhost.plan(&vhost.orders(), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (2, ""), "{}", ended.out);
    for wanted in [
        "+ binding  orders.return.1 -> queue orders\n",
        "+ queue    orders.retry.0 ",
        "~ policy   redrive:test:shop:orders:dlq on quorum_queues",
        "1 policy write, about 0.0",
    ] {
        assert!(ended.out.contains(wanted), "{wanted} is not in {}", ended.out);
    }
    assert!(!ended.out.contains("orders.retry.1 {"), "what is whole is not planned: {}", ended.out);
}

#[rstest]
#[tokio::test]
async fn an_edit_shows_as_changes(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "edited").await;
    vhost.apply(&vhost.orders(), "test").await;
    let ended = vhost.plan(&vhost.orders().replace("[1s, 2s]", "[1s, 3s]"), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (2, ""), "{}", ended.out);
    assert!(
        ended.out.contains("+ queue    orders.retry.1.g2 "),
        "a new delay is a new generation: {}",
        ended.out
    );
    let ended = vhost.plan(&vhost.orders().replace("14d", "7d"), &[]);
    assert_eq!(ended.code, 2);
    assert!(ended.out.contains("message-ttl: 604800000"), "{}", ended.out);
}

#[rstest]
#[tokio::test]
async fn an_edit_that_waits_for_a_person_names_the_hash_that_allows_it(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "consent").await;
    vhost.apply(&vhost.orders(), "test").await;
    let edited = vhost.orders().replace("retry: {", "retry: {mode: Application, ");
    let ended = vhost.plan(&edited, &[]);
    assert_eq!((ended.code, ended.err.as_str()), (1, ""), "{}", ended.out);
    let (_, after) = ended.out.split_once("redrive.dev/allow-recreate: \"").expect(&ended.out);
    let hash = after.split('"').next().unwrap();
    assert!(
        ended.out.contains("? spec.retry.mode from Broker to Application makes anew: orders, "),
        "{}",
        ended.out
    );
    let annotations = format!("namespace: shop, annotations: {{redrive.dev/allow-recreate: \"{hash}\"}}}}");
    let ended = vhost.plan(&edited.replace("namespace: shop}", &annotations), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (2, ""), "{}", ended.out);
    assert!(ended.out.contains("+ queue    orders.moving "), "{}", ended.out);
}

#[rstest]
#[tokio::test]
async fn what_belongs_to_somebody_else_blocks(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "foreign").await;
    let arguments = [("x-overflow", "reject-publish".into()), ("x-delivery-limit", (-1).into())];
    let arguments = arguments.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let queue = Queue { name: "orders.dlq".to_owned(), kind: QueueType::Quorum, arguments };
    vhost.management.put_queue(&vhost.name, &queue).await.unwrap();
    let ended = vhost.plan(&vhost.orders(), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (1, ""), "{}", ended.out);
    assert!(ended.out.contains("! queue orders.dlq: exists already and is not ours"), "{}", ended.out);
    assert!(!ended.out.contains("+ queue"), "nothing is planned where somebody else owns: {}", ended.out);
    let ended = vhost.plan(&format!("{}  adopt: true\n", vhost.orders()), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (2, ""), "{}", ended.out);
    assert!(ended.out.contains("+ marker   queue orders.dlq"), "{}", ended.out);
}

#[rstest]
#[tokio::test]
async fn what_can_not_be_changed_blocks(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "mismatch").await;
    let queue = Queue { name: "orders".to_owned(), kind: QueueType::Quorum, arguments: [].into() };
    vhost.management.put_queue(&vhost.name, &queue).await.unwrap();
    let ended = vhost.plan(&vhost.orders(), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (1, ""), "{}", ended.out);
    let why = "! queue orders: x-dead-letter-exchange is none where \"orders.dlx\" is wanted";
    assert!(ended.out.contains(why), "{}", ended.out);
}

#[rstest]
#[tokio::test]
async fn an_external_source_must_exist(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "external").await;
    let manifest = vhost.manifest("  source: {ownership: External, queue: {name: orders}}\n");
    let ended = vhost.plan(&manifest, &[]);
    assert_eq!(ended.code, 1);
    assert!(ended.out.contains("! queue orders: does not exist"), "{}", ended.out);
    let queue = Queue { name: "orders".to_owned(), kind: QueueType::Quorum, arguments: [].into() };
    vhost.management.put_queue(&vhost.name, &queue).await.unwrap();
    let ended = vhost.plan(&manifest, &[]);
    assert_eq!((ended.code, ended.err.as_str()), (2, ""), "{}", ended.out);
}

#[rstest]
#[tokio::test]
async fn markers_of_several_clusters_need_a_choice(#[values("43", "40")] version: &str) {
    let vhost = Vhost::new(version, "clusters").await;
    vhost.apply(&vhost.orders(), "east").await;
    let shared = Exchange {
        name: "other".to_owned(),
        kind: "topic".to_owned(),
        internal: false,
        arguments: [].into(),
    };
    vhost.management.put_exchange(&vhost.name, &shared).await.unwrap();
    let west = Identity {
        cluster: "west".to_owned(),
        namespace: "shop".to_owned(),
        name: "orders".to_owned(),
        uid: "u".to_owned(),
    };
    let marker = redrive::topology::ownership::marker(&west, Destination::Exchange("other".to_owned()));
    vhost.management.bind(&vhost.name, &marker).await.unwrap();
    let ended = vhost.plan(&vhost.orders(), &[]);
    let why = "error: standard input, document 1: the broker has objects of shop/orders from several clusters: pass \
               --cluster-id with one of east, west\n";
    assert_eq!((ended.code, ended.err.as_str()), (1, why));
    let ended = vhost.plan(&vhost.orders(), &["--cluster-id", "east"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
}

//! The strictest release: a namespace of the level restricted, rights in one namespace, and network
//! policies. The node does not enforce the latter, so they are held against the connections that are
//! really made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use procfs::process::{FDTarget, Process, all_processes};
use serde_json::json;

use crate::node;
use crate::release::Release;
use crate::support::kubectl;
use crate::support::replays::{DLQ, SOURCE};
use crate::support::world::World;
use crate::turn;

/// Looks at the connections of operators and workers until it is asked for them.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeSet<u16>>,
}

impl Watch {
    /// `own` are the ports that the operator itself serves at.
    fn begin(own: [u16; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                let processes = all_processes().unwrap().flatten();
                seen.extend(processes.filter(is_ours).flat_map(|process| peers(&process, own)));
                std::thread::sleep(Duration::from_millis(50));
            }
            seen
        });
        Self { stop, thread }
    }

    fn end(self) -> BTreeSet<u16> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn is_ours(process: &Process) -> bool {
    process.cmdline().is_ok_and(|line| line.first().is_some_and(|program| program == "/redrive"))
}

/// The ports to which a process has connections; one that has ended meanwhile has none.
fn peers(process: &Process, own: [u16; 2]) -> Vec<u16> {
    let (Ok(sockets), Ok(open)) = (process.tcp(), process.fd()) else { return Vec::new() };
    let inode = |target| match target {
        FDTarget::Socket(inode) => Some(inode),
        _ => None,
    };
    let open: BTreeSet<u64> = open.flatten().filter_map(|one| inode(one.target)).collect();
    let ours = sockets.into_iter().filter(|socket| open.contains(&socket.inode));
    let made = ours
        .filter(|socket| socket.remote_address.port() != 0 && !own.contains(&socket.local_address.port()));
    made.map(|socket| socket.remote_address.port()).collect()
}

/// The ports that the policies of this name let through.
fn permitted(policy: &str, namespace: &str) -> BTreeSet<u16> {
    let policy = kubectl::get(&["networkpolicy", policy, "-n", namespace]);
    let rules = policy["spec"]["egress"].as_array().unwrap();
    let ports = rules.iter().flat_map(|rule| rule["ports"].as_array().unwrap());
    let tcp = ports.filter(|port| port["protocol"] == "TCP");
    tcp.map(|port| u16::try_from(port["port"].as_u64().unwrap()).unwrap()).collect()
}

fn port_of(address: &str) -> u16 {
    address.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_strictest_release_works_with_the_connections_that_its_policies_permit() {
    let _turn = turn().await;
    let world = World::new("e2e-strict").await;
    let level = "pod-security.kubernetes.io/enforce=restricted";
    kubectl::say(&["label", "namespace", &world.namespace, level]);
    let brokers = [port_of(&world.proxy.address), port_of(&world.broker.amqp)];
    let values = [
        format!("watchNamespaces={{{}}}", world.namespace),
        "clusterId=strict".to_owned(),
        "rbac.apiServerAddress=false".to_owned(),
        "rabbitmqClusters.enabled=false".to_owned(),
        "people.create=false".to_owned(),
        "admission.mode=Off".to_owned(),
        "crds.enabled=false".to_owned(),
        // Which such a namespace refuses.
        "hostNetwork=false".to_owned(),
        "replays.hostNetwork=false".to_owned(),
        "bindAddress=0.0.0.0".to_owned(),
        "networkPolicy.enabled=true".to_owned(),
        "networkPolicy.apiServer.ports={443}".to_owned(),
        format!("networkPolicy.brokers.ports={{{},{}}}", brokers[0], brokers[1]),
    ];
    let release = Release::install(&world, node::image(), &values);
    let manifest = release.manifest();
    assert!(!manifest.contains("kind: ClusterRole"), "{manifest}");
    release.is_available().await;
    let watch = Watch::begin(release.ports());

    world.create(world.manifest("orders", json!({}))).await;
    world.ready("orders").await;
    world.broker.fill(&world.vhost, DLQ, 20).await;
    world.replay("all", json!({})).await;
    world.until_phase("all", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 20)]).await;

    let seen = watch.end();
    let permitted = permitted("redrive", &world.namespace);
    assert_eq!(permitted, self::permitted("redrive-replay-worker", &world.namespace));
    let forbidden: Vec<_> = seen.difference(&permitted).collect();
    assert!(forbidden.is_empty(), "connections to {forbidden:?}, and only {permitted:?} are permitted");
    // Names were not asked for: all addresses are numbers here.
    let unused: Vec<_> = permitted.difference(&seen).filter(|port| **port != 53).collect();
    assert!(unused.is_empty(), "nobody went to {unused:?}: {seen:?}");
    release.uninstall();
    crate::let_go(&world);
    world.leave().await;
}

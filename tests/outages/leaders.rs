//! Three operators on one cluster: one works, the next takes over, and never do two write.
//!
//! Each is the command itself, with a user of its own at the API server, whose audit log tells who
//! wrote what, and with a way of its own to the broker: in the mount namespace of each, the broker's
//! name leads to another proxy, which records.

use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::parts::alone;
use crate::support::proxy::Proxy;
use crate::support::world::World;
use crate::support::{eventually, kubernetes, log, variable};

/// A leader that has died has a successor within this time.
const LEASE: Duration = Duration::from_secs(15);

/// What stands for the broker's name.
const BROKER: &str = "broker.redrive.test";

/// Pipelines that are edited all the time.
const PIPELINES: usize = 4;

/// One place for an operator: who it is at the API server, and its way to the broker.
struct Place {
    user: String,
    kubeconfig: String,
    hosts: String,
    proxy: Proxy,
    health: String,
    process: Option<Child>,
}

impl Place {
    async fn new(world: &World, number: u8, port: u16) -> Self {
        let user = format!("{}-{number}", world.namespace);
        let (_, kubeconfig) = kubernetes::client_of(&user).await;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        let bindings = Api::<ClusterRoleBinding>::all(world.client.clone());
        bindings.patch(&user, &PatchParams::apply("redrive-tests"), &Patch::Apply(&binding)).await.unwrap();
        let address = format!("127.0.0.{}", 10 + number);
        let hosts = format!("{}/{user}.hosts", env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n{address} {BROKER}\n")).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self {
            user,
            kubeconfig: kubeconfig.expect("a cluster of hack/dev, which makes users"),
            hosts,
            proxy: Proxy::at(&format!("{address}:{port}"), &world.broker.address).await,
            health: free.to_string(),
            process: None,
        }
    }

    fn start(&mut self, world: &World) {
        let in_its_own_place = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c", in_its_own_place, &self.hosts, env!("CARGO_BIN_EXE_redrive")])
            .args(["controller", "--allow-local-brokers", "--watch-namespace", &world.namespace])
            .args(["--leader-elect", "--lease-name", &world.namespace, "--poll-interval", "10s"])
            .args(["--health-address", &self.health])
            .env("KUBECONFIG", &self.kubeconfig)
            .stdout(Stdio::null())
            .stderr(log::of_processes())
            .spawn();
        self.process = Some(child.expect("unshare of util-linux, and root"));
    }

    /// What it says of itself; nothing where it does not answer.
    async fn says(&self) -> String {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(1)).build().unwrap();
        let Ok(answer) = client.get(format!("http://{}/readyz", self.health)).send().await else {
            return String::new();
        };
        answer.text().await.unwrap_or_default().trim().to_owned()
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    /// Waits until it has ended by itself.
    async fn ended(&mut self) -> ExitStatus {
        let mut process = self.process.take().unwrap();
        let ended = tokio::task::spawn_blocking(move || process.wait().unwrap());
        tokio::time::timeout(Duration::from_secs(40), ended).await.expect("it ends").unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

struct Three {
    places: Vec<Place>,
    /// Which of them led, in this order.
    terms: Vec<usize>,
}

impl Three {
    fn leader(&self) -> usize {
        *self.terms.last().unwrap()
    }

    /// Waits for the next leader; says how long that took.
    async fn next(&mut self, but: Option<usize>) -> Duration {
        let began = Instant::now();
        let places = &self.places;
        let leader = eventually("another one leads", async || {
            for (number, place) in places.iter().enumerate() {
                if Some(number) != but && place.says().await == "leads" {
                    return Ok(number);
                }
            }
            Err("nobody does".to_owned())
        })
        .await;
        self.terms.push(leader);
        began.elapsed()
    }

    /// Waits until the one that leads writes on the broker.
    async fn writes(&self) {
        let proxy = &self.places[self.leader()].proxy;
        let before = proxy.writes().len();
        eventually("the leader writes", async || {
            if proxy.writes().len() > before + PIPELINES { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
    }

    /// All others are ready to take over, and idle.
    async fn others_follow(&self) {
        for (number, place) in self.places.iter().enumerate().filter(|(number, _)| *number != self.leader()) {
            eventually(&format!("{number} follows"), async || match place.says().await.as_str() {
                "follows" => Ok(()),
                other => Err(other.to_owned()),
            })
            .await;
        }
    }

    /// Who wrote on the broker, in this order, each once for all that it wrote without another.
    fn writers_on_the_broker(&self) -> Vec<usize> {
        let of = |(number, place): (usize, &Place)| {
            let writes = place.proxy.writes();
            writes.into_iter().map(move |write| (write.at, number)).collect::<Vec<_>>()
        };
        in_order(self.places.iter().enumerate().flat_map(of).collect())
    }

    /// The same at the API server, but for the Lease.
    fn writers_at_the_api_server(&self) -> Vec<usize> {
        let log = std::fs::read_to_string(variable("REDRIVE_AUDIT_LOG")).unwrap();
        let writes = log.lines().filter_map(|line| {
            let number = self.places.iter().position(|place| line.contains(&place.user))?;
            let call: Value = serde_json::from_str(line).ok()?;
            let is_its = call["user"]["username"] == self.places[number].user.as_str();
            let verb = call["verb"].as_str().unwrap_or_default();
            let is_write = ["create", "update", "patch", "delete"].contains(&verb);
            let is_lease = call["objectRef"]["resource"] == "leases";
            let at = call["requestReceivedTimestamp"].as_str().unwrap_or_default().to_owned();
            (is_its && is_write && !is_lease).then_some((at, number))
        });
        in_order(writes.collect())
    }
}

fn in_order<T: Ord>(mut writes: Vec<(T, usize)>) -> Vec<usize> {
    writes.sort();
    let mut writers: Vec<usize> = writes.into_iter().map(|(_, number)| number).collect();
    writers.dedup();
    writers
}

/// Edits pipelines until it is dropped, so that whoever leads has always something to write.
async fn edit(world: &World) {
    for turn in 1.. {
        for number in 0..PIPELINES {
            let limit = json!({"source": {"queue": {"maxLength": 1_000 + turn}}});
            world.edit(&format!("p{number}"), limit).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Everything that can end a leader, one after the other.
async fn through_it_all(three: &mut Three, world: &World) {
    three.writes().await;
    kill(three, world).await;
    stop(three, world).await;
    let gone = three.leader();
    three.places[gone].signal("-TERM");
    let took = three.next(Some(gone)).await;
    println!("told to stop, it gives the Lease back: {took:?}");
    assert_eq!(three.places[gone].ended().await.code(), Some(0));
    three.writes().await;
}

/// Dead at once: nobody gives the Lease back.
async fn kill(three: &mut Three, world: &World) {
    let killed = three.leader();
    three.places[killed].signal("-KILL");
    three.places[killed].ended().await;
    let took = three.next(Some(killed)).await;
    println!("after kill -9: {took:?}");
    assert!(took < LEASE + Duration::from_secs(5), "{took:?}");
    three.writes().await;
    three.places[killed].start(world);
    three.others_follow().await;
}

/// Stopped in the middle of something, and let go on once another works.
async fn stop(three: &mut Three, world: &World) {
    let stopped = three.leader();
    three.places[stopped].signal("-STOP");
    let took = three.next(Some(stopped)).await;
    println!("after SIGSTOP: {took:?}");
    assert!(took < LEASE + Duration::from_secs(5), "{took:?}");
    three.writes().await;
    three.places[stopped].signal("-CONT");
    let ended = three.places[stopped].ended().await;
    assert_eq!(ended.code(), Some(1), "it notices that it does not lead any more");
    three.writes().await;
    three.places[stopped].start(world);
    three.others_follow().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_operators_one_writes_whatever_happens_to_it() {
    let _alone = alone().await;
    let world = World::new("leaders").await;
    let port = TcpListener::bind("127.0.0.10:0").unwrap().local_addr().unwrap().port();
    let mut secret = world.secret();
    secret.insert("uri", format!("http://{BROKER}:{port}"));
    world.write_secret(&secret).await;
    let mut three = Three { places: Vec::new(), terms: Vec::new() };
    for number in 0..3 {
        let mut place = Place::new(&world, number, port).await;
        place.start(&world);
        three.places.push(place);
    }
    three.next(None).await;
    three.others_follow().await;
    for number in 0..PIPELINES {
        let spec = json!({"source": {"queue": {"name": format!("q{number}"), "maxLength": 1_000}}});
        world.create(world.manifest(&format!("p{number}"), spec)).await;
    }
    for number in 0..PIPELINES {
        world.ready(&format!("p{number}")).await;
    }
    tokio::select! {
        () = through_it_all(&mut three, &world) => {}
        () = edit(&world) => unreachable!("it goes on for ever"),
    }
    assert_eq!(three.writers_on_the_broker(), three.terms);
    // The audit log is written a moment later.
    eventually("the audit log tells the same", async || {
        let writers = three.writers_at_the_api_server();
        if writers == three.terms { Ok(()) } else { Err(format!("{writers:?} and not {:?}", three.terms)) }
    })
    .await;
    let bindings = Api::<ClusterRoleBinding>::all(world.client.clone());
    for place in &three.places {
        bindings.delete(&place.user, &DeleteParams::default()).await.unwrap();
    }
    drop(three);
    world.leave().await;
}

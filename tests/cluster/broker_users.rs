//! Broker users made by `examples/broker-users.sh`: they are enough for all that Redrive does, and
//! for little else.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::replays::DLQ;
use crate::support::world::{World, inventory, message};

const PASSWORD: &str = "a b'c\"$d 9c2e41";

/// Runs the script with `rabbitmqctl` of this version's broker.
async fn script(version: &str, arguments: &[&str], password: Option<&str>) -> Output {
    let dev = std::env::var("REDRIVE_DEV").expect("REDRIVE_DEV: eval \"$(hack/dev env)\"");
    let mut command = Command::new("sh");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/broker-users.sh")).args(arguments);
    command.env("RABBITMQCTL", format!("{dev} broker ctl {version}")).env_remove("REDRIVE_PASSWORD");
    command.envs(password.map(|password| ("REDRIVE_PASSWORD", password)));
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

async fn make_user(version: &str, arguments: &[&str]) {
    let output = script(version, arguments, Some(PASSWORD)).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = [output.stdout, output.stderr].concat();
    assert!(!String::from_utf8_lossy(&said).contains(PASSWORD), "the password is not repeated");
}

/// A request as one of the users.
async fn as_user(world: &World, user: &str, method: Method, path: &str, body: Value) -> StatusCode {
    let url = format!("http://{}/api/{path}", world.broker.address);
    let request = reqwest::Client::new().request(method, url).basic_auth(user, Some(PASSWORD));
    request.json(&body).send().await.unwrap().status()
}

fn secret_of(world: &World, user: &str) -> BTreeMap<&'static str, String> {
    let mut secret = world.secret();
    secret.extend([("username", user.to_owned()), ("password", PASSWORD.to_owned())]);
    secret
}

async fn write_replay_secret(world: &World, user: &str) {
    let secret = json!({"metadata": {"name": "rabbit-replay"}, "stringData": secret_of(world, user)});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), &world.namespace);
    secrets.create(&PostParams::default(), &secret).await.unwrap();
}

async fn check_enough(version: &str) {
    let mut world = World::for_replays_on(version, "users").await;
    let (operator, replayer) = (format!("{}-operator", world.vhost), format!("{}-replay", world.vhost));
    let own = ["--vhost", &world.vhost, "--prefix", "orders.", "--prefix", "client."];
    let shared = ["--exchange", "events", "--application"];
    make_user(version, &[&own[..], &shared, &["operator", &operator]].concat()).await;
    make_user(version, &[&own[..], &["replay", &replayer]].concat()).await;
    world.write_secret(&secret_of(&world, &operator)).await;
    write_replay_secret(&world, &replayer).await;
    let topic = json!({"type": "topic", "durable": true});
    world.broker.put(&["exchanges", &world.vhost, "events"], topic).await;
    world.start();
    let everything = json!({
        "source": {
            "bindings": [{"exchange": "events", "routingKey": "#"}, {"exchange": "orders.exchange", "routingKey": "a"}],
            "deliveryLimit": 7,
        },
        "retry": {"jitter": {"percent": 10, "shards": 2}},
        "deadLetter": {
            "retention": "14d", "parkingLot": true,
            "quarantine": [{"category": "poison", "reasons": ["delivery_limit"]}],
        },
        "replayPolicy": {"secretRef": {"name": "rabbit-replay"}},
        "deletionPolicy": "DeleteIfEmpty",
    });
    world.create_ready("orders", everything).await;
    let application = json!({"retry": {"mode": "Application"}, "deletionPolicy": "Delete"});
    world.create_ready("client", application).await;

    // Repairs, and changes, which prove queues empty.
    world.broker.delete(&["queues", &world.vhost, "orders.queue.retry.1.s0"]).await;
    world.until_event("orders", "orders.queue.retry.1.s0").await;
    world.ready("orders").await;
    world.edit("orders", json!({"retry": {"delays": ["1s", "3s"]}})).await;
    world
        .until("orders", "has drained what was before", |pipeline| {
            !inventory(pipeline, "Created").iter().any(|entry| entry.ends_with("orders.queue.retry.1.s1"))
        })
        .await;
    world.ready("orders").await;

    // Replays, by the other user.
    world.broker.fill(&world.vhost, DLQ, 12).await;
    world.replay("all", json!({})).await;
    world.until_phase("all", "Completed").await;
    eventually("the replayed messages are counted", async || {
        let moved = world.broker.totals(&world.vhost, "orders.queue").await["messages"].clone();
        if moved == 12 { Ok(()) } else { Err(moved.to_string()) }
    })
    .await;
    world.broker.purge(&world.vhost, "orders.queue").await;

    for name in ["client", "orders"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    assert_eq!(world.broker.names("queues", &world.vhost).await, [""; 0]);
    leave(world, &[&operator, &replayer]).await;
}

async fn leave(world: World, users: &[&str]) {
    for user in users {
        world.broker.delete(&["users", user]).await;
    }
    world.leave().await;
}

#[tokio::test]
async fn the_users_of_the_script_are_enough() {
    check_enough("43").await;
}

#[tokio::test]
async fn the_users_of_the_script_are_enough_on_4_0() {
    check_enough("40").await;
}

#[tokio::test]
async fn one_user_may_do_both() {
    let mut world = World::for_replays("both").await;
    let user = format!("{}-both", world.vhost);
    let arguments = ["--vhost", &world.vhost, "--prefix", "orders.", "--replays", "operator", &user];
    make_user("43", &arguments).await;
    world.write_secret(&secret_of(&world, &user)).await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.broker.fill(&world.vhost, DLQ, 3).await;
    world.replay("all", json!({})).await;
    world.until_phase("all", "Completed").await;
    leave(world, &[&user]).await;
}

/// What the flag is for: the broker asks whoever declares such a queue for the right to write there.
#[tokio::test]
async fn mode_application_takes_a_right_of_its_own() {
    let mut world = World::new("noapp").await;
    let user = format!("{}-noapp", world.vhost);
    make_user("43", &["--vhost", &world.vhost, "--prefix", "client.", "operator", &user]).await;
    world.write_secret(&secret_of(&world, &user)).await;
    world.start();
    world.create(world.manifest("client", json!({"retry": {"mode": "Application"}}))).await;
    let pipeline = world.until_reason("client", "Forbidden").await;
    let told = message(&pipeline, "Ready");
    assert!(told.contains("declare queue \"client.queue.retry."), "{told}");
    make_user("43", &["--vhost", &world.vhost, "--prefix", "client.", "--application", "operator", &user])
        .await;
    world.ready("client").await;
    leave(world, &[&user]).await;
}

async fn check_no_more(version: &str) {
    let world = World::on(version, "nomore").await;
    let (operator, replayer) = (format!("{}-operator", world.vhost), format!("{}-replay", world.vhost));
    let own = ["--vhost", &world.vhost, "--prefix", "orders."];
    make_user(version, &[&own[..], &["operator", &operator]].concat()).await;
    make_user(version, &[&own[..], &["replay", &replayer]].concat()).await;
    let vhost = &world.vhost;
    let queue = json!({"durable": true, "arguments": {}});
    // `.` is no wildcard in a prefix.
    for theirs in ["bills.queue", "ordersXqueue", "my.orders.queue"] {
        world.broker.put(&["queues", vhost, theirs], queue.clone()).await;
        for user in [&operator, &replayer] {
            let path = format!("queues/{vhost}/{theirs}");
            let deleted = as_user(&world, user, Method::DELETE, &path, json!({})).await;
            assert!(!deleted.is_success(), "{user} deletes {theirs}: {deleted}");
            let get = json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"});
            let read = as_user(&world, user, Method::POST, &format!("{path}/get"), get).await;
            assert!(!read.is_success(), "{user} reads {theirs}: {read}");
        }
    }
    let mine = format!("queues/{vhost}/orders.new");
    assert_eq!(as_user(&world, &operator, Method::PUT, &mine, queue.clone()).await, StatusCode::CREATED);
    let declared = as_user(&world, &replayer, Method::DELETE, &mine, queue).await;
    assert!(!declared.is_success(), "replays delete nothing: {declared}");
    // Another vhost is out of sight.
    let other = format!("{vhost}-other");
    world.broker.create_vhost(&other).await;
    for user in [&operator, &replayer] {
        let seen = as_user(&world, user, Method::GET, &format!("queues/{other}"), Value::Null).await;
        assert!(!seen.is_success(), "{user} sees the queues of another vhost: {seen}");
    }
    world.broker.delete(&["vhosts", &other]).await;
    leave(world, &[&operator, &replayer]).await;
}

#[tokio::test]
async fn the_users_of_the_script_reach_nothing_else() {
    check_no_more("43").await;
}

#[tokio::test]
async fn the_users_of_the_script_reach_nothing_else_on_4_0() {
    check_no_more("40").await;
}

#[tokio::test]
async fn the_script_run_again_sets_everything_anew() {
    let world = World::new("again").await;
    let user = format!("{}-again", world.vhost);
    let vhost = ["--vhost", &world.vhost];
    make_user("43", &[&vhost[..], &["--monitoring", "operator", &user]].concat()).await;
    assert_eq!(world.broker.get(&["users", &user]).await["tags"], json!(["policymaker", "monitoring"]));
    let permissions = async || world.broker.get(&["permissions", &world.vhost, &user]).await;
    assert_eq!(permissions().await["read"], "^(redrive\\.owner$|.*)");
    make_user("43", &[&vhost[..], &["--prefix", "a+b.", "--prefix", "c-", "operator", &user]].concat()).await;
    assert_eq!(world.broker.get(&["users", &user]).await["tags"], json!(["policymaker"]));
    assert_eq!(permissions().await["configure"], "^(redrive\\.owner$|a\\+b\\.|c\\-)");
    leave(world, &[&user]).await;
}

#[tokio::test]
async fn the_script_says_what_is_missing() {
    let cases: [(&[&str], Option<&str>, &str); 5] = [
        (&["operator", "u"], None, "REDRIVE_PASSWORD is not set: put the password there"),
        (&["operator"], Some("p"), "say for what, and the name of the user: see --help"),
        (&["admin", "u"], Some("p"), "admin is none of operator, replay, audit"),
        (&["--vhost"], Some("p"), "--vhost needs a value"),
        (&["--all", "operator", "u"], Some("p"), "--all is no option: see --help"),
    ];
    for (arguments, password, why) in cases {
        let output = script("43", arguments, password).await;
        assert!(!output.status.success(), "{arguments:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, format!("broker-users.sh: {why}\n"), "{arguments:?}");
    }
    let printed = script("43", &["--print", "--vhost", "/it's", "operator", "u"], None).await;
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("'set_permissions' '-p' '/it'\\''s' 'u'"), "{printed}");
}

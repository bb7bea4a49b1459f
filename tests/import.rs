//! `redrive import` against real brokers: start them with `hack/dev up brokers` and name them with
//! `eval "$(hack/dev env)"`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "support/command.rs"]
mod command;
#[path = "support/broker.rs"]
mod support;

use std::process::Command;

use command::{Ended, feed};

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use redrive::topology::model::ApplyTo;
use redrive::topology::observed::Observed;
use rstest::rstest;
use support::{Version, Vhost, in_vhost};

/// The broker's URI, with user and password.
fn uri(version: Version) -> String {
    let name = format!("REDRIVE_BROKER_{}_URI", version.series());
    std::env::var(&name).unwrap_or_else(|_| panic!("{name} is not set: eval \"$(hack/dev env)\""))
}

fn redrive(arguments: &[&str], input: &str) -> Ended {
    feed(&mut command::redrive(arguments), input).into()
}

fn import(vhost: &Vhost, arguments: &[&str]) -> Ended {
    let uri = uri(vhost.version);
    let mut all = vec!["import", "--vhost", &vhost.name, "--broker", &uri, "-n", "shop"];
    all.extend(arguments);
    redrive(&all, "")
}

/// What `redrive plan` would write for these manifests besides markers.
fn planned(vhost: &Vhost, manifests: &str) -> Vec<String> {
    let uri = uri(vhost.version);
    let ended = redrive(&["plan", "-f", "-", "--broker", &uri, "-o", "json"], manifests);
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["errors"], serde_json::json!([]), "{}", ended.out);
    let mut steps = Vec::new();
    for pipeline in report["pipelines"].as_array().unwrap() {
        assert_eq!(pipeline["blocked"], serde_json::json!([]), "{}", ended.out);
        assert_eq!(pipeline["draining"], serde_json::json!([]), "{}", ended.out);
        let texts = pipeline["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| step["text"].as_str().unwrap().to_owned());
        steps.extend(texts.filter(|text| {
            !["+ marker ", "- marker ", "+ exchange redrive.owner "]
                .iter()
                .any(|known| text.starts_with(known))
        }));
    }
    steps
}

async fn snapshot(vhost: &Vhost) -> Observed {
    vhost.management.snapshot(&vhost.name).await.unwrap()
}

/// Everything but counts, as text.
fn shape(observed: &Observed) -> String {
    let queues: Vec<_> =
        observed.queues.iter().map(|(name, queue)| (name, queue.kind, &queue.arguments)).collect();
    format!("{queues:#?}\n{:#?}\n{:#?}\n{:#?}", observed.exchanges, observed.bindings(), observed.policies)
}

fn table(arguments: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in arguments {
        table.insert((*key).into(), value.clone());
    }
    table
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Declares as applications do, by AMQP.
async fn queue(channel: &Channel, name: &str, arguments: &[(&str, AMQPValue)]) {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, table(arguments)).await.unwrap();
}

async fn exchange(channel: &Channel, name: &str, kind: ExchangeKind) {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await.unwrap();
}

async fn bind(channel: &Channel, exchange: &str, queue: &str, key: &str) {
    let options = QueueBindOptions::default();
    channel
        .queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default())
        .await
        .unwrap();
}

/// Has the Python package declare its own queues, and stop.
fn rabbitkit(vhost: &Vhost, queue: &str, delays: &str) {
    let dev = std::env::var("REDRIVE_DEV").expect("REDRIVE_DEV: eval \"$(hack/dev env)\"");
    let python = Command::new(dev).arg("python").output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    let endpoint = vhost.version.endpoint();
    let output = Command::new(python.trim())
        .arg(format!("{}/hack/python/rabbitkit_app.py", env!("CARGO_MANIFEST_DIR")))
        .args([&endpoint.amqp.to_string(), &endpoint.credentials.username, &endpoint.credentials.password])
        .args([&vhost.name, queue, "events", "AUTO_DECLARE", delays, "0"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[rstest]
#[tokio::test]
async fn what_rabbitkit_declares_is_described_as_it_is(
    #[values(Version::V43, Version::V40)] version: Version,
) {
    in_vhost(version, "import-rabbitkit", |vhost| async move {
        rabbitkit(&vhost, "payments.queue", "5,30,120,600");
        rabbitkit(&vhost, "mails", "60");
        let before = shape(&snapshot(&vhost).await);
        let ended = import(&vhost, &[]);
        assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
        for part in ["name: payments.queue\n", "- 10m\n", "numberFrom: 1\n", "name: mails\n", "adopt: true\n"]
        {
            assert!(ended.out.contains(part), "{part} is not in {}", ended.out);
        }
        assert_eq!(planned(&vhost, &ended.out), [""; 0]);
        assert_eq!(shape(&snapshot(&vhost).await), before, "importing only reads");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn what_was_written_by_hand_is_described_or_named(
    #[values(Version::V43, Version::V40)] version: Version,
) {
    in_vhost(version, "import-plain", |vhost| async move {
        let channel = &vhost.channel;
        let way = |to: &str| [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(to))];
        exchange(channel, "shop", ExchangeKind::Topic).await;
        // Quorum, with everything that at-least-once needs.
        let strong = [
            ("x-queue-type", text("quorum")),
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
        ];
        let unlimited = ("x-delivery-limit", AMQPValue::LongInt(-1));
        queue(
            channel,
            "orders_error",
            &[&strong[..1], &strong[2..], std::slice::from_ref(&unlimited)].concat(),
        )
        .await;
        queue(channel, "orders", &[&strong[..], &way("orders_error")].concat()).await;
        for (name, delay) in [("orders.30s", 30_000), ("orders.5m", 300_000)] {
            let ttl = ("x-message-ttl", AMQPValue::LongInt(delay));
            queue(channel, name, &[&strong[..], &way("orders"), &[ttl, unlimited.clone()]].concat()).await;
        }
        bind(channel, "shop", "orders", "order.#").await;
        // Classic, one retry queue without a number.
        queue(channel, "mails.dead", &[]).await;
        queue(channel, "mails", &way("mails.dead")).await;
        queue(
            channel,
            "mails.retry",
            &[&way("mails")[..], &[("x-message-ttl", AMQPValue::LongLongInt(60_000))]].concat(),
        )
        .await;
        let ended = import(&vhost, &[]);
        assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
        assert!(ended.out.contains("template: '{queue}.{delay}'"), "{}", ended.out);
        assert!(ended.out.contains("template: '{queue}.retry'"), "{}", ended.out);
        assert_eq!(planned(&vhost, &ended.out), [""; 0]);

        // As Spring Cloud Stream's autoBindDlq declares it.
        exchange(channel, "DLX", ExchangeKind::Direct).await;
        let arguments =
            [("x-dead-letter-exchange", text("DLX")), ("x-dead-letter-routing-key", text("stock.in"))];
        queue(channel, "stock.in", &arguments).await;
        queue(channel, "stock.in.dlq", &[]).await;
        bind(channel, "DLX", "stock.in.dlq", "stock.in").await;
        let ended = import(&vhost, &[]);
        assert_eq!(ended.code, 2, "{}{}", ended.out, ended.err);
        let line = "  stock.in (with stock.in.dlq): dead-letters by its arguments to the exchange \"DLX\"";
        assert!(ended.err.contains(line), "{}", ended.err);
        assert!(ended.out.contains("name: orders\n") && !ended.out.contains("stock"), "{}", ended.out);
        assert_eq!(import(&vhost, &["--queue", "orders"]).code, 0, "nobody asked for the other");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn what_a_policy_says_takes_a_policy_of_ours(#[values(Version::V43, Version::V40)] version: Version) {
    in_vhost(version, "import-policy", |vhost| async move {
        let channel = &vhost.channel;
        queue(channel, "orders.dlq", &[]).await;
        queue(channel, "orders", &[]).await;
        let way = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("orders"))];
        queue(
            channel,
            "orders.retry.1",
            &[&way[..], &[("x-message-ttl", AMQPValue::LongInt(5_000))]].concat(),
        )
        .await;
        let keys = [("dead-letter-exchange", "".into()), ("dead-letter-routing-key", "orders.dlq".into())];
        vhost.policy("dead-letters", "^orders$", ApplyTo::Queues, keys).await;
        let ended = import(&vhost, &[]);
        assert_eq!(ended.code, 2, "{}{}", ended.out, ended.err);
        for part in [
            "ownership: External",
            "priority: 11",
            "mergePolicy: true",
            "#   ~ policy   redrive:import:shop:orders:source",
        ] {
            assert!(ended.out.contains(part), "{part} is not in {}", ended.out);
        }
        let steps = planned(&vhost, &ended.out);
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!(steps[0].starts_with("~ policy "), "{steps:?}");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn three_thousand_queues_of_others_make_a_short_report(
    #[values(Version::V43, Version::V40)] version: Version,
) {
    in_vhost(version, "import-many", |vhost| async move {
        let channel = &vhost.channel;
        exchange(channel, "dead", ExchangeKind::Fanout).await;
        queue(channel, "all.dead", &[]).await;
        bind(channel, "dead", "all.dead", "").await;
        let options = QueueDeclareOptions { durable: true, nowait: true, ..QueueDeclareOptions::default() };
        for number in 0..3_000 {
            let way = [("x-dead-letter-exchange", text("dead"))];
            let arguments = table(if number % 2 == 0 { &way } else { &[] });
            channel.queue_declare(format!("feed.{number}").into(), options, arguments).await.unwrap();
        }
        // Answered when all before it is done.
        queue(channel, "feed.2999", &[]).await;
        rabbitkit(&vhost, "payments", "5,30");
        let ended = import(&vhost, &[]);
        assert_eq!(ended.code, 2, "{}", ended.err);
        assert!(
            ended.err.starts_with("3,005 queues in the vhost.\n1 RetryPipeline written;"),
            "{}",
            ended.err
        );
        assert!(ended.err.contains("part of dead-lettering: 1,500 queues:"), "{}", ended.err);
        assert!(
            ended.err.contains("  … and 1,450 more: name those that matter with --queue\n"),
            "{}",
            ended.err
        );
        assert!(ended.err.contains("1,500 queues without a part in dead-lettering"), "{}", ended.err);
        assert_eq!(planned(&vhost, &ended.out), [""; 0]);
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn files_are_written_once_and_never_over_others(#[values(Version::V43)] version: Version) {
    in_vhost(version, "import-files", |vhost| async move {
        rabbitkit(&vhost, "payments", "5,30");
        let folder = std::env::temp_dir().join(format!("redrive-import-{}", std::process::id()));
        let path = folder.to_str().unwrap().to_owned();
        let ended = import(&vhost, &["-o", &path]);
        assert_eq!((ended.code, ended.out.as_str()), (0, ""), "{}", ended.err);
        let text = std::fs::read_to_string(folder.join("shop.payments.yaml")).unwrap();
        assert_eq!(planned(&vhost, &text), [""; 0]);
        let ended = import(&vhost, &["-o", &path]);
        assert_eq!(ended.code, 1);
        assert!(
            ended.err.contains("shop.payments.yaml is there already: give another directory"),
            "{}",
            ended.err
        );
        std::fs::remove_dir_all(folder).unwrap();
    })
    .await;
}

#[rstest]
#[case::no_user("http://127.0.0.1:1", "--broker names no user: write one such as http://USER@HOST:15672")]
#[case::no_host("http://", "--broker is not a URL: write one such as http://USER@HOST:15672")]
#[case::nobody("http://u:p@127.0.0.1:1", "127.0.0.1:1 can't be reached: connection refused")]
fn a_broker_that_can_not_be_read_is_an_error(#[case] broker: &str, #[case] why: &str) {
    let ended = redrive(&["import", "--vhost", "v", "--broker", broker], "");
    assert_eq!((ended.code, ended.out.as_str(), ended.err), (1, "", format!("error: {why}\n")));
}

#[rstest]
fn a_vhost_that_is_not_there_is_an_error(#[values(Version::V43, Version::V40)] version: Version) {
    let ended = redrive(&["import", "--vhost", "no-such", "--broker", &uri(version)], "");
    assert_eq!((ended.code, ended.err.as_str()), (1, "error: the vhost \"no-such\" does not exist\n"));
}

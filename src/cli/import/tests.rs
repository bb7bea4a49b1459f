//! Vhosts as applications and libraries make them, and what is said of them.
//!
//! `UPDATE_GOLDEN=1` writes the expected texts below `tests/golden/cli` anew.

use std::path::Path;

use super::*;
use crate::topology::model::{ApplyTo, Args, Binding, Destination, Policy, QueueType};
use crate::topology::observed::{ObservedExchange, ObservedQueue, Totals};

/// A vhost that is put together piece by piece.
#[derive(Default)]
struct Vhost {
    observed: Observed,
    bindings: Vec<Binding>,
}

impl Vhost {
    fn queue(
        mut self,
        kind: QueueType,
        name: &str,
        arguments: &[(&str, crate::topology::model::Arg)],
    ) -> Self {
        let arguments = arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let queue = ObservedQueue {
            kind,
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments,
            totals: Totals { messages: Some(7), ready: Some(7), unacknowledged: Some(0) },
        };
        self.observed.queues.insert(name.to_owned(), queue);
        self
    }

    fn classic(self, name: &str) -> Self {
        self.queue(QueueType::Classic, name, &[])
    }

    fn quorum(self, name: &str) -> Self {
        self.queue(
            QueueType::Quorum,
            name,
            &[("x-overflow", "reject-publish".into()), ("x-delivery-limit", (-1).into())],
        )
    }

    /// A classic queue that dead-letters through the default exchange.
    fn leading(self, name: &str, to: &str) -> Self {
        let way = [("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", to.into())];
        self.queue(QueueType::Classic, name, &way)
    }

    /// A classic queue that holds messages for a time and passes them on.
    fn delay(self, name: &str, to: &str, milliseconds: i64) -> Self {
        let way = [
            ("x-dead-letter-exchange", "".into()),
            ("x-dead-letter-routing-key", to.into()),
            ("x-message-ttl", milliseconds.into()),
        ];
        self.queue(QueueType::Classic, name, &way)
    }

    fn exchange(mut self, name: &str, kind: &str) -> Self {
        let exchange = ObservedExchange {
            kind: kind.to_owned(),
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: Args::new(),
        };
        self.observed.exchanges.insert(name.to_owned(), exchange);
        self
    }

    fn bind(mut self, exchange: &str, queue: &str, key: &str) -> Self {
        self.bindings.push(Binding {
            source: exchange.to_owned(),
            destination: Destination::Queue(queue.to_owned()),
            routing_key: key.to_owned(),
            arguments: Args::new(),
        });
        self
    }

    fn policy(
        mut self,
        name: &str,
        pattern: &str,
        priority: i64,
        keys: &[(&str, crate::topology::model::Arg)],
    ) -> Self {
        self.observed.policies.push(Policy {
            name: name.to_owned(),
            pattern: pattern.to_owned(),
            apply_to: ApplyTo::Queues,
            priority,
            definition: keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        });
        self
    }

    /// Standard output, standard error and how it ended.
    fn import(mut self, wanted: &Wanted) -> (String, String, Outcome) {
        self.observed.operator_policies = Some(Vec::new());
        self.observed.set_bindings(self.bindings);
        let types = ["direct", "fanout", "headers", "topic"];
        let facts = BrokerFacts {
            version: (4, 3, 6),
            exchange_types: types.into_iter().map(str::to_owned).collect(),
        };
        let (written, found) = describe(wanted, &facts, &self.observed);
        let report = text::report(&written, &found, self.observed.queues.len());
        (text::stream(&written), report, outcome(&written, &found))
    }
}

fn all() -> Wanted {
    Wanted {
        vhost: "/shop".to_owned(),
        queues: Vec::new(),
        namespace: "shop".to_owned(),
        broker: Broker::SecretRef(SecretRef { name: "rabbit-connection".to_owned() }),
        cluster_id: "import".to_owned(),
    }
}

/// What is left, with rabbitkit's own delays.
fn rabbitkit() -> Vhost {
    let queue = "payments.queue";
    let delays = [5_000, 30_000, 120_000, 600_000];
    let tiers = (1..).zip(delays);
    let vhost = Vhost::default()
        .exchange("payments.exchange", "direct")
        .leading(queue, "payments.queue.dlq")
        .classic("payments.queue.dlq")
        .bind("payments.exchange", queue, queue);
    tiers.fold(vhost, |vhost, (number, delay)| vhost.delay(&format!("{queue}.retry.{number}"), queue, delay))
}

fn assert_golden(name: &str, vhost: Vhost, ends: Outcome) {
    let (out, err, outcome) = vhost.import(&all());
    let found = format!("{out}\n# on standard error:\n{err}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cli").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} differs; is this right?\n{found}");
    assert_eq!(outcome, ends);
}

#[test]
fn rabbitkits_queues_are_described_as_they_are() {
    assert_golden("import-rabbitkit.txt", rabbitkit(), Outcome::Nothing);
}

#[test]
fn the_manifest_for_rabbitkits_queues_is_the_example() {
    let (out, _, _) = rabbitkit().import(&all());
    let example =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rabbitkit.yaml")).unwrap();
    let topology =
        |text: &str| crate::cli::manifest::Manifests::of_text("-", text).pipelines[0].spec.to_topology();
    assert_eq!(topology(&out), topology(&example));
}

#[test]
fn chains_of_any_names_are_described() {
    let vhost = Vhost::default()
        .exchange("shop", "topic")
        .exchange("audit", "fanout")
        // Quorum queues with all that at-least-once needs, delays in their names.
        .queue(
            QueueType::Quorum,
            "orders",
            &[
                ("x-dead-letter-exchange", "".into()),
                ("x-dead-letter-routing-key", "orders_error".into()),
                ("x-dead-letter-strategy", "at-least-once".into()),
                ("x-overflow", "reject-publish".into()),
                ("x-delivery-limit", 5.into()),
                ("x-single-active-consumer", true.into()),
                ("x-max-length", 100_000.into()),
            ],
        )
        .quorum("orders_error")
        .bind("shop", "orders", "order.created")
        .bind("shop", "orders", "order.paid");
    let vhost = [("30s", 30_000_i64), ("5m", 300_000)].into_iter().fold(vhost, |vhost, (name, delay)| {
        let arguments = [
            ("x-dead-letter-exchange", "".into()),
            ("x-dead-letter-routing-key", "orders".into()),
            ("x-dead-letter-strategy", "at-least-once".into()),
            ("x-overflow", "reject-publish".into()),
            ("x-delivery-limit", (-1).into()),
            ("x-message-ttl", delay.into()),
        ];
        vhost.queue(QueueType::Quorum, &format!("wait.{name}.orders"), &arguments)
    });
    let vhost = vhost
        // One retry queue without a number, two exchanges.
        .leading("mails", "mails.dead")
        .classic("mails.dead")
        .delay("mails.retry", "mails", 60_000)
        .bind("shop", "mails", "mail.#")
        .bind("audit", "mails", "")
        // One retry queue is called otherwise than the others.
        .leading("stock", "stock.dlq")
        .classic("stock.dlq")
        .delay("stock.retry.5s", "stock", 5_000)
        .delay("stock.retry.1m", "stock", 60_000)
        .delay("stock.slowly", "stock", 3_600_000)
        // A work queue whose messages expire, which looks like a retry queue of its DLQ.
        .delay("alerts", "alerts.dlq", 600_000)
        .classic("alerts.dlq")
        // Dead letters alone, and a name that a resource can't have.
        .leading("Reports_EU", "Reports_EU.dlq")
        .queue(QueueType::Classic, "Reports_EU.dlq", &[("x-message-ttl", 86_400_000.into())])
        .classic("unrelated");
    assert_golden("import-chains.txt", vhost, Outcome::Changes);
}

#[test]
fn what_springs_binder_declares_is_told_and_not_described() {
    let vhost = Vhost::default()
        .exchange("orders", "topic")
        .exchange("DLX", "direct")
        // autoBindDlq.
        .queue(
            QueueType::Classic,
            "orders.billing",
            &[
                ("x-dead-letter-exchange", "DLX".into()),
                ("x-dead-letter-routing-key", "orders.billing".into()),
            ],
        )
        .classic("orders.billing.dlq")
        .bind("orders", "orders.billing", "#")
        .bind("DLX", "orders.billing.dlq", "orders.billing")
        // autoBindDlq with dlqTtl and dlqDeadLetterExchange empty: it goes round.
        .queue(
            QueueType::Classic,
            "orders.stock",
            &[("x-dead-letter-exchange", "DLX".into()), ("x-dead-letter-routing-key", "orders.stock".into())],
        )
        .delay("orders.stock.dlq", "orders.stock", 5_000)
        .bind("DLX", "orders.stock.dlq", "orders.stock")
        // A queue and its retry queue, which lead to each other.
        .leading("mails", "mails.retry")
        .delay("mails.retry", "mails", 5_000);
    assert_golden("import-spring.txt", vhost, Outcome::Changes);
}

#[test]
fn a_queue_whose_application_says_nothing_of_dead_letters_is_external() {
    let vhost = Vhost::default()
        .classic("by.policy")
        .classic("by.policy.dlq")
        .policy(
            "dead-letters",
            "^by\\.policy$",
            20,
            &[("dead-letter-exchange", "".into()), ("dead-letter-routing-key", "by.policy.dlq".into())],
        )
        .delay("by.policy.retry.1", "by.policy", 5_000)
        .classic("nowhere")
        .delay("nowhere.retry.1", "nowhere", 5_000)
        .policy("to-an-exchange", "^other$", 1, &[("dead-letter-exchange", "dead".into())])
        .classic("other")
        .exchange("dead", "fanout")
        .classic("dead.letters")
        .bind("dead", "dead.letters", "");
    assert_golden("import-external.txt", vhost, Outcome::Changes);
}

#[test]
fn each_reason_why_something_can_not_be_described_has_its_sentence() {
    let quorum = |vhost: Vhost, name: &str, arguments: &[(&str, crate::topology::model::Arg)]| {
        vhost.queue(QueueType::Quorum, name, arguments)
    };
    let vhost = Vhost::default().exchange("back", "topic");
    // A quorum queue that dead-letters at most once.
    let vhost = quorum(
        vhost,
        "weak",
        &[("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", "weak.dlq".into())],
    );
    let vhost = quorum(vhost, "weak.dlq", &[])
        .queue(QueueType::Classic, "own-key", &[("x-dead-letter-exchange", "".into())])
        .leading("itself", "itself")
        .leading("uneven", "uneven.dlq")
        .classic("uneven.dlq")
        .delay("uneven.short", "uneven", 5_000)
        .delay("uneven.long", "uneven", 30_000)
        .leading("roundabout", "roundabout.dlq")
        .classic("roundabout.dlq")
        .queue(
            QueueType::Classic,
            "roundabout.retry",
            &[
                ("x-dead-letter-exchange", "back".into()),
                ("x-dead-letter-routing-key", "roundabout".into()),
                ("x-message-ttl", 5_000.into()),
            ],
        )
        .bind("back", "roundabout", "roundabout")
        // Two work queues with one DLQ: only one pipeline can have it.
        .leading("shared.a", "shared.dlq")
        .leading("shared.b", "shared.dlq")
        .classic("shared.dlq")
        .delay("lost.retry.1", "lost", 5_000)
        .policy("short-lived", "^shadowed", 5, &[("expires", 60_000.into())])
        .leading("shadowed", "shadowed.dlq")
        .classic("shadowed.dlq");
    assert_golden("import-unfit.txt", vhost, Outcome::Changes);
}

#[test]
fn thousands_of_foreign_queues_make_a_short_report() {
    let vhost = (0..3_000).fold(Vhost::default().exchange("events", "topic"), |vhost, number| {
        let name = format!("feed.{number}");
        let vhost = match number % 3 {
            0 => vhost.classic(&name),
            _ => vhost.queue(QueueType::Classic, &name, &[("x-dead-letter-exchange", "events".into())]),
        };
        vhost.bind("events", &name, "#")
    });
    let (out, err, outcome) = vhost.import(&all());
    assert_eq!((out.as_str(), outcome), ("", Outcome::Changes));
    assert!(
        err.starts_with("3,000 queues in the vhost.\nNo RetryPipeline describes any of them.\n"),
        "{err}"
    );
    assert!(err.contains("  … and 1,950 more: name those that matter with --queue\n"), "{err}");
    assert!(err.contains("996 queues without a part in dead-lettering"), "{err}");
    assert!(err.lines().count() < 110, "{err}");
}

#[test]
fn names_that_a_terminal_would_obey_are_shown_and_not_obeyed() {
    let (out, err, _) = Vhost::default().leading("a\u{1b}[2J", "b").classic("b").import(&all());
    assert_eq!(out, "");
    assert!(err.contains("a\\u{1b}[2J (with b): spec.source.queue.name"), "{err}");
    assert!(!err.contains('\u{1b}'), "{err}");
}

#[test]
fn a_choice_of_queues_leaves_the_others_alone() {
    let wanted = Wanted { queues: vec![pattern("payments.*").unwrap()], ..all() };
    let vhost = rabbitkit().leading("orders", "orders.dlq").classic("orders.dlq");
    let (out, err, outcome) = vhost.import(&wanted);
    assert!(out.contains("name: payments.queue") && !out.contains("orders"), "{out}");
    assert!(!err.contains("orders"), "{err}");
    assert_eq!(outcome, Outcome::Nothing);
}

#[test]
fn resources_never_share_a_name() {
    let vhost = Vhost::default()
        .leading("a_b", "a_b.dlq")
        .classic("a_b.dlq")
        .leading("a-b", "a-b.dlq")
        .classic("a-b.dlq");
    let (out, _, _) = vhost.import(&all());
    assert!(out.contains("  name: a-b\n") && out.contains("  name: a-b-2\n"), "{out}");
}

#[test]
fn a_glob_matches_whole_names() {
    let matches = |glob: &str, queue: &str| pattern(glob).unwrap().is_match(queue).unwrap();
    assert!(matches("orders.*", "orders.queue"));
    assert!(!matches("orders.*", "my.orders.queue"));
    assert!(!matches("orders.*", "ordersXqueue"));
    assert!(matches("q?", "q1") && !matches("q?", "q12"));
    assert!(matches("a+(b)[c]", "a+(b)[c]"));
}

#[test]
fn a_cluster_may_be_in_another_namespace() {
    let there = cluster_ref("messaging/rmq");
    assert_eq!((there.name.as_str(), there.namespace.as_deref()), ("rmq", Some("messaging")));
    assert_eq!(cluster_ref("rmq").namespace, None);
}

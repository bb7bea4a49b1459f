//! The command as users run it, without a broker: what it prints and how it ends.
//!
//! `UPDATE_GOLDEN=1` writes the expected texts below `tests/golden/cli` anew.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "support/command.rs"]
mod command;

use std::fs;
use std::path::Path;
use std::process::Command;

use rstest::rstest;
use serde_json::Value;

use crate::command::{Ended, feed};

fn redrive_with(arguments: &[&str], input: &[u8], variables: &[(&str, &str)]) -> Ended {
    feed(command::redrive(arguments).envs(variables.iter().copied()), input).into()
}

fn redrive(arguments: &[&str]) -> Ended {
    redrive_with(arguments, b"", &[])
}

fn plan(input: impl AsRef<[u8]>) -> Ended {
    redrive_with(&["plan", "-f", "-"], input.as_ref(), &[])
}

/// Compares with a file below `tests/golden/cli`, or writes it.
fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cli").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, found).unwrap();
        return;
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} differs; is this right?\n{found}");
}

#[rstest]
#[case("arguments")]
#[case("cluster")]
#[case("external")]
#[case("jitter")]
#[case("native")]
#[case("none")]
#[case("orders")]
#[case("rabbitkit")]
fn an_example_is_planned_offline(#[case] example: &str) {
    let ended = redrive(&["plan", "-f", &format!("examples/{example}.yaml")]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert_golden(&format!("{example}.txt"), &ended.out);
}

#[test]
fn every_example_is_among_those() {
    let mut names: Vec<String> = fs::read_dir("examples")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .filter(|path| fs::read_to_string(path).unwrap().contains("kind: RetryPipeline"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["arguments", "cluster", "external", "jitter", "native", "none", "orders", "rabbitkit"]
    );
}

#[test]
fn an_older_broker_has_another_limit_and_other_warnings() {
    let ended = redrive_with(&["plan", "-f", "-", "--rabbitmq", "4.0"], with("").as_bytes(), &[]);
    assert_eq!(ended.code, 0);
    assert!(!ended.out.contains("~ policy"), "20 is the broker's default: {}", ended.out);
    assert!(ended.out.contains("Delivery limit: 20 crashes or requeues at each stay in q."));
    assert!(ended.out.contains("! Don't publish with priorities"));
}

#[rstest]
#[case(
    "examples/native.yaml",
    "4.0",
    "examples/native.yaml, document 1: retry.mode Native needs RabbitMQ 4.3.1 or newer and this is 4.0.0: use mode Broker"
)]
#[case(
    "examples/orders.yaml",
    "3.13",
    "examples/orders.yaml, document 1: RabbitMQ 3.13.0 is too old: use 4.0 or newer"
)]
fn a_broker_that_can_not_take_it_is_an_error(#[case] file: &str, #[case] version: &str, #[case] why: &str) {
    let ended = redrive(&["plan", "-f", file, "--rabbitmq", version]);
    assert_eq!((ended.code, ended.err), (1, format!("error: {why}\n")));
}

#[test]
fn capacity_is_estimated() {
    let ended = redrive(&[
        "plan",
        "-f",
        "examples/rabbitkit.yaml",
        "-f",
        "examples/native.yaml",
        "-f",
        "examples/arguments.yaml",
        "--capacity",
        "--rate",
        "50/s",
        "--message-size",
        "4KiB",
        "--failure-percent",
        "10",
        "--retry-failure-percent",
        "50",
    ]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let tables: Vec<&str> =
        ended.out.split("Capacity").skip(1).map(|part| part.split("\n\n").next().unwrap()).collect();
    assert_golden("capacity.txt", &tables.join("\n\n"));
}

#[test]
fn json_has_a_version_and_all_parts() {
    let ended = redrive(&[
        "plan",
        "-o",
        "json",
        "-f",
        "examples/none.yaml",
        "-f",
        "examples/replay-dry-run.yaml",
        "--capacity",
        "--rate",
        "1/s",
        "--message-size",
        "1000",
    ]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert_golden("none.json", &ended.out);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["apiVersion"], "plan.redrive.dev/v1");
    assert_eq!(report["skipped"][0]["kind"], "DlqReplay");
}

#[test]
fn errors_are_part_of_the_json() {
    let ended = redrive(&["plan", "-o", "json", "-f", "nowhere.yaml"]);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, ended.err.as_str()), (1, ""));
    assert_eq!(report["errors"], serde_json::json!([{"file": "nowhere.yaml", "message": "does not exist"}]));
}

#[test]
fn other_kinds_are_named_and_skipped() {
    let ended = redrive(&["plan", "-f", "examples/replay-dry-run.yaml", "-f", "examples/none.yaml"]);
    assert_eq!(ended.code, 0);
    assert!(ended.out.starts_with(
        "skipped: examples/replay-dry-run.yaml, document 1: DlqReplay orders-look is no RetryPipeline\n\ndefault/audit-trail"
    ));
    let ended = redrive(&["plan", "-f", "examples/replay-dry-run.yaml"]);
    assert_eq!((ended.code, ended.err.as_str()), (1, "error: no file holds a RetryPipeline\n"));
}

#[test]
fn several_documents_are_planned_in_their_order() {
    let all = [
        fs::read_to_string("examples/none.yaml").unwrap(),
        fs::read_to_string("examples/orders.yaml").unwrap(),
    ];
    let ended = plan(format!("---\n{}---\n# nothing\n---\n{}", all[0], all[1]));
    assert_eq!(ended.code, 0, "{}", ended.err);
    let place = |text: &str| ended.out.find(text).unwrap();
    assert!(
        place("default/audit-trail (standard input, document 1)")
            < place("default/orders (standard input, document 3)")
    );
}

#[test]
fn two_pipelines_can_not_declare_the_same_queue() {
    let one = fs::read_to_string("examples/none.yaml").unwrap();
    let ended = plan(format!("{one}---\n{}", one.replace("name: audit-trail", "name: audit-copy")));
    assert_eq!(ended.code, 1);
    let why =
        "! queue audit.queue: default/audit-trail, in the same files, declares it as well: use another name";
    assert!(ended.out.contains(why), "{}", ended.out);
}

/// A manifest of which one line is of interest.
fn manifest(spec: &str) -> String {
    format!("apiVersion: redrive.dev/v1alpha1\nkind: RetryPipeline\nmetadata: {{name: a}}\nspec:\n{spec}")
}

const BASE: &str = "  broker: {secretRef: {name: s}}\n  source: {queue: {name: q}}\n";

fn with(more: &str) -> String {
    manifest(&format!("{BASE}{more}"))
}

fn errors_of(input: impl AsRef<[u8]>) -> String {
    let ended = plan(input);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    ended.err.replace("error: standard input", "")
}

#[test]
fn what_is_no_text_is_refused() {
    assert_eq!(errors_of(b"\xff\xfe\x00\x01"), ": is not text in UTF-8\n");
    assert_eq!(errors_of(b"a: \0"), ": is not text: it contains a zero byte\n");
}

#[test]
fn an_empty_file_holds_no_pipeline() {
    for input in ["", "\n", "---\n---\n", "# a comment\n"] {
        assert_eq!(errors_of(input), "error: no file holds a RetryPipeline\n", "{input:?}");
    }
}

#[test]
fn what_can_not_be_opened_is_named() {
    let ended = redrive(&["plan", "-f", "nowhere.yaml", "-f", "examples"]);
    let errors =
        "error: nowhere.yaml: does not exist\nerror: examples: can't be read: Is a directory (os error 21)\n";
    assert_eq!(ended.err, errors);
}

#[rstest]
#[case::duplicate_key(&with("  vhost: /a\n  vhost: /b\n"), ", document 1, line 8: spec: the key \"vhost\" stands here twice: keep one of them\n")]
#[case::nested_duplicate(&manifest("  broker: {secretRef: {name: s}}\n  source:\n    queue:\n      name: q\n      name: r\n"), ", document 1, line 9: spec.source.queue: the key \"name\" stands here twice: keep one of them\n")]
#[case::tab(
    "kind: RetryPipeline\n\tmetadata: {}\n",
    ", document 1: found a tab character that violates indentation at line 2 column 1, while scanning a plain scalar at line 1 column 7\n"
)]
#[case::unclosed(
    "kind: RetryPipeline\nmetadata: {name: a\n",
    ", document 1: did not find expected ',' or '}' at line 3 column 1, while parsing a flow mapping at line 2 column 11\n"
)]
#[case::list("- a\n- b\n", ", document 1: is no resource: a resource is a map\n")]
#[case::plain_text("hello\n", ", document 1: is no resource: a resource is a map\n")]
#[case::no_kind("apiVersion: redrive.dev/v1alpha1\n", ", document 1: kind: is missing\n")]
#[case::number_key(&with("  1: 2\n"), ", document 1, line 7: spec: invalid type: integer `1`, expected text as a key: put it in quotes\n")]
#[case::tag(&with("  vhost: !x y\n"), ", document 1, line 7: spec.vhost: tags such as !this have no meaning here: remove it\n")]
#[case::merge_key(&with("  <<: {vhost: /x}\n"), ", document 1, line 7: spec.<<: is no field: there are adopt, broker, deadLetter, deleteAdopted, deletionPolicy, driftPolicy, mergePolicy, owner, replayPolicy, retry, settings, source, suspend, vhost\n")]
fn what_can_not_be_read_is_placed(#[case] input: &str, #[case] wanted: &str) {
    assert_eq!(errors_of(input), wanted);
}

#[rstest]
#[case::no_version(
    "kind: RetryPipeline\nmetadata: {name: a}\nspec: {}\n",
    ", document 1: apiVersion: is missing: write redrive.dev/v1alpha1\n, document 1, line 3: spec.broker: is missing\n, document 1, line 3: spec.source: is missing\n"
)]
#[case::other_version(&with("").replace("v1alpha1", "v1"), ", document 1, line 1: apiVersion: redrive.dev/v1 is not known: write redrive.dev/v1alpha1\n")]
#[case::no_spec(
    "apiVersion: redrive.dev/v1alpha1\nkind: RetryPipeline\nmetadata: {name: a}\n",
    ", document 1: spec: is missing\n"
)]
#[case::no_name(&with("").replace("name: a}", "namespace: b}"), ", document 1, line 3: metadata.name: is missing\n")]
#[case::bad_name(&with("").replace("name: a}", "name: A_b}"), ", document 1, line 3: metadata.name: is no name for a resource: use a-z, 0-9, '-' and '.', with a letter or digit at both ends\n")]
#[case::number_name(&with("").replace("name: a}", "name: 7}"), ", document 1, line 3: metadata.name: is no text: put it in quotes\n")]
#[case::unknown_at_the_top(&format!("{}extra: 1\n", with("")), ", document 1, line 7: extra: is no field of a RetryPipeline\n")]
#[case::unknown_field(&with("  retry:\n    mode: Broker\n    delay: [5s]\n"), ", document 1, line 9: spec.retry.delay: is no field: did you mean delays?\n")]
#[case::wrong_type(&with("  adopt: yes\n"), ", document 1, line 7: spec.adopt: is the text \"yes\" where true or false is wanted\n")]
#[case::wrong_choice(&with("  retry: {mode: broker}\n"), ", document 1, line 7: spec.retry.mode: \"broker\" is none of Broker, Application, Native, None\n")]
#[case::bad_duration(&with("  retry:\n    delays:\n      - 5s\n      - 2 weeks\n"), ", document 1, line 10: spec.retry.delays[1]: \"2 weeks\" is no duration: write whole numbers with d, h, m, s or ms, such as 5s, 1h30m or 14d\n")]
#[case::number_for_duration(&with("  retry: {delays: [5]}\n"), ", document 1, line 7: spec.retry.delays[0]: is the number 5 where text is wanted\n")]
#[case::huge_delay(&with("  retry: {delays: [5s, 3651d]}\n"), ", document 1, line 7: spec.retry.delays[1]: expands to 315446400000 ms: the broker takes at most 315360000000 ms, so write at most 3650d, jitter included\n")]
#[case::many_delays(&with(&format!("  retry: {{delays: [{}]}}\n", ["1s"; 33].join(", "))), ", document 1, line 7: spec.retry.delays: has 33 entries: at most 32 are allowed\n")]
#[case::both_delays(&with("  retry: {delays: [5s], backoff: {initial: 1s, factor: 2, steps: 2}}\n"), ", document 1, line 7: spec.retry: delays and backoff exclude each other: keep one\n")]
#[case::two_brokers(&manifest("  broker: {secretRef: {name: s}, clusterRef: {name: c}}\n  source: {queue: {name: q}}\n"), ", document 1, line 5: spec.broker: set exactly one of clusterRef, secretRef\n")]
#[case::no_queue(&manifest("  broker: {secretRef: {name: s}}\n  source: {}\n"), ", document 1, line 6: spec.source.queue: is missing\n")]
#[case::reserved_name(&manifest("  broker: {secretRef: {name: s}}\n  source: {queue: {name: amq.q}}\n"), ", document 1, line 6: spec.source.queue.name: the queue name \"amq.q\" begins with \"amq.\", which is reserved: use another name\n, document 1, line 4: spec.deadLetter.name: the queue name \"amq.q.dlq\" begins with \"amq.\", which is reserved: use another name\n, document 1, line 4: spec.retry.naming.template: the queue name \"amq.q.retry.0\" begins with \"amq.\", which is reserved: use another name\n")]
#[case::native_without_numbers(
    &with("  retry: {mode: Native}\n"),
    ", document 1, line 7: spec.retry.native: mode Native needs native with min, max and attempts, and no other mode takes it\n"
)]
#[case::template(&with("  retry: {naming: {template: \"{queue}.{tier}\"}}\n"), ", document 1, line 7: spec.retry.naming.template: only {queue}, {attempt} and {delay} may stand in braces here\n")]
#[case::everything_at_once(
    &manifest("  broker: {secretRef: {name: s}}\n  source:\n    queue: {name: q, type: classic, groupSize: 3}\n    deliveryLimit: 0\n  retry: {delays: []}\n  colour: red\n"),
    concat!(
        ", document 1, line 10: spec.colour: is no field: there are adopt, broker, deadLetter, deleteAdopted, deletionPolicy, driftPolicy, mergePolicy, owner, replayPolicy, retry, settings, source, suspend, vhost\n",
        ", document 1, line 8: spec.source.deliveryLimit: 0 is too small: write 1 or more\n",
        ", document 1, line 7: spec.source.queue.groupSize: classic queues have no replicas: leave it out, or make the queue quorum\n",
        ", document 1, line 9: spec.retry.delays: has no step: give at least one delay, or use mode None\n",
    )
)]
fn what_is_wrong_is_named_with_line_and_field(#[case] input: &str, #[case] wanted: &str) {
    assert_eq!(errors_of(input), wanted);
}

#[test]
fn a_name_that_grows_too_long_is_refused() {
    let queue = "q".repeat(250);
    let errors = errors_of(manifest(&format!(
        "  broker: {{secretRef: {{name: s}}}}\n  source: {{queue: {{name: {queue}}}}}\n"
    )));
    assert!(errors.contains(".retry.0\" has 258 bytes: at most 255 are allowed"), "{errors}");
}

#[test]
fn the_document_and_the_line_in_the_file_are_named() {
    let good = with("");
    let ended = plan(format!("{good}---\n{}", with("  colour: red\n").replace("name: a}", "name: b}")));
    assert_eq!(ended.code, 1);
    assert!(
        ended.err.starts_with("error: standard input, document 2, line 14: spec.colour: is no field"),
        "{}",
        ended.err
    );
    assert!(
        ended.out.starts_with("default/a (standard input, document 1)"),
        "the good one is planned all the same"
    );
}

#[test]
fn the_same_name_twice_is_an_error() {
    let ended = plan(format!("{}---\n{}", with(""), with("")));
    assert_eq!(ended.code, 1);
    assert_eq!(
        ended.err,
        "error: standard input, document 2: default/a stands in standard input, document 1 already: keep one\n"
    );
}

#[rstest]
#[case(&["plan"], "--file <FILE>")]
#[case(&["plan", "-f", "x", "--rabbitmq", "four"], "\"four\" is no version: write 4.3 or 4.3.6")]
#[case(&["plan", "-f", "x", "--capacity"], "--rate <N/s>")]
#[case(&["plan", "-f", "x", "--rate", "5/s"], "--capacity")]
#[case(&["plan", "-f", "x", "--capacity", "--rate", "x", "--message-size", "1"], "\"x\" is no rate")]
#[case(&["plan", "-f", "x", "--broker", "http://u:p@h", "--rabbitmq", "4.3"], "cannot be used with")]
#[case(&["plan", "-f", "x", "--broker", "http://host"], "--broker names no user")]
#[case(&["plan", "-f", "x", "--broker", "http://user@host"], "REDRIVE_BROKER_PASSWORD")]
#[case(&["plan", "-f", "x", "--broker", "amqp://u:p@host"], "--broker is an AMQP address")]
#[case(&["plan", "-f", "x", "--broker", "http://u:p@host", "--ca", "nowhere.pem"], "--ca nowhere.pem can't be read")]
#[case(&["plan", "-f", "x", "--broker", "https://u:p@host", "--ca", "Cargo.toml"], "--ca holds no certificate")]
#[case(&["controller", "--poll-interval", "10ms"], "too often")]
#[case(&["controller", "--release-after", "soon"], "\"soon\" is no duration")]
#[case(&["controller", "--log", "redrive=loud"], "--log <FILTER>")]
#[case(&["launch"], "unrecognized subcommand")]
fn wrong_arguments_end_with_1_and_say_what_to_write(#[case] arguments: &[&str], #[case] wanted: &str) {
    let ended = redrive(arguments);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains(wanted), "{}", ended.err);
    assert!(!ended.err.contains("u:p@"), "a password is repeated: {}", ended.err);
}

#[test]
fn help_names_the_exit_codes_and_no_password() {
    let secret = [("REDRIVE_BROKER_URI", "http://user:hidden@host")];
    let ended = redrive_with(&["plan", "--help"], b"", &secret);
    assert_eq!(ended.code, 0);
    assert!(ended.out.contains("Exit codes:"));
    assert!(!ended.out.contains("hidden"), "{}", ended.out);
}

#[test]
fn the_definitions_are_those_in_crds() {
    let mut files: Vec<_> = fs::read_dir("crds").unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let ended = redrive(&["crds"]);
    assert_eq!((ended.code, ended.out), (0, texts.join("---\n")));

    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("crds");
    let ended = redrive(&["crds", "--dir", dir.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    for (file, text) in files.iter().zip(texts) {
        assert_eq!(fs::read_to_string(dir.join(file.file_name().unwrap())).unwrap(), text);
    }
}

#[test]
fn the_operator_says_why_it_can_not_start() {
    let nowhere = [("KUBECONFIG", "/nowhere/config"), ("HOME", "/nowhere")];
    let ended = redrive_with(&["controller"], b"", &nowhere);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("error: failed to infer config"), "{}", ended.err);
}

const WHY: [&str; 2] = ["--justification", "fix for ORD-1123 deployed in 4.2.1"];

fn replay(arguments: &[&str]) -> Ended {
    redrive(&[&["replay", "orders"], &WHY[..], arguments].concat())
}

#[test]
fn the_shortest_replay_names_pipeline_and_reason() {
    let ended = replay(&["--print", "--name", "orders-1"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert_golden("replay-short.yaml", &ended.out);
}

#[test]
fn every_flag_of_a_replay_has_its_field() {
    let flags = "--print --name orders-1 -n shop --dry-run --from quarantine:poison --to exchange:shop.events --to-key a.b \
                 --allow-fanout --header x-tenant-id=42 --header a=b=c --reason rejected,expired --reason maxlen \
                 --first-death-queue q1 --first-death-queue q2 --routing-key orders.* --message-id m1 --message-id m2 \
                 --older-than 10m --newer-than 48h --limit 500 --scan-limit 1000 --rate 20 --batch 5 --pause 10s \
                 --ramp-from 1 --ramp-every 1m --ramp-factor 3 --window 50 --stop-on-return-percent 5 --sample 20 \
                 --min-returns 2 --canary-messages 1 --canary-after 1m --canary-tries 2 --pause-above-target-depth 9 \
                 --without-consumers --max-unroutable 4 --retry-failures --keep-expiration --max-replays-per-message 7 \
                 --idempotency-header x-key --idempotency-generate --not-before 2026-11-29T23:00:00+01:00 \
                 --deadline 2h --suspend --ttl 720h";
    let mut flags: Vec<&str> = flags.split_whitespace().collect();
    flags.extend(["--expression", "headers[\"x-tenant-id\"] == \"42\""]);
    let ended = replay(&flags);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert_golden("replay-full.yaml", &ended.out);
}

#[test]
fn a_ramp_needs_only_its_beginning() {
    let ended = replay(&["--print", "--name", "a", "--ramp-from", "1"]);
    assert!(ended.out.contains("ramp:\n      every: 30s\n      factor: 2\n      from: 1\n"), "{}", ended.out);
}

#[test]
fn a_replay_without_a_name_gets_one_with_the_time() {
    let ended = replay(&["--print"]);
    let name = ended.out.lines().find_map(|line| line.strip_prefix("  name: orders-")).unwrap();
    assert_eq!(name.len(), "20261129-220000".len(), "{name}");
}

#[rstest]
#[case::short(&["replay", "orders", "--justification", "because"], "--justification: say in 10 characters or more why it is right to replay now")]
#[case::no_reason(&["replay", "orders"], "--justification <TEXT>")]
#[case::from(&["replay", "orders", "--justification", WHY[1], "--from", "work-queue"], "--from: a replay reads from dead-letter, quarantine:CATEGORY or parking-lot")]
#[case::to(&["replay", "orders", "--justification", WHY[1], "--to", "dlq"], "--to: a replay moves to work-queue, origin")]
#[case::place(&["replay", "orders", "--justification", WHY[1], "--to", "orders.queue"], "there are dead-letter, work-queue")]
#[case::key(&["replay", "orders", "--justification", WHY[1], "--to-key", "a"], "--to-key goes with --to exchange:NAME alone")]
#[case::header(&["replay", "orders", "--justification", WHY[1], "--header", "a"], "write NAME=VALUE, such as x-error-type=Timeout")]
#[case::header_twice(&["replay", "orders", "--justification", WHY[1], "--header", "a=1", "--header", "a=2"], "--header a stands there twice")]
#[case::reason(&["replay", "orders", "--justification", WHY[1], "--reason", "poison"], "there are rejected, expired, maxlen and delivery_limit")]
#[case::rate(&["replay", "orders", "--justification", WHY[1], "--rate", "0"], "0 is not in 1..=100000")]
#[case::duration(&["replay", "orders", "--justification", WHY[1], "--older-than", "2 days"], "is no duration: write whole numbers")]
#[case::time(&["replay", "orders", "--justification", WHY[1], "--not-before", "tomorrow"], "write a moment with its offset, such as 2026-11-29T22:00:00Z")]
#[case::ramp(&["replay", "orders", "--justification", WHY[1], "--ramp-every", "1m"], "--ramp-from <PER-SECOND>")]
#[case::both(&["replay", "orders", "--justification", WHY[1], "--watch", "--wait"], "cannot be used with")]
#[case::kubeconfig(&["approve", "orders-1", "--kubeconfig", "nowhere"], "nowhere")]
#[case::most(&["approve", "orders-1", "--max-messages", "0"], "0 is not in 1..")]
fn a_flag_that_can_not_be_used_is_explained(#[case] arguments: &[&str], #[case] why: &str) {
    let ended = redrive(arguments);
    assert_eq!((ended.code, ended.out.as_str()), (1, ""));
    assert!(ended.err.contains(why), "{}", ended.err);
}

/// As kubectl runs a plugin: by a link of that name.
#[test]
fn under_the_name_of_a_plugin_it_calls_itself_so() {
    let folder = std::env::temp_dir().join(format!("redrive-plugin-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let link = folder.join("kubectl-redrive");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_redrive"), &link).unwrap();
    let help = |arguments: &[&str]| {
        let output = Command::new(&link).args(arguments).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(help(&["--help"]).contains("Usage: kubectl redrive <COMMAND>"));
    let text = help(&["approve", "--help"]);
    assert!(text.contains("Usage: kubectl redrive approve [OPTIONS] <NAME>"), "{text}");
    assert!(text.contains("\n  kubectl redrive approve orders-20261129-220000\n"), "{text}");
    assert!(!text.replace("kubectl redrive ", "").contains("redrive "), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

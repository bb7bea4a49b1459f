//! The commands of `docs/runbooks`, each run as it stands there.
//!
//! A fenced block `sh` is one command line or more; with `not-run: WHY` behind it, it is left alone.
//! Variables stand for what an alert names. Each page finds a Ready pipeline with a consumer and
//! dead letters, and a replay: one that has ended, or where the page holds or cancels it, one that
//! has not begun.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redrive::controller::AuditStream;
use serde_json::json;

use crate::support::amqp::Wire;
use crate::support::replays::{DLQ, SOURCE};
use crate::support::variable;
use crate::support::world::{SECRET, World};

const QUARANTINE: &str = "orders.queue.dlq.quarantine.poison";

/// Dead letters that each page finds.
const DEAD_LETTERS: usize = 30;

/// Seconds that a command may take.
const PATIENCE: &str = "240";

/// A page's commands, in their order.
struct Page {
    name: String,
    commands: Vec<String>,
}

impl Page {
    /// Whether its replay must not have begun.
    fn steers(&self) -> bool {
        let words = ["redrive suspend", "redrive resume", "redrive cancel"];
        self.commands.iter().any(|command| words.iter().any(|word| command.contains(word)))
    }
}

fn pages() -> Vec<Page> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runbooks");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let page = |file: PathBuf| Page {
        name: file.file_stem().unwrap().to_str().unwrap().to_owned(),
        commands: commands(&std::fs::read_to_string(file).unwrap()),
    };
    let mut pages: Vec<Page> = files.map(page).collect();
    pages.sort_by(|one, other| one.name.cmp(&other.name));
    pages
}

fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Whether the present block is to be run; none outside of blocks.
    let mut runs = None;
    for line in text.lines().map(str::trim) {
        match (line.strip_prefix("```"), runs) {
            (Some("sh"), None) => {
                runs = Some(true);
                found.push(String::new());
            }
            (Some(kind), None) => {
                assert!(!kind.starts_with("sh") || kind.len() > "sh not-run: ".len(), "no reason: {line}");
                runs = Some(false);
            }
            (Some(_), Some(_)) => runs = None,
            (None, Some(true)) => *found.last_mut().unwrap() += &format!("{line}\n"),
            (None, _) => {}
        }
    }
    found
}

/// A folder with the commands that pages call, for the `PATH`.
fn tools() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("runbooks-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    symlink(env!("CARGO_BIN_EXE_redrive"), folder.join("redrive")).unwrap();
    // On the broker's own machine, as the pages say.
    let ctl = folder.join("rabbitmqctl");
    std::fs::write(&ctl, format!("#!/bin/sh\nexec '{}' broker ctl 43 \"$@\"\n", variable("REDRIVE_DEV")))
        .unwrap();
    std::fs::set_permissions(&ctl, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs a block; says what went wrong with it.
async fn run(block: &str, variables: &[(&str, String)]) -> Result<(), String> {
    let mut bash = Command::new("timeout");
    bash.args([PATIENCE, "bash", "-euo", "pipefail", "-c", block]).stdin(std::process::Stdio::null());
    bash.envs(variables.iter().map(|(name, value)| (name, value.as_str())));
    // The operator of this test goes on meanwhile.
    let output = tokio::task::spawn_blocking(move || bash.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{}{}{}", output.status, text(&output.stdout), text(&output.stderr)))
    }
}

/// A world with a Ready pipeline, an audit stream, and a replay that has ended.
async fn prepared() -> World {
    let mut world = World::for_replays("runbooks").await;
    // Pages edit the pipeline, and what comes next waits until that is carried out.
    world.settings.replays.patience = Duration::from_secs(240);
    world.settings.replays.audit =
        Some(AuditStream { vhost: world.vhost.clone(), secret: SECRET.to_owned() });
    world.start();
    let quarantine = json!([{"category": "poison", "reasons": ["delivery_limit"]}]);
    let spec = json!({"deadLetter": {"parkingLot": true, "quarantine": quarantine}});
    world.create_ready("orders", spec).await;
    world.broker.fill(&world.vhost, DLQ, DEAD_LETTERS).await;
    world.replay("ended", json!({"requestedBy": "requester@example.com"})).await;
    world.until_phase("ended", "Completed").await;
    world
}

/// What the variables of the pages stand for here, but for the replay.
fn variables(world: &World, tools: &Path) -> Vec<(&'static str, String)> {
    let broker = &world.broker;
    vec![
        ("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap())),
        ("KUBECACHEDIR", tools.join("kubectl").display().to_string()),
        ("NAMESPACE", world.namespace.clone()),
        ("OPERATOR_NAMESPACE", world.namespace.clone()),
        ("PIPELINE", "orders".to_owned()),
        ("QUEUE", SOURCE.to_owned()),
        ("VHOST", world.vhost.clone()),
        ("AUDIT_VHOST", world.vhost.clone()),
        ("BROKER", format!("http://{}@{}", broker.user, broker.address)),
        ("REDRIVE_BROKER_PASSWORD", broker.password.clone()),
        ("REDRIVE_BROKER_AMQP_URI", broker.amqp.clone()),
    ]
}

/// Makes the place as a page wants to find it, and says which replay it is about.
async fn furnish(world: &World, page: &Page) -> String {
    for queue in [DLQ, QUARANTINE] {
        world.broker.delete(&["queues", &world.vhost, queue, "contents"]).await;
        world.broker.fill(&world.vhost, queue, DEAD_LETTERS).await;
    }
    if !page.steers() {
        return "ended".to_owned();
    }
    let name = page.name.to_lowercase();
    world.replay(&name, json!({"notBefore": "2100-01-01T00:00:00Z"})).await;
    world.until_phase(&name, "Scheduled").await;
    name
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works() {
    let ours = std::env::var("REDRIVE_DEV_OURS").unwrap_or_default();
    if !ours.contains(&variable("REDRIVE_BROKER_43_URI")) {
        eprintln!("left out: rabbitmqctl takes a broker that is ours");
        return;
    }
    let world = prepared().await;
    let consumer = Wire::open(&world).await.succeed(SOURCE).await;
    let tools = tools();
    let fixed = variables(&world, &tools);
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        let replay = furnish(&world, &page).await;
        let variables: Vec<_> = fixed.iter().cloned().chain([("REPLAY", replay.clone())]).collect();
        for block in &page.commands {
            count += 1;
            if block.contains("redrive replay") {
                // A replay is called after the second in which it is asked for.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            if let Err(why) = run(block, &variables).await {
                wrong.push(format!("{}: {block}{why}", page.name));
            }
        }
        if page.steers() {
            world.delete_replay(&replay).await;
        }
    }
    assert!(wrong.is_empty(), "{} of {count} commands fail:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 80, "only {count} commands");
    consumer.close(200, "done".into()).await.unwrap();
    std::fs::remove_dir_all(&tools).unwrap();
    world.leave().await;
}

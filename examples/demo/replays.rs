//! Moves dead orders back: looked at, planned, approved, ten first and then the rest. Then once
//! more with a consumer that still fails, until the replay stops by itself.

use std::collections::BTreeMap;

use kube::Client;
use redrive::api::DlqReplay;

use crate::orders::{Order, Outcome, Report};
use crate::redrive::{Person, Redrive, summary};
use crate::show::Show;
use crate::workers::Release;
use crate::{Arguments, Result};

/// Orders that die at once, in each of the two acts.
const LOT: usize = 60;

/// Orders of the first, careful replay.
const FIRST: usize = 10;

/// The guard of the replay that has to stop: of how many messages it counts those that came
/// back, how many it moves at once, and how many test whether it may go on.
const SAMPLE: usize = 20;
const BATCH: usize = 10;
const TEST: usize = 3;

/// Exit codes of the command.
const DONE: i32 = 0;
const STOPPED: i32 = 4;
const AWAITS_APPROVAL: i32 = 5;

/// What takes part in each scene.
struct Scenes<'a> {
    show: &'a mut Show,
    redrive: Redrive,
    pipeline: &'a str,
}

pub(crate) async fn show(show: &mut Show, client: Client, arguments: &Arguments) -> Result<()> {
    let redrive = Redrive::new(arguments, client);
    if !redrive.has_approver() {
        println!(
            "\nLeft out from here on: a second person who approves. That takes two users and the policies in \
             admission/, which the demo makes on a cluster of its own only."
        );
    }
    let mut scenes = Scenes { show, redrive, pipeline: &arguments.pipeline };
    let dead = scenes.look().await?;
    scenes.plan(&dead).await?;
    scenes.show.screen.title("Release 2 has the fault repaired. Ten orders first");
    scenes.show.deploy(arguments, Release::Fixed).await?;
    let first = scenes.first(&dead).await?;
    scenes.rest(&dead, first).await?;
    scenes.show.screen.title("Release 3 has the old fault again, and somebody replays in good faith");
    scenes.show.deploy(arguments, Release::Broken).await?;
    scenes.still_broken().await
}

impl Scenes<'_> {
    /// Fills the dead-letter queue and looks into it. Returns what it holds.
    async fn look(&mut self) -> Result<Vec<String>> {
        self.show.screen.title(&format!("{LOT} more orders die, whose producer wants no retries"));
        self.kill("declined").await?;
        let dead = self.dead().await?;
        println!("{} orders are in {}", dead.len(), self.show.topology.dead);
        self.show.screen.title("What died, and why? Nothing is taken out");
        self.run(Person::Administrator, &["inspect", self.pipeline, "--samples", "2"], DONE).await?;
        self.unchanged(&dead).await?;
        Ok(dead)
    }

    /// A dry run: the plan, and nothing else.
    async fn plan(&mut self, dead: &[String]) -> Result<()> {
        self.show.screen.title("What would a replay do? A dry run ends with the plan");
        let name = self.redrive.name("orders-dry-run");
        let why = "what died since release 1";
        let asked = [
            "replay",
            self.pipeline,
            "--name",
            &name,
            "--deadline",
            "10m",
            "--dry-run",
            "--wait",
            "--justification",
            why,
        ];
        self.run(Person::Requester, &asked, DONE).await?;
        let replay = self.redrive.replay(&name).await?;
        ended(&replay, "Completed", 0..=0)?;
        let selected = replay.status.and_then(|status| status.plan).map(|plan| plan.matching);
        if selected != i64::try_from(dead.len()).ok() {
            return Err(format!("the plan should select {} orders, not {selected:?}", dead.len()).into());
        }
        self.unchanged(dead).await
    }

    /// A few orders. Returns what the consumers said of them.
    async fn first(&mut self, dead: &[String]) -> Result<Vec<Report>> {
        let limit = FIRST.to_string();
        let options = ["--limit", &limit, "--rate", "5"];
        let name = self.approved("orders-ten", "ten of them, fixed in release 2", &options, DONE).await?;
        ended(&self.redrive.replay(&name).await?, "Completed", FIRST..=FIRST)?;
        let heard = self.show.listen(|heard| heard.len() >= FIRST).await?;
        processed_once(&heard, &dead[..FIRST])?;
        self.unchanged(&dead[FIRST..]).await?;
        println!("{FIRST} orders are processed, {} are dead", dead.len() - FIRST);
        Ok(heard)
    }

    async fn rest(&mut self, dead: &[String], mut heard: Vec<Report>) -> Result<()> {
        self.show.screen.title("They went well: the rest");
        let rest = dead.len() - FIRST;
        let name =
            self.approved("orders-rest", "the rest, fixed in release 2", &["--rate", "10"], DONE).await?;
        ended(&self.redrive.replay(&name).await?, "Completed", rest..=rest)?;
        heard.extend(self.show.listen(|heard| heard.len() >= rest).await?);
        processed_once(&heard, dead)?;
        self.unchanged(&[]).await?;
        println!("All {} dead orders are processed, each once", dead.len());
        Ok(())
    }

    /// A replay whose messages fail again stops by itself, and all are dead as before.
    async fn still_broken(&mut self) -> Result<()> {
        let all = self.kill("again").await?;
        let (sample, batch, test) = (SAMPLE.to_string(), BATCH.to_string(), TEST.to_string());
        let pace = ["--rate", "20", "--batch", &batch];
        let guard = ["--sample", &sample, "--min-returns", "5"];
        let tests = ["--canary-messages", &test, "--canary-after", "2s", "--canary-tries", "1"];
        let why = "fixed in release 3, they say";
        let name = self.approved("orders-again", why, &[&pace[..], &guard, &tests].concat(), STOPPED).await?;
        let replay = self.redrive.replay(&name).await?;
        let moved = ended(&replay, "Stopped", 1..=SAMPLE + BATCH + TEST)?;
        self.show.until_count(&self.show.topology.dead, LOT).await?;
        let mut dead = self.dead().await?;
        dead.sort();
        if dead != all {
            return Err(format!("all of {all:?} should be dead again, not {dead:?}").into());
        }
        println!(
            "It stopped by itself after {moved} of {LOT} orders, and all {LOT} are dead as before: none is lost"
        );
        Ok(())
    }

    /// Publishes orders that die at once. Returns their names, sorted.
    async fn kill(&mut self, lot: &str) -> Result<Vec<String>> {
        let before = self.dead().await?.len();
        let orders: Vec<Order> = (1..=LOT).map(|number| Order::declined(lot, number)).collect();
        for order in &orders {
            self.show.broker.publish_without_retries(order, &self.show.topology).await?;
        }
        self.show.listen(|heard| heard.len() >= LOT).await?;
        self.show.until_count(&self.show.topology.dead, before + LOT).await?;
        let mut names: Vec<String> = orders.into_iter().map(|order| order.name).collect();
        names.sort();
        Ok(names)
    }

    /// Asks for a replay and, where there is a second person, has it approved. Returns its name.
    async fn approved(&self, of: &str, why: &str, options: &[&str], ends: i32) -> Result<String> {
        let name = self.redrive.name(of);
        let asked =
            ["replay", self.pipeline, "--name", &name, "--deadline", "10m", "--wait", "--justification", why];
        let asked = [asked.as_slice(), options].concat();
        if !self.redrive.has_approver() {
            self.run(Person::Requester, &asked, ends).await?;
            return Ok(name);
        }
        self.run(Person::Requester, &asked, AWAITS_APPROVAL).await?;
        self.run(Person::Approver, &["approve", &name, "--yes", "--watch"], ends).await?;
        let spec = self.redrive.replay(&name).await?.spec;
        let approver = spec.approval.map(|approval| approval.approved_by);
        if approver.is_none() || approver == spec.requested_by {
            return Err(format!("{name} was asked for and approved by the same person: {approver:?}").into());
        }
        Ok(name)
    }

    async fn run(&self, person: Person, words: &[&str], wanted: i32) -> Result<()> {
        match self.redrive.run(person, words).await? {
            code if code == wanted => Ok(()),
            code => Err(format!("redrive {} should end with {wanted}, not {code}", words[0]).into()),
        }
    }

    async fn dead(&self) -> Result<Vec<String>> {
        self.show.broker.peek(&self.show.topology.dead).await
    }

    /// Checks that the dead-letter queue holds these orders, in this order.
    async fn unchanged(&self, wanted: &[String]) -> Result<()> {
        self.show.until_count(&self.show.topology.dead, wanted.len()).await?;
        let found = self.dead().await?;
        if found == wanted {
            return Ok(());
        }
        Err(format!("{} should hold {wanted:?}, not {found:?}", self.show.topology.dead).into())
    }
}

/// Checks how a replay ended, and returns how many messages it moved.
fn ended(replay: &DlqReplay, wanted: &str, moved: std::ops::RangeInclusive<usize>) -> Result<i64> {
    let summary = summary(replay)?;
    let fits = usize::try_from(summary.replayed).is_ok_and(|replayed| moved.contains(&replayed));
    if summary.result == wanted && fits {
        return Ok(summary.replayed);
    }
    Err(format!("the replay should be {wanted} with {moved:?} moved: {summary:?}").into())
}

/// Checks that the consumers processed each of these orders once, and nothing else.
fn processed_once(heard: &[Report], wanted: &[String]) -> Result<()> {
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for report in heard {
        if report.result != Outcome::Processed {
            return Err(format!("{} should be processed: {report:?}", report.order).into());
        }
        *found.entry(&report.order).or_default() += 1;
    }
    let wanted: BTreeMap<&str, usize> = wanted.iter().map(|order| (order.as_str(), 1)).collect();
    if found == wanted {
        return Ok(());
    }
    Err(format!("these should be processed once each: {wanted:?}, but it is {found:?}").into())
}

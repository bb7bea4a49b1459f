//! Publishes orders and follows them until all have come to their end.

use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::broker::{Broker, Counts};
use crate::orders::{Book, Kind, Order, Place, Report};
use crate::screen::Screen;
use crate::topology::Topology;
use crate::workers::{self, News, Release, Workers};
use crate::{Arguments, Result};

/// The pause between two orders.
const PACE: Duration = Duration::from_millis(150);

/// How often the broker is asked for its counts.
const LOOK: Duration = Duration::from_millis(200);

/// How much longer than the longest way it may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that takes part.
pub(crate) struct Show {
    pub(crate) topology: Topology,
    pub(crate) broker: Broker,
    pub(crate) screen: Screen,
    book: Book,
    workers: Workers,
}

impl Show {
    pub(crate) fn new(topology: Topology, broker: Broker, workers: Workers, screen: Screen) -> Self {
        Self { topology, broker, screen, book: Book::default(), workers }
    }

    /// Publishes orders, one after the other, and shows their way; the first one
    /// is shown step by step.
    pub(crate) async fn walk(&mut self, orders: Vec<Order>) -> Result<()> {
        let followed = self.book.orders.len();
        let with_table = orders.len() > 1;
        let limit = PACE * u32::try_from(orders.len())? + self.topology.longest_way() + PATIENCE;
        orders.into_iter().for_each(|order| self.book.add(order));
        let start = Instant::now();
        let (mut pace, mut look) = (interval(PACE), interval(LOOK));
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut next = followed;
        let mut settled = false;
        self.screen.begin(start, followed, with_table);
        while !settled && start.elapsed() < limit {
            tokio::select! {
                news = self.workers.next() => match news {
                    News::Ended(why) => return Err(why.into()),
                    News::Delivery(report, at) => { self.book.record(report, at); }
                },
                _ = pace.tick(), if next < self.book.orders.len() => {
                    self.broker.publish(&self.book.orders[next], &self.topology).await?;
                    self.book.orders[next].published = true;
                    next += 1;
                }
                _ = look.tick() => {
                    let counts = self.broker.counts(&self.topology).await?;
                    settled = self.is_settled(&counts);
                    self.screen.show(&self.book, &self.topology, &counts);
                }
            }
        }
        self.screen.end();
        Ok(())
    }

    /// Whether consumers and broker agree that nothing is on its way.
    fn is_settled(&self, counts: &Counts) -> bool {
        let tiers = self.topology.tiers.len();
        let at_an_end = |order: &Order| {
            matches!(order.place(tiers), Place::Processed | Place::Dead) || order.kind == Kind::Crashes
        };
        let holds = |queue: &String| counts.get(queue).copied().flatten().unwrap_or(0) as usize;
        let ends = [&self.topology.dead, &self.topology.poison];
        let on_the_way: usize =
            self.topology.queues.iter().filter(|queue| !ends.contains(queue)).map(holds).sum();
        self.book.orders.iter().all(at_an_end)
            && on_the_way == 0
            && holds(&self.topology.dead) >= self.book.expected(Kind::FailsAlways)
            && holds(&self.topology.poison) >= self.book.expected(Kind::Crashes)
    }

    /// Holds all orders against the messages in the last queues.
    pub(crate) async fn check(&self) -> Result<()> {
        let ends = self.broker.ends(&self.topology).await?;
        let problems = self.book.problems(&self.topology, &ends);
        if problems.is_empty() {
            return Ok(());
        }
        let (wrong, all) = (problems.len(), self.book.orders.len());
        Err(format!("{wrong} of {all} orders are not as they should be:\n  {}", problems.join("\n  ")).into())
    }

    /// Puts consumers of another release in the place of those that run.
    pub(crate) async fn deploy(&mut self, arguments: &Arguments, release: Release) -> Result<()> {
        self.workers.stop();
        self.until_consumers(0).await?;
        self.workers = Workers::start(arguments, &self.topology.source, release)?;
        self.until_consumers(workers::NAMES.len()).await
    }

    async fn until_consumers(&self, wanted: usize) -> Result<()> {
        let start = Instant::now();
        while self.broker.consumers(&self.topology.source).await? as usize != wanted {
            if start.elapsed() > PATIENCE {
                return Err(format!("{} never had {wanted} consumers", self.topology.source).into());
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Listens to the consumers until they have said enough, or for too long. Returns all that
    /// they said.
    pub(crate) async fn listen(&mut self, enough: impl Fn(&[Report]) -> bool) -> Result<Vec<Report>> {
        let mut heard = Vec::new();
        while !enough(&heard) {
            match timeout(PATIENCE, self.workers.next()).await {
                Ok(News::Delivery(report, _)) => heard.push(report),
                Ok(News::Ended(why)) => return Err(why.into()),
                Err(_) => break,
            }
        }
        Ok(heard)
    }

    /// Waits until so many messages are in a queue, by the broker's own count.
    pub(crate) async fn until_count(&self, queue: &str, wanted: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let found = self.broker.counts(&self.topology).await?.get(queue).copied().flatten();
            if found == u32::try_from(wanted).ok() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{queue} should hold {wanted} messages, not {found:?}").into());
            }
            sleep(LOOK).await;
        }
    }

    /// Says that the check went well, with the figures behind it.
    pub(crate) fn summary(&self) {
        self.screen.summary(&self.book, &self.topology);
    }
}

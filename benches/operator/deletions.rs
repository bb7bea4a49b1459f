//! Pipelines that are deleted all at once.

use std::time::Duration;

use crate::Result;
use crate::figures::{Bench, VHOST, settle};
use crate::process::Operator;
use crate::shapes::{self, Shape};
use crate::table::Figure;

/// How many.
const DELETED: usize = 300;

impl Bench {
    /// Deletes them all at once, beside a script that deletes the same.
    pub(crate) async fn delete(&mut self, shape: Shape, mode: &str, policy: &str) -> Result<()> {
        let vhosts = [VHOST.to_owned()];
        let script = self.deletion_script(shape, &vhosts).await?;
        let cluster = self.fresh(&format!("{mode}-{policy}").to_lowercase(), &vhosts).await?;
        let operator = Operator::start(&cluster.namespace)?;
        settle().await;
        self.apply(&cluster, &operator, (shape, DELETED), &vhosts, policy).await?;
        settle().await;
        // Twice ten seconds for the proofs, and the longest delay with its margin.
        let waits = if policy == "Delete" { 0.0 } else { 10.0 + 4.0 + 10.0 };
        let took = cluster.delete_all().await?;
        // The limit is for chains as the anchor has them; those of mode Broker are larger.
        let limit = matches!(shape, Shape::ShortApplication).then_some(15.0 + waits);
        let figure = Figure::time(format!("{DELETED} deleted, mode {mode}, {policy}"), took, limit);
        let reference = format!("script {:.2} s", script.as_secs_f64());
        let ratio = (took.as_secs_f64() - waits) / script.as_secs_f64();
        self.add(Figure { reference, ratio: Some(ratio), ..figure });
        let left = self.broker.queue_count(VHOST).await?;
        self.add(Figure::count("… queues left", left, "0", left == 0));
        self.clean(operator, cluster, &vhosts).await
    }

    /// The script's time to delete what as many pipelines declare.
    async fn deletion_script(&self, shape: Shape, vhosts: &[String]) -> Result<Duration> {
        let plans = shapes::plans(&shapes::pipelines(shape, DELETED, vhosts, "Retain")?, &self.overview)?;
        for vhost in vhosts {
            self.broker.fresh_vhost(vhost).await?;
        }
        self.broker.script(&plans).await?;
        settle().await;
        let took = self.broker.deletion_script(&plans).await?;
        self.broker.clear(vhosts).await?;
        Ok(took)
    }
}

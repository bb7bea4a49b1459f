//! How much of its resource's status the names of a pipeline may take.
//!
//! Status lists what a pipeline has on its broker by full names, so that people can
//! search for them. Together with the longest messages it must stay below 64 KiB,
//! which is for the names to bear: they are the only part that a user makes long.

use super::pipeline::Pipeline;
use super::problem::Problem;
use super::spec::Mode;

/// Most bytes that names may take in a status, with what stands around them.
const MAX_BYTES: usize = 50_000;

/// Around a name in the inventory: quotes and a comma.
const LISTED: usize = 3;

/// Around a name in the list of queues: its role and the number of its messages.
const COUNTED: usize = 60;

/// Around a name in the client contract: type and arguments.
const PROMISED: usize = 240;

/// Around a binding in the inventory, where no other one has its exchange.
const BOUND: usize = 72;

/// Longest suffix of a generation that still counts as short.
const GENERATION: usize = ".g99".len();

/// What one part of a specification takes.
struct Share {
    field: &'static str,
    what: String,
    bytes: usize,
}

/// Refuses what would make the status too long, and names the part that takes most.
pub(super) fn check(pipeline: &Pipeline, problems: &mut Vec<Problem>) {
    let shares =
        [queue(pipeline), retry(pipeline), dead_letter(pipeline), quarantine(pipeline), bindings(pipeline)];
    let total: usize = shares.iter().map(|share| share.bytes).sum();
    if total <= MAX_BYTES {
        return;
    }
    if let Some(Share { field, what, bytes }) = shares.into_iter().max_by_key(|share| share.bytes) {
        let message = format!(
            "all names of this pipeline take {total} bytes in its status, and at most {MAX_BYTES} are allowed; {bytes} of them are for {what}: shorten those, or list fewer"
        );
        problems.push(Problem { field: field.to_owned(), message });
    }
}

/// The source, its chain and the way back, all of which begin with its name.
fn queue(pipeline: &Pipeline) -> Share {
    let names = pipeline.names();
    let source = &pipeline.spec.source;
    let mut bytes = counted(&source.queue) + promised(&source.queue) + in_json(&pipeline.dlq);
    bytes += source.exchange.as_ref().map_or(0, |exchange| listed(&exchange.name));
    if pipeline.has_chain() {
        let chain = [names.rest(), names.dead(), names.ladder(), names.guard(), names.first()];
        let slots = [names.head(), names.alternate(), names.fallback()];
        bytes += chain.iter().chain(&slots).map(|name| listed(name)).sum::<usize>();
        bytes += pipeline.tiers.iter().map(|tier| listed(&names.returns(tier.number))).sum::<usize>();
    }
    Share { field: "source.queue.name", what: "the work queue and its exchanges".to_owned(), bytes }
}

fn retry(pipeline: &Pipeline) -> Share {
    let application = pipeline.spec.mode == Mode::Application;
    let (mut bytes, mut count) = (0, 0);
    for tier in &pipeline.tiers {
        for name in tier.shards.iter().map(|shard| tier.queue(1, shard)) {
            count += 1;
            bytes += counted(&name);
            if application {
                // Its name stays, and the contract says where it leads to.
                bytes += promised(&name) + in_json(&pipeline.spec.source.queue);
                bytes -= listed(&name) / 2;
            }
        }
        if tier.shards.len() > 1 && !application {
            bytes += listed(&tier.spreader(1));
        }
    }
    Share { field: "retry.naming.template", what: format!("{count} retry queues"), bytes }
}

fn dead_letter(pipeline: &Pipeline) -> Share {
    let parking_lot = pipeline.spec.dead_letter.parking_lot.then(|| pipeline.names().parking_lot());
    let bytes =
        counted(&pipeline.dlq) + promised(&pipeline.dlq) + parking_lot.map_or(0, |name| counted(&name));
    Share { field: "deadLetter.name", what: "the dead-letter queue".to_owned(), bytes }
}

fn quarantine(pipeline: &Pipeline) -> Share {
    let names = pipeline.names();
    let categories: Vec<&str> = pipeline.quarantine_categories().collect();
    let of_one = |category: &&str| counted(&names.quarantine(category)) + listed(&names.category(category));
    let bytes = categories.iter().map(of_one).sum();
    Share { field: "deadLetter.quarantine", what: format!("{} quarantine queues", categories.len()), bytes }
}

fn bindings(pipeline: &Pipeline) -> Share {
    let bindings = &pipeline.spec.source.bindings;
    let of_one = bindings.iter().map(|one| in_json(&one.exchange) + in_json(&one.routing_key) + BOUND);
    Share { field: "source.bindings", what: format!("{} bindings", bindings.len()), bytes: of_one.sum() }
}

/// A name in the inventory, twice: a change keeps what was before until it is empty.
fn listed(name: &str) -> usize {
    2 * (in_json(name) + LISTED) + GENERATION
}

/// A queue: in the inventory, and with its messages.
fn counted(name: &str) -> usize {
    listed(name) + in_json(name) + GENERATION + COUNTED
}

/// A queue in the client contract.
fn promised(name: &str) -> usize {
    in_json(name) + PROMISED
}

/// The bytes of a name as JSON writes it; control characters are in none.
fn in_json(name: &str) -> usize {
    name.len() + name.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count()
}

//! Queues and exchanges: whether they are there, as wanted, and ours.

use super::super::desired::{Desired, DesiredExchange, DesiredQueue, QueueRole};
use super::super::model::{Arg, Destination, ObjectKey, Queue};
use super::super::names::OWNER_EXCHANGE;
use super::super::observed::ObservedQueue;
use super::super::ownership::{self, Standing, State, describe, marker, marker_for, markers_of, standing};
use super::super::plan::{BlockedBy, Stage, Step};
use super::super::spec::Identity;
use super::Differ;
use super::mismatch::{Mismatch, describe_mismatches, exchange_mismatches, queue_mismatches};

/// An object that exists, and what is known about it.
struct Existing<'a> {
    key: ObjectKey,
    object: Destination,
    mismatches: &'a [Mismatch],
    /// Whether other pipelines may own it too.
    shared: bool,
    /// Whether nobody can have used it yet.
    untouched: bool,
    generation: u32,
    /// For a queue: what it is for.
    role: Option<&'a QueueRole>,
}

/// Whose an existing object is.
enum Verdict {
    Ours(State),
    /// Not ours, or nobody's, and not as wanted.
    Unequal,
    Conflict(String),
}

impl Differ<'_> {
    pub(super) fn contested(&mut self, desired: &Desired) {
        let queues = desired.queues.iter().map(|queue| ObjectKey::Queue(queue.queue.name.clone()));
        let exchanges = desired.exchanges.iter().filter(|exchange| !exchange.shared);
        let keys =
            queues.chain(exchanges.map(|exchange| ObjectKey::Exchange(exchange.exchange.name.clone())));
        for key in keys.collect::<Vec<_>>() {
            if let Some(who) = self.context.contested.get(&key) {
                let why = format!("{who} claims it as well and is older; use another name");
                self.block(BlockedBy::Conflict, &key, why);
            }
        }
    }

    pub(super) fn owner_exchange(&mut self) {
        let wanted = ownership::owner_exchange();
        let Some(found) = self.context.observed.exchanges.get(OWNER_EXCHANGE) else {
            self.plan.push(Stage::Owner, Step::CreateExchange { exchange: wanted, marker: None });
            return;
        };
        let mismatches = exchange_mismatches(&wanted, found);
        if !mismatches.is_empty() {
            let object = format!("exchange {OWNER_EXCHANGE}");
            self.block(BlockedBy::Conflict, object, describe_mismatches(&mismatches));
        }
    }

    pub(super) fn exchange(&mut self, wanted: &DesiredExchange) {
        let exchange = &wanted.exchange;
        let object = Destination::Exchange(exchange.name.clone());
        let key = ObjectKey::Exchange(exchange.name.clone());
        let Some(found) = self.context.observed.exchanges.get(&exchange.name) else {
            let marker = Some(marker(&self.context.pipeline.identity, object.clone()));
            self.plan.push(wanted.stage, Step::CreateExchange { exchange: exchange.clone(), marker });
            self.record(key, State::Created, wanted.generation);
            self.usable.insert(object);
            return;
        };
        let mismatches = exchange_mismatches(exchange, found);
        let untouched = self.is_unbound(&exchange.name);
        self.existing(&Existing {
            key,
            object,
            mismatches: &mismatches,
            shared: wanted.shared,
            untouched,
            generation: wanted.generation,
            role: None,
        });
    }

    fn is_unbound(&self, exchange: &str) -> bool {
        let observed = self.context.observed;
        observed.bindings_from(exchange).next().is_none()
            && observed.bindings_to(&Destination::Exchange(exchange.to_owned())).next().is_none()
    }

    pub(super) fn queue(&mut self, wanted: &DesiredQueue) {
        let queue = &wanted.queue;
        let object = Destination::Queue(queue.name.clone());
        let key = ObjectKey::Queue(queue.name.clone());
        let found = self.context.observed.queues.get(&queue.name);
        if wanted.role == QueueRole::Source && self.is_ownership_refused() {
            return;
        }
        if !wanted.declared {
            self.external_source(queue, found);
            return;
        }
        let Some(found) = found else {
            let marker = marker(&self.context.pipeline.identity, object.clone());
            self.plan.push(wanted.stage, Step::CreateQueue { queue: queue.clone(), marker });
            self.record(key, State::Created, wanted.generation);
            self.usable.insert(object);
            return;
        };
        let mismatches = queue_mismatches(queue, found);
        let bindings = self.context.observed.bindings_to(&object).count();
        self.existing(&Existing {
            key,
            object,
            mismatches: &mismatches,
            shared: false,
            untouched: found.totals.messages == Some(0) && bindings == 0,
            generation: wanted.generation,
            role: Some(&wanted.role),
        });
    }

    fn external_source(&mut self, queue: &Queue, found: Option<&ObservedQueue>) {
        let object = Destination::Queue(queue.name.clone());
        let Some(found) = found else {
            let why =
                "does not exist: its application must declare an External source, or use ownership Managed";
            self.block(BlockedBy::Missing, &object, why);
            return;
        };
        match external_problem(queue, found) {
            Some((by, why)) => self.block(by, &object, why),
            None => {
                self.usable.insert(object);
            }
        }
    }

    /// Judges an object that exists, and marks it where the marker is missing.
    fn existing(&mut self, existing: &Existing<'_>) {
        let Existing { key, object, mismatches, generation, .. } = existing;
        if existing.shared && mismatches.is_empty() && self.is_marked_as_recorded(key, object) {
            self.usable.insert(object.clone());
            return;
        }
        let state = match self.whose(existing) {
            Verdict::Conflict(why) => return self.block(BlockedBy::Conflict, key, why),
            Verdict::Unequal => {
                return self.block(BlockedBy::ArgumentMismatch, key, describe_mismatches(mismatches));
            }
            Verdict::Ours(state) => state,
        };
        if !mismatches.is_empty() && !self.refuse_edit(key, existing.role, mismatches) {
            // It is ours and does its work, and nothing that we know of asks for it.
            self.block(BlockedBy::ArgumentMismatch, key, describe_mismatches(mismatches));
            self.unequal.insert(object.name().to_owned());
        }
        let observed = self.context.observed;
        let us = &self.context.pipeline.identity;
        let wanted = marker_for(us, object.clone(), state);
        let mut stale = match standing(observed, object, us) {
            Standing::Inherited { stale, .. } => stale,
            _ => Vec::new(),
        };
        stale.extend(markers_of(observed, object, us).filter(|found| **found != wanted).cloned());
        if !observed.has_binding(&wanted) {
            self.plan.push(Stage::Owner, Step::Mark(wanted));
        }
        for marker in stale {
            self.plan.push(Stage::Unbind, Step::Unmark(marker));
        }
        self.record(key.clone(), state, *generation);
        self.usable.insert(object.clone());
    }

    /// A shared exchange may have a thousand owners. Where our marker is what it
    /// must be, there is nothing to read in the others'.
    fn is_marked_as_recorded(&self, key: &ObjectKey, object: &Destination) -> bool {
        let Some(state @ (State::Created | State::Adopted)) = self.known(key) else { return false };
        self.context.observed.has_binding(&marker_for(&self.context.pipeline.identity, object.clone(), state))
    }

    fn whose(&self, existing: &Existing<'_>) -> Verdict {
        let equal = existing.mismatches.is_empty();
        let known = self.known(&existing.key);
        let recorded = matches!(known, Some(State::Created | State::Adopted));
        let ours = |adopted: bool| Verdict::Ours(if adopted { State::Adopted } else { State::Created });
        match standing(self.context.observed, &existing.object, &self.context.pipeline.identity) {
            // Two operators were equally fast: who has recorded it keeps it.
            Standing::Ours { others, .. } | Standing::Inherited { others, .. }
                if !others.is_empty() && !existing.shared && !recorded =>
            {
                belongs_to(&others)
            }
            Standing::Ours { adopted, .. } => ours(adopted || known == Some(State::Adopted)),
            Standing::Inherited { adopted, .. } => ours(adopted),
            // Equal exchanges may have several owners; the last one deletes it,
            // unless it was there before the first.
            Standing::Foreign { adopted, .. } if existing.shared && equal => ours(adopted),
            Standing::Foreign { owners, .. } if existing.shared => Verdict::Conflict(format!(
                "belongs to {} as well, and {}",
                describe(&owners),
                describe_mismatches(existing.mismatches)
            )),
            Standing::Foreign { owners, .. } => belongs_to(&owners),
            Standing::Unmarked if !equal => Verdict::Unequal,
            // Declared by us a moment ago, and killed before the marker was written.
            Standing::Unmarked if known == Some(State::Intended) && existing.untouched => ours(false),
            // Somebody deleted and declared it again, or took the marker away: it
            // is used, but nothing that we can't prove to be ours is deleted.
            Standing::Unmarked if recorded || self.context.adopt => ours(true),
            Standing::Unmarked => Verdict::Conflict(
                "exists already and is not ours: set adopt: true to take it over, or use another name"
                    .to_owned(),
            ),
        }
    }
}

fn belongs_to(owners: &[Identity]) -> Verdict {
    Verdict::Conflict(format!(
        "belongs to {}; use another name, or delete that resource first",
        describe(owners)
    ))
}

/// Why an External source can't be served: what it has beats our policy, or would
/// lose messages.
fn external_problem(wanted: &Queue, found: &ObservedQueue) -> Option<(BlockedBy, String)> {
    let argument = |key: &str| found.arguments.get(key);
    if found.kind != wanted.kind {
        let why =
            format!("is of type {} where {} is wanted: correct source.queue.type", found.kind, wanted.kind);
        return Some((BlockedBy::ArgumentMismatch, why));
    }
    if let Some(key) = found.arguments.keys().find(|key| key.starts_with("x-dead-letter-")) {
        let why = format!(
            "has the argument {key}, which beats our policy: its application must declare it without"
        );
        return Some((BlockedBy::PolicyConflict, why));
    }
    let fleeting = [
        (!found.durable, "is not durable"),
        (found.auto_delete, "is auto-delete"),
        (found.exclusive, "is exclusive"),
        (argument("x-expires").is_some(), "has the argument x-expires"),
        (
            argument("x-overflow") == Some(&Arg::from("reject-publish-dlx")),
            "has x-overflow reject-publish-dlx",
        ),
    ];
    let (_, what) = fleeting.into_iter().find(|(holds, _)| *holds)?;
    let why = format!("{what} and would lose messages: its application must declare it otherwise");
    Some((BlockedBy::ArgumentMismatch, why))
}

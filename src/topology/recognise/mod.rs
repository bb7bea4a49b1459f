//! Pipelines read back from a vhost: what a live topology would have been described by.
//!
//! Two kinds are recognised. What Redrive declared has markers, which name its owner, and a
//! structure that nothing else has ([`own`]). What applications and client libraries declared has
//! neither: there a work queue that dead-letters straight to a queue, and queues with a TTL that
//! lead straight back to it, make a pipeline in mode Application ([`foreign`]).
//!
//! Recognising is guessing, so that every guess is put to the same comparison that an operator would
//! make, with `adopt`: a description counts as true if that comes out with nothing to write
//! but markers ([`verify`]).

mod foreign;
mod naming;
mod numbers;
mod own;
mod verify;

use std::collections::{BTreeMap, BTreeSet};

use super::effective::PolicyIndex;
use super::observed::{BrokerFacts, Observed};
use super::spec::{Identity, Spec};
use super::validate::Pipeline;
pub use naming::resource_name;
use verify::Refused;
pub use verify::{BY_HAND, Effect};

/// What is looked at, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// What the vhost holds.
    pub observed: &'a Observed,
    /// The broker's version and abilities.
    pub facts: &'a BrokerFacts,
    /// The vhost's policies, compiled.
    pub policies: &'a PolicyIndex<'a>,
    /// The namespace of pipelines that nobody described before.
    pub namespace: &'a str,
    /// The id of the Kubernetes cluster whose operator will own them.
    pub cluster: &'a str,
}

/// A pipeline that describes a part of the vhost.
#[derive(Clone, Debug)]
pub struct Described {
    /// Whether markers of Redrive say whose it is; otherwise name and namespace were chosen here.
    pub marked: bool,
    /// The checked pipeline.
    pub pipeline: Pipeline,
    /// What applying it with `adopt` would do.
    pub effect: Effect,
    /// What the broker does not tell, or what the description leaves out.
    pub remarks: Vec<String>,
}

/// A queue that takes part in dead-lettering and that no pipeline can describe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unfit {
    /// The queue.
    pub queue: String,
    /// Other queues that belong to it.
    pub related: Vec<String>,
    /// Why not.
    pub why: String,
    /// What to do.
    pub instead: String,
}

/// All that was found.
#[derive(Clone, Debug, Default)]
pub struct Recognised {
    /// In the order of their namespaces and names.
    pub pipelines: Vec<Described>,
    /// In the order of their queues.
    pub unfit: Vec<Unfit>,
    /// How many queues neither dead-letter nor are led to by queues that do.
    pub plain: usize,
}

/// What to do where the markers are there and the rest is damaged.
const MANIFEST: &str = "apply the manifest that it was made from";

/// Two operators have used one broker.
const TWICE: &str =
    "Pipelines of several clusters have this namespace and name: apply the one of your own cluster alone.";

/// A guess: what a pipeline may have looked like.
#[derive(Clone, Debug, PartialEq)]
struct Guess {
    spec: Spec,
    remarks: Vec<String>,
}

/// Reads pipelines whose source queue is `wanted` back from a vhost. Takes time and memory in
/// proportion to what the vhost holds.
#[must_use]
pub fn recognise(look: &Look<'_>, wanted: &dyn Fn(&str) -> bool) -> Recognised {
    let mut found =
        Found { look, taken: Taken::default(), names: BTreeSet::new(), result: Recognised::default() };
    found.own(wanted);
    let foreign = foreign::Graph::new(look);
    found.foreign(&foreign, wanted);
    found.rest(&foreign, wanted);
    found.finish()
}

/// What the descriptions so far declare.
#[derive(Debug, Default)]
struct Taken {
    /// Queues and exchanges, each with the pipeline's name.
    objects: BTreeMap<verify::Object, String>,
    /// Queues that a sentence speaks of already.
    told: BTreeSet<String>,
}

struct Found<'a> {
    look: &'a Look<'a>,
    taken: Taken,
    names: BTreeSet<(String, String)>,
    result: Recognised,
}

impl Found<'_> {
    fn own(&mut self, wanted: &dyn Fn(&str) -> bool) {
        for (owner, objects) in own::owners(self.look) {
            let queue = own::source(self.look, &owner, &objects);
            let any = objects.queues.first().copied().unwrap_or_default();
            let known = queue.as_deref().unwrap_or(any);
            let asked_for = wanted(known);
            // Recognised or not: they are not to be taken for somebody else's.
            self.taken.told.extend(objects.queues.iter().map(|name| (*name).to_owned()));
            let twice = !self.names.insert((owner.namespace.clone(), owner.name.clone()));
            if !asked_for {
                continue;
            }
            let guesses = match queue.as_deref() {
                Some(queue) => own::read(self.look, &owner, &objects, queue),
                None => Err("its markers name no source queue".to_owned()),
            };
            let judged = guesses
                .map_err(|why| Refused::new(why, MANIFEST))
                .and_then(|guesses| self.best(&owner, guesses));
            match judged {
                Ok(mut described) => {
                    if twice {
                        described.remarks.push(TWICE.to_owned());
                    }
                    self.describe(Described { marked: true, ..described });
                }
                Err(Refused { why, .. }) => self.result.unfit.push(Unfit {
                    queue: known.to_owned(),
                    related: Vec::new(),
                    why: format!(
                        "belongs to the RetryPipeline {}/{} of Redrive, and {why}",
                        owner.namespace, owner.name
                    ),
                    instead: MANIFEST.to_owned(),
                }),
            }
        }
    }

    fn foreign(&mut self, graph: &foreign::Graph<'_>, wanted: &dyn Fn(&str) -> bool) {
        for queue in graph.sources() {
            if self.taken.told.contains(queue) || !wanted(queue) {
                continue;
            }
            let related = graph.related(queue);
            let owner = self.fresh(queue);
            let judged = match graph.read(self.look, queue) {
                Ok(guesses) => {
                    self.best(&owner, guesses).map_err(|refused| (refused.why, refused.instead.to_owned()))
                }
                Err(refused) => Err(refused),
            };
            match judged {
                Ok(described) => {
                    self.names.insert((owner.namespace, owner.name));
                    self.describe(described);
                }
                Err((why, instead)) => {
                    self.taken.told.insert(queue.to_owned());
                    self.taken.told.extend(related.iter().cloned());
                    self.result.unfit.push(Unfit { queue: queue.to_owned(), related, why, instead });
                }
            }
        }
    }

    /// A name for a pipeline that nobody has named yet.
    fn fresh(&self, queue: &str) -> Identity {
        let base = resource_name(queue);
        let taken = |name: &String| self.names.contains(&(self.look.namespace.to_owned(), name.clone()));
        let numbered = (2_u32..).map(|number| {
            let number = format!("-{number}");
            let room = base.len().min(63 - number.len());
            format!("{}{number}", base[..room].trim_end_matches(['-', '.']))
        });
        let name =
            std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name)).unwrap_or(base.clone());
        verify::newcomer(self.look, name)
    }

    /// The guess that changes least, or why none holds.
    fn best(&self, owner: &Identity, guesses: Vec<Guess>) -> Result<Described, Refused> {
        let mut best: Option<Described> = None;
        let mut refused = None;
        for Guess { spec, remarks } in guesses {
            match verify::judge(self.look, owner, spec, &self.taken.objects) {
                Ok((pipeline, effect)) => {
                    let better = best.as_ref().is_none_or(|best| effect.size() < best.effect.size());
                    let done = effect == Effect::Nothing;
                    if better {
                        best = Some(Described { marked: false, pipeline, effect, remarks });
                    }
                    if done {
                        break;
                    }
                }
                Err(why) => {
                    refused.get_or_insert(why);
                }
            }
        }
        best.ok_or_else(|| {
            refused.unwrap_or_else(|| Refused::new("nothing that could describe it was found", BY_HAND))
        })
    }

    fn describe(&mut self, described: Described) {
        let identity = &described.pipeline.identity;
        let who = format!("{}/{}", identity.namespace, identity.name);
        for object in verify::objects(self.look, &described.pipeline) {
            if let verify::Object::Queue(name) = &object {
                self.taken.told.insert(name.clone());
            }
            self.taken.objects.insert(object, who.clone());
        }
        self.result.pipelines.push(described);
    }

    /// Queues that nothing was said of so far.
    fn rest(&mut self, graph: &foreign::Graph<'_>, wanted: &dyn Fn(&str) -> bool) {
        for name in self.look.observed.queues.keys() {
            if self.taken.told.contains(name) || !wanted(name) {
                continue;
            }
            match graph.leftover(name) {
                Some((why, instead)) => {
                    self.result.unfit.push(Unfit { queue: name.clone(), related: Vec::new(), why, instead });
                }
                None => self.result.plain += 1,
            }
        }
    }

    fn finish(mut self) -> Recognised {
        let key = |described: &Described| {
            let identity = &described.pipeline.identity;
            (identity.namespace.clone(), identity.name.clone(), identity.cluster.clone())
        };
        self.result.pipelines.sort_by_key(key);
        self.result.unfit.sort();
        self.result
    }
}

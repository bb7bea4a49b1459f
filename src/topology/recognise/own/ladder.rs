//! Retry queues, put together to tiers with their delays and names.

use super::super::super::expand;
use super::super::super::model::{Destination, QueueType};
use super::super::super::observed::ObservedQueue;
use super::super::super::pipeline::Names;
use super::super::super::spec::{Jitter, Mode};
use super::super::Look;
use super::super::naming::{self, Named, Naming};
use super::super::numbers;
use super::chain::without_generation;

/// What a ladder asks for.
#[derive(Clone, Debug)]
pub(in super::super) struct Ladder {
    pub(in super::super) mode: Mode,
    pub(in super::super) delays: Vec<i64>,
    pub(in super::super) jitter: Option<Jitter>,
    pub(in super::super) kind: QueueType,
    pub(in super::super) group_size: Option<i64>,
    pub(in super::super) naming: Option<Naming>,
}

/// One tier as it was found.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The number of its return exchange; 0 in mode Application.
    pub(super) number: u32,
    /// Its name, with the suffix of its generation.
    name: String,
    /// Its delays, shortest first: one for each shard.
    delays: Vec<i64>,
    kind: QueueType,
    group_size: Option<i64>,
}

impl Ladder {
    pub(in super::super) fn without_tiers(mode: Mode) -> Self {
        Self {
            mode,
            delays: Vec::new(),
            jitter: None,
            kind: QueueType::Quorum,
            group_size: None,
            naming: None,
        }
    }

    /// The ladders that these steps may be: names end in a generation, or only look so.
    pub(super) fn of_steps(queue: &str, mode: Mode, steps: &[Step]) -> Result<Vec<Self>, String> {
        let Some(one) = steps.first() else { return Ok(Vec::new()) };
        let (delays, jitter) = delays(steps).ok_or("its retry queues have delays that no jitter gives")?;
        let first = (mode == Mode::Broker).then_some(one.number);
        let named = |name: &dyn Fn(&Step) -> String| -> Vec<Named> {
            let tier = |(step, delay): (&Step, &i64)| Named { name: name(step), delay: *delay };
            steps.iter().zip(&delays).map(tier).collect()
        };
        let whole = named(&|step| step.name.clone());
        let cut = named(&|step| without_generation(&step.name).0.to_owned());
        let mut forms = vec![cut];
        if !forms.contains(&whole) {
            forms.push(whole);
        }
        let ladders: Vec<Self> = forms
            .into_iter()
            .filter_map(|tiers| naming::find(queue, &tiers, first))
            .map(|naming| Self {
                mode,
                delays: naming.order.iter().map(|index| delays[*index]).collect(),
                jitter,
                kind: one.kind,
                group_size: one.group_size,
                naming: Some(naming),
            })
            .collect();
        if ladders.is_empty() {
            Err(no_template(steps.iter().map(|step| step.name.as_str())))
        } else {
            Ok(ladders)
        }
    }
}

/// Why names can't be described.
pub(in super::super) fn no_template<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    format!(
        "the names of its retry queues ({}) follow no template with {{attempt}}, counted without a gap, or with \
         {{delay}} as in 5s",
        shown(&names)
    )
}

/// A few names, and how many more there are.
pub(in super::super) fn shown(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let listed = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{listed} and {more} more") } else { listed }
}

impl Step {
    /// The tier that a rule of the ladder leads to.
    pub(super) fn at(look: &Look<'_>, names: &Names<'_>, target: &Destination) -> Result<Self, String> {
        let (name, queues): (String, Vec<&String>) = match target {
            Destination::Queue(name) => (name.clone(), vec![name]),
            Destination::Exchange(exchange) => {
                let name = exchange.strip_suffix(".shards").unwrap_or(exchange).to_owned();
                let shards =
                    look.observed.bindings_from(exchange).filter_map(|binding| match &binding.destination {
                        Destination::Queue(name) => Some(name),
                        Destination::Exchange(_) => None,
                    });
                (name, shards.collect())
            }
        };
        let missing = || format!("the tier {name} of its ladder has no queue");
        let found: Vec<&ObservedQueue> = queues
            .iter()
            .map(|queue| look.observed.queues.get(*queue))
            .collect::<Option<_>>()
            .ok_or_else(missing)?;
        let one = found.first().ok_or_else(missing)?;
        let back = numbers::text(&one.arguments, "x-dead-letter-exchange");
        let number = back
            .and_then(|back| names.return_number(back))
            .ok_or_else(|| format!("the retry queue {name} does not lead back to its source"))?;
        Ok(Self::new(number, name, &found))
    }

    fn new(number: u32, name: String, queues: &[&ObservedQueue]) -> Self {
        let mut delays: Vec<i64> = queues.iter().filter_map(|queue| numbers::ttl(queue)).collect();
        delays.sort_unstable();
        let one = queues.first();
        Self {
            number,
            name,
            delays,
            kind: one.map_or(QueueType::Quorum, |queue| queue.kind),
            group_size: one.and_then(|queue| numbers::group_size(queue)),
        }
    }
}

/// The ladders that the queues of mode Application may be, those of the same shards together.
pub(in super::super) fn of_application<'a>(
    look: &Look<'_>,
    source: &str,
    queues: impl Iterator<Item = &'a str>,
) -> Result<Vec<Ladder>, String> {
    let tiers: Vec<(&str, &ObservedQueue)> = queues
        .filter_map(|name| Some((name, look.observed.queues.get(name)?)))
        .filter(|(name, queue)| *name != source && numbers::ttl(queue).is_some() && queue.leads_to(source))
        .collect();
    if tiers.is_empty() {
        return Ok(Vec::new());
    }
    let whole: Vec<Step> =
        tiers.iter().map(|(name, queue)| Step::new(0, (*name).to_owned(), &[*queue])).collect();
    let some = of_one_template(source, &whole);
    let whole = Ladder::of_steps(source, Mode::Application, &whole);
    let sharded = sharded(&tiers).map(|steps| Ladder::of_steps(source, Mode::Application, &steps));
    match sharded {
        Some(Ok(mut ladders)) => {
            ladders.extend(whole.unwrap_or_default());
            Ok(ladders)
        }
        _ => whole.or_else(|why| match some.as_slice() {
            [] => Err(why),
            some => Ladder::of_steps(source, Mode::Application, some),
        }),
    }
}

/// The steps that have names of one template with `{delay}`, where not all of them have: under such
/// a template clients may go on with queues of another one, which stay.
fn of_one_template(queue: &str, steps: &[Step]) -> Vec<Step> {
    let named = |step: &Step| Named {
        name: step.name.clone(),
        delay: step.delays.get(step.delays.len() / 2).copied().unwrap_or_default(),
    };
    let all: Vec<Named> = steps.iter().map(named).collect();
    let Some(template) = naming::commonest_by_delay(queue, &all) else { return Vec::new() };
    let fitting = steps.iter().zip(&all).filter(|(_, tier)| naming::gives(&template, queue, tier));
    fitting.map(|(step, _)| step.clone()).collect()
}

/// The tiers, if all queues are shards: `name.s0`, `name.s1`, …
fn sharded(tiers: &[(&str, &ObservedQueue)]) -> Option<Vec<Step>> {
    let mut groups: std::collections::BTreeMap<&str, Vec<(u32, &ObservedQueue)>> =
        std::collections::BTreeMap::new();
    for (name, queue) in tiers {
        let (base, number) = name.rsplit_once(".s")?;
        groups.entry(base).or_default().push((number.parse().ok()?, queue));
    }
    let step = |(name, mut shards): (&str, Vec<(u32, &ObservedQueue)>)| {
        shards.sort_by_key(|(number, _)| *number);
        let complete = (0..).zip(&shards).all(|(wanted, (number, _))| wanted == *number);
        let queues: Vec<&ObservedQueue> = shards.iter().map(|(_, queue)| *queue).collect();
        (complete && queues.len() > 1).then(|| Step::new(0, name.to_owned(), &queues))
    };
    groups.into_iter().map(step).collect()
}

/// The delays and the jitter that spreads them so.
fn delays(steps: &[Step]) -> Option<(Vec<i64>, Option<Jitter>)> {
    let shards = steps.first()?.delays.len();
    if steps.iter().any(|step| step.delays.len() != shards) {
        return None;
    }
    if shards == 1 {
        return Some((steps.iter().filter_map(|step| step.delays.first().copied()).collect(), None));
    }
    let shards = u32::try_from(shards).ok()?;
    (0..=100).find_map(|percent| {
        let jitter = Some(Jitter { percent, shards });
        let delays = steps.iter().map(|step| middle(step, jitter)).collect::<Option<Vec<i64>>>()?;
        Some((delays, jitter))
    })
}

/// The delay that the jitter spreads to exactly what was found.
fn middle(step: &Step, jitter: Option<Jitter>) -> Option<i64> {
    let (shortest, longest) = (step.delays.first()?, step.delays.last()?);
    let middle = shortest.checked_add(*longest)? / 2;
    // The lowest one is cut off at 1 ms.
    let spreads = |delay: &i64| {
        expand::spread(*delay, jitter).iter().map(|shard| shard.ttl).eq(step.delays.iter().copied())
    };
    [middle, middle - 1, middle + 1].into_iter().find(spreads)
}

//! Where one exchange leads a message, as far as its bindings tell.

use std::collections::BTreeSet;

use super::effective;
use crate::replay::selection::Pattern;
use crate::topology::model::{Binding, Destination};
use crate::topology::observed::Observed;

/// Where an exchange leads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// To these queues.
    pub(super) queues: BTreeSet<String>,
    /// To these exchanges, which lead on.
    pub(super) exchanges: BTreeSet<String>,
    /// Why there may be other ways.
    pub(super) unknown: Option<String>,
}

/// Where an exchange, observed with its own bindings, leads a message of that key.
pub(super) fn step(observed: &Observed, exchange: &str, routing_key: &str) -> Step {
    let mut step = Step::default();
    let Some(found) = observed.exchanges.get(exchange) else { return step };
    let matches = |binding: &Binding| match found.kind.as_str() {
        "fanout" => true,
        "direct" => binding.routing_key == routing_key,
        "topic" => Pattern::new(&binding.routing_key).matches(routing_key),
        _ => false,
    };
    let knows = matches!(found.kind.as_str(), "fanout" | "direct" | "topic");
    let mut bindings = observed.bindings_from(exchange).peekable();
    if !knows && bindings.peek().is_some() {
        step.unknown = Some(format!("{exchange:?} has the type {:?}", found.kind));
    }
    for binding in bindings.filter(|binding| matches(binding)) {
        match &binding.destination {
            Destination::Queue(queue) => drop(step.queues.insert(queue.clone())),
            Destination::Exchange(next) => drop(step.exchanges.insert(next.clone())),
        }
    }
    let goes_on = !step.queues.is_empty() || !step.exchanges.is_empty() || step.unknown.is_some();
    if !goes_on && let Some(alternate) = effective::alternate(exchange, found, &effective::policies(observed))
    {
        step.unknown = Some(format!("{exchange:?} leaves it to its alternate exchange {alternate:?}"));
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::model::Args;
    use crate::topology::observed::ObservedExchange;

    fn observed(kind: &str, bindings: &[(&str, &str)]) -> Observed {
        let mut observed = Observed::default();
        let exchange = ObservedExchange {
            kind: kind.to_owned(),
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: Args::new(),
        };
        observed.exchanges.insert("x".to_owned(), exchange);
        observed.set_bindings(bindings.iter().map(|(key, queue)| Binding {
            source: "x".to_owned(),
            destination: match queue.strip_prefix('@') {
                Some(exchange) => Destination::Exchange(exchange.to_owned()),
                None => Destination::Queue((*queue).to_owned()),
            },
            routing_key: (*key).to_owned(),
            arguments: Args::new(),
        }));
        observed
    }

    fn queues(kind: &str, key: &str) -> Vec<String> {
        let observed = observed(kind, &[("a.b", "exact"), ("a.*", "word"), ("#", "all"), ("c", "other")]);
        step(&observed, "x", key).queues.into_iter().collect()
    }

    #[test]
    fn each_type_of_exchange_matches_in_its_own_way() {
        assert_eq!(queues("direct", "a.b"), ["exact"]);
        assert_eq!(queues("topic", "a.b"), ["all", "exact", "word"]);
        assert_eq!(queues("fanout", "nothing").len(), 4);
    }

    #[test]
    fn exchanges_lead_on_and_others_than_these_three_types_are_not_guessed() {
        let chained = step(&observed("fanout", &[("", "@next"), ("", "q")]), "x", "k");
        assert_eq!(chained.exchanges.into_iter().collect::<Vec<_>>(), ["next"]);
        assert_eq!(chained.unknown, None);
        assert!(step(&observed("headers", &[("", "q")]), "x", "k").unknown.is_some());
        assert_eq!(step(&observed("headers", &[]), "x", "k"), Step::default());
        assert_eq!(step(&observed("direct", &[]), "missing", "k"), Step::default());
    }
}

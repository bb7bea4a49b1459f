//! Which template gave retry queues their names.

use std::collections::BTreeMap;

use super::super::names;
use super::super::validate::MAX_NUMBER_FROM;

/// What is known of a retry queue's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The name, without the suffixes of a generation and a shard.
    pub(super) name: String,
    /// Its delay in milliseconds.
    pub(super) delay: i64,
}

/// A template that gives a ladder's names, and the ladder in the order of its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    pub(super) template: String,
    pub(super) number_from: u32,
    /// For each step the index of its queue among those that were given.
    pub(super) order: Vec<usize>,
}

/// Finds the template; `first` is the number of the first tier where something else tells it, and
/// then the tiers stand in their order already.
///
/// A template with `{delay}` is preferred: where both fit, the text of the delay would be taken for
/// a number by chance.
pub(super) fn find(queue: &str, tiers: &[Named], first: Option<u32>) -> Option<Naming> {
    by_delay(queue, tiers, first)
        .or_else(|| by_number(queue, tiers, first))
        .or_else(|| alone(queue, tiers, first))
}

/// A single tier may be called anything.
fn alone(queue: &str, tiers: &[Named], first: Option<u32>) -> Option<Naming> {
    let [only] = tiers else { return None };
    fits(queue, tiers, &of_queue(queue, &only.name), first.unwrap_or(0), &[0])
}

fn by_delay(queue: &str, tiers: &[Named], first: Option<u32>) -> Option<Naming> {
    let one = tiers.first()?;
    let text = names::duration(one.delay);
    let mut order: Vec<usize> = (0..tiers.len()).collect();
    if first.is_none() {
        order.sort_by_key(|index| tiers[*index].delay);
    }
    occurrences(&one.name, &text).into_iter().find_map(|at| {
        let template = template(queue, &one.name[..at], "{delay}", &one.name[at + text.len()..]);
        fits(queue, tiers, &template, first.unwrap_or(0), &order)
    })
}

/// The template with `{delay}` that gives most of the names.
pub(super) fn commonest_by_delay(queue: &str, tiers: &[Named]) -> Option<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for tier in tiers {
        let text = names::duration(tier.delay);
        for at in occurrences(&tier.name, &text) {
            let found = template(queue, &tier.name[..at], "{delay}", &tier.name[at + text.len()..]);
            *counts.entry(found).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(template, _)| template)
}

/// Whether a template with `{delay}` gives this name.
pub(super) fn gives(template: &str, queue: &str, tier: &Named) -> bool {
    names::expand(template, queue, 0, &names::duration(tier.delay)) == tier.name
}

fn by_number(queue: &str, tiers: &[Named], first: Option<u32>) -> Option<Naming> {
    let one = tiers.first()?;
    digit_runs(&one.name).into_iter().find_map(|(begin, end)| {
        let (before, after) = (&one.name[..begin], &one.name[end..]);
        let number = |tier: &Named| {
            let digits = tier.name.strip_prefix(before)?.strip_suffix(after)?;
            digits.parse::<u32>().ok()
        };
        let numbers: Vec<u32> = tiers.iter().map(number).collect::<Option<_>>()?;
        let mut order: Vec<usize> = (0..tiers.len()).collect();
        order.sort_by_key(|index| numbers[*index]);
        let from = first.unwrap_or(numbers[order[0]]);
        if from > MAX_NUMBER_FROM {
            return None;
        }
        fits(queue, tiers, &template(queue, before, "{attempt}", after), from, &order)
    })
}

/// The naming, if it gives exactly these names.
fn fits(queue: &str, tiers: &[Named], template: &str, from: u32, order: &[usize]) -> Option<Naming> {
    let gives = (from..).zip(order).all(|(number, index)| {
        let tier = &tiers[*index];
        names::expand(template, queue, number, &names::duration(tier.delay)) == tier.name
    });
    gives.then(|| Naming { template: template.to_owned(), number_from: from, order: order.to_vec() })
}

/// A template with the queue's name as a placeholder too, where it is there.
fn template(queue: &str, before: &str, placeholder: &str, after: &str) -> String {
    format!("{}{placeholder}{}", of_queue(queue, before), of_queue(queue, after))
}

/// A name with `{queue}` for the queue's name, if that stands in it as a word of its own.
pub(super) fn of_queue(queue: &str, name: &str) -> String {
    let is_word = |at: &usize| {
        let continues = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
        !continues(name[..*at].chars().next_back()) && !continues(name[at + queue.len()..].chars().next())
    };
    match name.match_indices(queue).map(|(at, _)| at).find(is_word) {
        Some(at) => format!("{}{{queue}}{}", &name[..at], &name[at + queue.len()..]),
        None => name.to_owned(),
    }
}

fn occurrences(name: &str, text: &str) -> Vec<usize> {
    name.match_indices(text).map(|(at, _)| at).collect()
}

/// Where digits stand, from the last run to the first: the number is rarely in front.
fn digit_runs(name: &str) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut begin = None;
    for (at, byte) in name.bytes().chain([b' ']).enumerate() {
        match (byte.is_ascii_digit(), begin) {
            (true, None) => begin = Some(at),
            (false, Some(from)) => {
                runs.push((from, at));
                begin = None;
            }
            _ => {}
        }
    }
    runs.reverse();
    runs
}

/// A name for the resource: what a queue's name leaves when only letters, digits, hyphens and dots
/// may stay, at most 63 characters.
#[must_use]
pub fn resource_name(queue: &str) -> String {
    let plain = |character: char| match character.to_ascii_lowercase() {
        kept @ ('a'..='z' | '0'..='9' | '.') => kept,
        _ => '-',
    };
    let name: String = queue.chars().map(plain).take(63).collect();
    let labels: Vec<&str> =
        name.split('.').map(|label| label.trim_matches('-')).filter(|label| !label.is_empty()).collect();
    if labels.is_empty() { "queue".to_owned() } else { labels.join(".") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(queue: &str, tiers: &[(&str, i64)]) -> Option<(String, u32)> {
        let tiers: Vec<Named> =
            tiers.iter().map(|(name, delay)| Named { name: (*name).to_owned(), delay: *delay }).collect();
        find(queue, &tiers, None).map(|naming| (naming.template, naming.number_from))
    }

    #[test]
    fn numbers_are_found_wherever_they_stand() {
        let numbered = [("a.retry.1", 5_000), ("a.retry.2", 30_000)];
        assert_eq!(found("a", &numbered), Some(("{queue}.retry.{attempt}".to_owned(), 1)));
        let turned = [("2-wait-v2", 30_000), ("1-wait-v2", 5_000)];
        assert_eq!(found("orders", &turned), Some(("{attempt}-wait-v2".to_owned(), 1)));
        let ten: Vec<(String, i64)> =
            (1..=10).map(|number| (format!("q7_{number}"), number * 1_000)).collect();
        let ten: Vec<(&str, i64)> = ten.iter().map(|(name, delay)| (name.as_str(), *delay)).collect();
        assert_eq!(found("q7", &ten), Some(("{queue}_{attempt}".to_owned(), 1)));
    }

    #[test]
    fn delays_are_found_in_their_usual_form_and_before_numbers() {
        let delays = [("orders.wait.2m", 120_000), ("orders.wait.30s", 30_000)];
        assert_eq!(found("orders", &delays), Some(("{queue}.wait.{delay}".to_owned(), 0)));
        let seconds = [("orders.wait.1s", 1_000), ("orders.wait.2s", 2_000)];
        assert_eq!(found("orders", &seconds), Some(("{queue}.wait.{delay}".to_owned(), 0)));
    }

    #[test]
    fn a_single_one_may_be_called_anything() {
        let found = |name| found("orders", &[(name, 5_000)]);
        assert_eq!(found("orders.retry"), Some(("{queue}.retry".to_owned(), 0)));
        assert_eq!(found("orders.retry.1"), Some(("{queue}.retry.{attempt}".to_owned(), 1)));
        assert_eq!(found("wait-5000"), Some(("wait-5000".to_owned(), 0)));
    }

    #[test]
    fn what_follows_no_template_is_not_found() {
        assert_eq!(found("orders", &[("orders.short", 5_000), ("orders.long", 30_000)]), None);
        assert_eq!(found("orders", &[("orders.retry.1", 5_000), ("orders.retry.3", 30_000)]), None);
        assert_eq!(found("orders", &[("orders.retry.01", 5_000), ("orders.retry.02", 30_000)]), None);
    }

    #[test]
    fn a_resource_is_called_like_its_queue_where_that_can_be() {
        for (queue, name) in [
            ("payments.queue", "payments.queue"),
            ("Orders_EU", "orders-eu"),
            ("..", "queue"),
            ("-a-.-b-", "a.b"),
            ("zakaz é", "zakaz"),
        ] {
            assert_eq!(resource_name(queue), name);
        }
        assert_eq!(resource_name(&"x".repeat(200)).len(), 63);
    }
}

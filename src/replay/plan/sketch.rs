//! The most frequent values of millions, in bounded memory.
//!
//! Space-saving: so many values are counted; one more takes the place of the rarest and
//! inherits its count as a possible error. What is shown is the count without that error:
//! exact while every distinct value had a place, a lower bound afterwards.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Distinct values that are counted.
const PLACES: usize = 1_000;

/// The longest value that is kept, in characters.
const MAX_CHARACTERS: usize = 255;

/// How often a value occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The value, shortened to 255 characters.
    pub value: String,
    /// Messages that have it; see [`Top::lower_bounds`].
    pub count: u64,
}

/// The most frequent values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// By count, the largest first; equal ones by value.
    pub values: Vec<Bucket>,
    /// Messages with any other value.
    pub other: u64,
    /// Whether the counts are lower bounds, as there were too many distinct values; `other` is
    /// an upper bound then.
    pub lower_bounds: bool,
}

/// Counts values.
#[derive(Clone, Debug, Default)]
pub struct Sketch {
    total: u64,
    places: HashMap<Arc<str>, Place>,
    by_count: BTreeSet<(u64, Arc<str>)>,
    replaced: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    count: u64,
    error: u64,
}

impl Sketch {
    /// Counts a value once.
    pub fn add(&mut self, value: &str) {
        self.total += 1;
        let value = shortened(value);
        if let Some(place) = self.places.get_mut(value) {
            let Some((_, name)) = self.by_count.take(&(place.count, Arc::from(value))) else { return };
            place.count += 1;
            self.by_count.insert((place.count, name));
            return;
        }
        let error = if self.places.len() < PLACES { 0 } else { self.make_room() };
        let name: Arc<str> = Arc::from(value);
        self.places.insert(Arc::clone(&name), Place { count: error + 1, error });
        self.by_count.insert((error + 1, name));
    }

    /// The rarest value goes; its count is the error of the one that takes its place.
    fn make_room(&mut self) -> u64 {
        self.replaced = true;
        let Some((count, name)) = self.by_count.pop_first() else { return 0 };
        self.places.remove(&name);
        count
    }

    /// The `most` most frequent values, and how many messages have another.
    #[must_use]
    pub fn top(&self, most: usize) -> Top {
        let sure = |(name, place): (&Arc<str>, &Place)| Bucket {
            value: name.to_string(),
            count: place.count - place.error,
        };
        let mut values: Vec<Bucket> = self.places.iter().map(sure).collect();
        values.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.value.cmp(&b.value)));
        values.truncate(most);
        let shown: u64 = values.iter().map(|bucket| bucket.count).sum();
        Top { values, other: self.total - shown, lower_bounds: self.replaced }
    }
}

fn shortened(value: &str) -> &str {
    let end = value.char_indices().nth(MAX_CHARACTERS);
    end.map_or(value, |(end, _)| &value[..end])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_values_are_counted_exactly() {
        let mut sketch = Sketch::default();
        for value in ["b", "a", "b", "c", "b", "a"] {
            sketch.add(value);
        }
        let top = sketch.top(2);
        let bucket = |value: &str, count| Bucket { value: value.to_owned(), count };
        assert_eq!(top, Top { values: vec![bucket("b", 3), bucket("a", 2)], other: 1, lower_bounds: false });
    }

    #[test]
    fn a_million_distinct_values_hide_no_frequent_one_and_take_no_memory() {
        let mut sketch = Sketch::default();
        for number in 0..200_000_u32 {
            sketch.add(&number.to_string());
            if number % 4 == 0 {
                sketch.add("often");
            }
        }
        assert_eq!((sketch.places.len(), sketch.by_count.len()), (PLACES, PLACES));
        let top = sketch.top(20);
        assert!(top.lower_bounds);
        assert_eq!(top.values[0].value, "often");
        assert!((49_000..=50_000).contains(&top.values[0].count), "{:?}", top.values[0]);
        let shown: u64 = top.values.iter().map(|bucket| bucket.count).sum();
        assert_eq!(shown + top.other, 250_000);
    }

    #[test]
    fn values_are_shortened_between_characters() {
        let mut sketch = Sketch::default();
        sketch.add(&"é".repeat(300));
        sketch.add(&"é".repeat(255));
        assert_eq!(sketch.top(5).values, [Bucket { value: "é".repeat(255), count: 2 }]);
    }

    proptest! {
        #[test]
        fn no_count_is_ever_too_high(values in prop::collection::vec(0..3_000_u32, 0..6_000)) {
            let mut sketch = Sketch::default();
            let mut exact: BTreeMap<String, u64> = BTreeMap::new();
            for value in values {
                sketch.add(&value.to_string());
                *exact.entry(value.to_string()).or_default() += 1;
            }
            let top = sketch.top(20);
            for bucket in &top.values {
                prop_assert!(bucket.count <= exact[&bucket.value]);
                prop_assert!(top.lower_bounds || bucket.count == exact[&bucket.value]);
            }
        }
    }
}

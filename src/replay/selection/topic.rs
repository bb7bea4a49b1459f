//! Patterns as topic exchanges know them: words between dots, `*` for one word, `#` for any
//! number of words.

/// A pattern, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Word>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    One,
    Any,
    Exactly(String),
}

impl Pattern {
    /// Reads a pattern; every text is one.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        let word = |word: &str| match word {
            "*" => Word::One,
            "#" => Word::Any,
            word => Word::Exactly(word.to_owned()),
        };
        Self(words(pattern).map(word).collect())
    }

    /// Whether a routing key fits, in at most words × words steps whatever the pattern: where
    /// the rest does not fit, only the last `#` needs to take one word more.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        let key: Vec<&str> = words(key).collect();
        let (mut at, mut word) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        while word < key.len() {
            match self.0.get(at) {
                Some(Word::Any) => {
                    retry = Some((at, word));
                    at += 1;
                }
                Some(Word::One) => (at, word) = (at + 1, word + 1),
                Some(Word::Exactly(text)) if text == key[word] => (at, word) = (at + 1, word + 1),
                _ => match retry {
                    Some((any, taken)) => {
                        retry = Some((any, taken + 1));
                        (at, word) = (any + 1, taken + 1);
                    }
                    None => return false,
                },
            }
        }
        self.0[at..].iter().all(|word| *word == Word::Any)
    }
}

/// The words of a key; an empty key has none, as the broker counts.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('.').filter(move |_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word by word.
    fn reference(pattern: &[&str], key: &[&str]) -> bool {
        match pattern.split_first() {
            None => key.is_empty(),
            Some((&"#", rest)) => (0..=key.len()).any(|taken| reference(rest, &key[taken..])),
            Some((&"*", rest)) => !key.is_empty() && reference(rest, &key[1..]),
            Some((word, rest)) => key.first() == Some(word) && reference(rest, &key[1..]),
        }
    }

    fn split(text: &str) -> Vec<&str> {
        if text.is_empty() { Vec::new() } else { text.split('.').collect() }
    }

    proptest! {
        #[test]
        fn patterns_match_what_the_definition_says(
            pattern in "([ab*#]|\\.){0,9}",
            key in "([ab]|\\.){0,9}",
        ) {
            let expected = reference(&split(&pattern), &split(&key));
            prop_assert_eq!(Pattern::new(&pattern).matches(&key), expected, "{} {}", pattern, key);
        }
    }

    #[test]
    fn examples_from_the_protocol() {
        let cases = [
            ("orders.*", "orders.created", true),
            ("orders.*", "orders", false),
            ("orders.*", "orders.eu.created", false),
            ("orders.#", "orders", true),
            ("#", "", true),
            ("*", "", false),
            ("#.b.#", "a.b.c", true),
            ("#.#", "", true),
            ("a*", "ab", false),
        ];
        for (pattern, key, expected) in cases {
            assert_eq!(Pattern::new(pattern).matches(key), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn a_pattern_of_many_hashes_takes_no_time() {
        let pattern = vec!["#"; 60].join(".a.");
        let key = vec!["a"; 125].join(".");
        assert!(!Pattern::new(&format!("{pattern}.b")).matches(&key));
    }
}

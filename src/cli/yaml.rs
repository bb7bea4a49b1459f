//! YAML as Kubernetes means it: text, numbers, booleans, lists and maps with text
//! keys; a key that stands twice is an error and not a choice.
//!
//! Decoding straight into types would let the last of two equal keys win and would
//! stop at the first mistake. So a document becomes JSON first, which the schema
//! check then walks, and a line is looked up only for what turns out to be wrong.

use std::fmt;

use serde::de::{DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_yaml::{Deserializer, Error};

/// Why a document can't be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The line, counted from 1, where the message does not name it itself.
    pub(super) line: Option<usize>,
    /// What is wrong.
    pub(super) message: String,
}

/// One step on the way to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Into a map.
    Key(String),
    /// Into a list.
    Index(usize),
}

/// Shows a path as `spec.retry.delays[2]`.
pub(super) fn show(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Index(index) => text.push_str(&format!("[{index}]")),
            Segment::Key(key) if text.is_empty() => text.push_str(key),
            Segment::Key(key) => text.push_str(&format!(".{key}")),
        }
    }
    text
}

/// Reads a path back from its text.
pub(super) fn path(text: &str) -> Vec<Segment> {
    let mut path = Vec::new();
    for part in text.split('.') {
        let mut pieces = part.split('[');
        path.extend(pieces.next().filter(|key| !key.is_empty()).map(|key| Segment::Key(key.to_owned())));
        path.extend(pieces.filter_map(|index| index.trim_end_matches(']').parse().ok()).map(Segment::Index));
    }
    path
}

/// The documents of a stream. After one that is no YAML nothing more can be read:
/// the parser would report the same place for ever.
pub(super) fn documents(text: &str) -> Vec<Result<Value, Fault>> {
    let mut read = Vec::new();
    for document in Deserializer::from_str(text) {
        let document = Node.deserialize(document).map_err(|error| fault(&error));
        let stuck = matches!(&document, Err(fault) if fault.line.is_none()) || read.last() == Some(&document);
        if stuck && document.is_err() {
            read.extend((read.last() != Some(&document)).then_some(document));
            break;
        }
        read.push(document);
    }
    read
}

fn fault(error: &Error) -> Fault {
    let message = error.to_string();
    let Some(location) = error.location() else { return Fault { line: None, message } };
    let position = format!(" at line {} column {}", location.line(), location.column());
    match message.strip_suffix(&position) {
        Some(message) => Fault { line: Some(location.line()), message: message.to_owned() },
        // The parser's own messages name one or two places in their middle.
        None => Fault { line: None, message },
    }
}

/// The line of a value in a stream's document, counted from 0, or of the nearest
/// value around it that exists.
pub(super) fn line_of(text: &str, document: usize, path: &[Segment]) -> Option<usize> {
    (1..=path.len()).rev().find_map(|length| {
        let document = Deserializer::from_str(text).nth(document)?;
        let stop = Find(&path[..length]).deserialize(document).err()?;
        stop.location().map(|location| location.line())
    })
}

/// Decodes into JSON.
struct Node;

impl<'de> DeserializeSeed<'de> for Node {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, true, false, a list or a map")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("infinite or no number at all"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Node)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(Key { seen: &map })? {
            let value = entries.next_value_seed(Node)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(A::Error::custom("tags such as !this have no meaning here: remove it"))
    }
}

/// Decodes a key; raises the error itself, so that it carries the key's line.
struct Key<'a> {
    seen: &'a Map<String, Value>,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text as a key: put it in quotes")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<String, E> {
        if self.seen.contains_key(key) {
            return Err(E::custom(format!("the key {key:?} stands here twice: keep one of them")));
        }
        Ok(key.to_owned())
    }
}

/// Fails at the end of a path, so that the error carries the place.
struct Find<'a>(&'a [Segment]);

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the end of a path")
    }

    // The other visits need no code: a scalar is where the path ends, one way or the
    // other, and serde's own error carries the place as well.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((Segment::Index(wanted), rest)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        let mut index = 0;
        while index < *wanted && list.next_element::<serde::de::IgnoredAny>()?.is_some() {
            index += 1;
        }
        list.next_element_seed(Find(rest))?;
        while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((Segment::Key(wanted), rest)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        // A key's own line says more than the line on which its value begins.
        let stop = rest.is_empty().then_some(wanted.as_str());
        while let Some(key) = entries.next_key_seed(Stop(stop))? {
            if key == *wanted {
                entries.next_value_seed(Find(rest))?;
            } else {
                entries.next_value::<serde::de::IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Fails at one key.
struct Stop<'a>(Option<&'a str>);

impl<'de> DeserializeSeed<'de> for Stop<'_> {
    type Value = String;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Stop<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text as a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<String, E> {
        if self.0 == Some(key) { Err(E::custom("here")) } else { Ok(key.to_owned()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_become_json() {
        let read = documents("a: 1\nb: [true, x, 1.5]\n---\n- ~\n");
        assert_eq!(read, [Ok(json!({"a": 1, "b": [true, "x", 1.5]})), Ok(json!([null]))]);
    }

    #[test]
    fn what_is_no_yaml_ends_the_stream() {
        for text in ["a: 1\n\tb: 2\n", "a: {b\n", "a: 1\n---\n]\n---\nb: 2\n"] {
            let read = documents(text);
            assert!(read.last().is_some_and(Result::is_err), "{text:?}");
            assert!(read.len() < 3, "{text:?}: {read:?}");
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_found_on_its_second_line() {
        let read = documents("a:\n  b: 1\n  c: 2\n  b: 1\n");
        let fault = read[0].as_ref().unwrap_err();
        assert_eq!(fault.line, Some(4));
        assert!(fault.message.contains("\"b\" stands here twice"), "{fault:?}");
    }

    #[test]
    fn a_path_reads_back_as_it_shows() {
        for text in ["spec", "spec.retry.delays[2]", "a[0][1].b"] {
            assert_eq!(show(&path(text)), text);
        }
    }

    #[test]
    fn the_line_of_a_value_is_that_of_its_key() {
        let text = "x: 1\n---\nspec:\n  list:\n    - a\n    - b: 1\n  map:\n    key: v\n";
        for (place, line) in
            [("spec", 3), ("spec.list", 4), ("spec.list[1]", 6), ("spec.list[1].b", 6), ("spec.map.key", 8)]
        {
            assert_eq!(line_of(text, 1, &path(place)), Some(line), "{place}");
        }
    }

    #[test]
    fn what_does_not_exist_is_looked_for_around_it() {
        let text = "spec:\n  map:\n    key: v\n";
        assert_eq!(line_of(text, 0, &path("spec.map.other")), Some(2));
        assert_eq!(line_of(text, 0, &path("nothing")), None);
    }
}

//! Decoding that no oddity of an answer can stop.
//!
//! Answers repeat keys (API-22), write `[]` or `""` for `{}` (API-21), leave
//! keys out (API-02, API-04) and write null: none of it is an error, and a key
//! that is not there stays unknown. Of repeated keys the first with a value
//! counts, as it does for the broker (IMM-15).

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::topology::model::{Arg, Args};

/// An object that picks the fields it wants.
pub(crate) trait Row: Default {
    /// Takes one field's value, or leaves it: returns whether it was taken.
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// Decodes a [`Row`].
pub(crate) struct Lenient<T>(pub(crate) T);

impl<'de, T: Row> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RowVisitor<T>(T);
        impl<'de, T: Row> Visitor<'de> for RowVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<T, A::Error> {
                while let Some(key) = map.next_key_seed(Key)? {
                    if !self.0.field(&key, &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(self.0)
            }

            // An object without keys is written as `[]` (of `?columns=…`, for one).
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(self.0),
                    Some(_) => Err(serde::de::Error::invalid_type(serde::de::Unexpected::Seq, &self)),
                }
            }
        }
        deserializer.deserialize_any(RowVisitor(T::default())).map(Self)
    }
}

/// A key, borrowed where the text allows it.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

/// A value that ought to be simple; lists and objects are skipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Scalar {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl Scalar {
    pub(crate) fn text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn bool(self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(value) } else { None }
    }

    pub(crate) fn int(self) -> Option<i64> {
        if let Self::Int(value) = self { Some(value) } else { None }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl<'de> Visitor<'de> for ScalarVisitor {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Int(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(i64::try_from(value).map_or(Scalar::Null, Scalar::Int))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Null)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Null)
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// Arguments or a policy's keys; everything but an object counts as empty.
#[derive(Default)]
struct Table(Args);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor;
        impl<'de> Visitor<'de> for TableVisitor {
            type Value = Table;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
                let mut args = Args::new();
                while let Some((key, value)) = map.next_entry::<String, serde_json::Value>()? {
                    args.entry(key).or_insert_with(|| Arg::from(value));
                }
                Ok(Table(args))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Table, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Table::default())
            }

            fn visit_unit<E>(self) -> Result<Table, E> {
                Ok(Table::default())
            }

            fn visit_str<E>(self, _: &str) -> Result<Table, E> {
                Ok(Table::default())
            }
        }
        deserializer.deserialize_any(TableVisitor)
    }
}

/// Takes a simple value into a slot that has none yet.
pub(crate) fn take<'de, A: MapAccess<'de>, T>(
    slot: &mut Option<T>,
    map: &mut A,
    convert: impl FnOnce(Scalar) -> Option<T>,
) -> Result<bool, A::Error> {
    let value = convert(map.next_value()?);
    if slot.is_none() {
        *slot = value;
    }
    Ok(true)
}

/// Takes arguments into a slot that has none yet.
pub(crate) fn take_table<'de, A: MapAccess<'de>>(
    slot: &mut Option<Args>,
    map: &mut A,
) -> Result<bool, A::Error> {
    let Table(value) = map.next_value()?;
    slot.get_or_insert(value);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::wire::QueueRow;

    fn queue(text: &str) -> crate::topology::observed::ObservedQueue {
        let Lenient(row) = serde_json::from_str::<Lenient<QueueRow>>(text).unwrap();
        row.into_queue().unwrap().1
    }

    #[test]
    fn a_repeated_key_counts_once_and_the_first_value_wins() {
        let found = queue(
            r#"{"name":"q","online":["a"],"durable":true,"online":["b"],"durable":false,
               "arguments":{"x-message-ttl":1000,"x-message-ttl":2000}}"#,
        );
        assert!(found.durable);
        assert_eq!(found.arguments["x-message-ttl"], Arg::Int(1000));
    }

    #[test]
    fn what_ought_to_be_an_object_may_be_a_list_a_string_or_null() {
        for odd in ["[]", "\"\"", "null", "{}"] {
            assert!(queue(&format!(r#"{{"name":"q","arguments":{odd}}}"#)).arguments.is_empty());
        }
        assert!(serde_json::from_str::<Lenient<QueueRow>>("[]").is_ok());
        assert!(serde_json::from_str::<Lenient<QueueRow>>("[1]").is_err());
    }

    #[test]
    fn a_count_that_is_missing_or_null_is_unknown_and_not_zero() {
        let found = queue(r#"{"name":"q","messages":null,"messages_ready":0,"exclusive":null}"#);
        assert_eq!(found.totals.messages, None);
        assert_eq!(found.totals.ready, Some(0));
        assert_eq!(found.totals.unacknowledged, None);
        assert!(!found.totals.proven_empty());
    }

    #[test]
    fn numbers_keep_their_type() {
        let found = queue(
            r#"{"name":"q","arguments":{"a":30000,"b":"30000","c":3e4,"d":true,"e":[1],"f":9223372036854775808}}"#,
        );
        assert_eq!(found.arguments["a"], Arg::Int(30_000));
        assert_eq!(found.arguments["b"], Arg::Str("30000".to_owned()));
        assert!(matches!(found.arguments["c"], Arg::Other(_)));
        assert_eq!(found.arguments["d"], Arg::Bool(true));
        assert_eq!(found.arguments["e"], Arg::Other("[1]".to_owned()));
        assert!(matches!(found.arguments["f"], Arg::Other(_)));
    }
}

//! Checks a resource against the schema of its definition, without an API server.
//!
//! What an API server would prune silently (unknown fields) is an error here: in a
//! file it is nearly always a slip. All mistakes are found in one pass. The rules
//! in CEL are not run; `rules` and `topology::validate` say the same in Rust.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::yaml::Segment;
use crate::api::{Duration, crds};

/// Something that does not fit, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) path: Vec<Segment>,
    pub(super) message: String,
}

/// The schema of a RetryPipeline's spec.
static SPEC: LazyLock<Value> = LazyLock::new(|| {
    crds::all()
        .iter()
        .filter(|crd| crd.spec.names.kind == "RetryPipeline")
        .filter_map(|crd| serde_json::to_value(crd).ok())
        .map(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone())
        .next()
        .unwrap_or_default()
});

/// Checks a RetryPipeline's spec; drops what is null, as the API server does.
pub(super) fn check_spec(spec: &mut Value) -> Vec<Mismatch> {
    drop_nulls(spec);
    let mut check = Check { path: vec![Segment::Key("spec".to_owned())], found: Vec::new() };
    check.value(spec, &SPEC);
    check.found
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

struct Check {
    path: Vec<Segment>,
    found: Vec<Mismatch>,
}

impl Check {
    fn add(&mut self, message: impl Into<String>) {
        self.found.push(Mismatch { path: self.path.clone(), message: message.into() });
    }

    fn inside(&mut self, segment: Segment, look: impl FnOnce(&mut Self)) {
        self.path.push(segment);
        look(self);
        self.path.pop();
    }

    fn value(&mut self, value: &Value, schema: &Value) {
        match (value, schema["type"].as_str().unwrap_or_default()) {
            (Value::Object(map), "object") => self.object(map, schema),
            (Value::Array(list), "array") => self.list(list, schema),
            (Value::String(text), "string") => self.text(text, schema),
            (Value::Number(number), "integer") if number.is_i64() || number.is_u64() => {
                self.integer(number.as_i64().unwrap_or(i64::MAX), schema);
            }
            (Value::Bool(_), "boolean") | (_, "") => {}
            (_, wanted) => self.add(format!("is {} where {} is wanted", describe(value), article(wanted))),
        }
    }

    fn object(&mut self, map: &Map<String, Value>, schema: &Value) {
        if schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true) {
            return;
        }
        let known = schema["properties"].as_object();
        for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(field) {
                self.inside(Segment::Key(field.to_owned()), |check| check.add("is missing"));
            }
        }
        for (field, value) in map {
            let schema = known.and_then(|known| known.get(field)).unwrap_or(&schema["additionalProperties"]);
            self.inside(Segment::Key(field.clone()), |check| match schema {
                Value::Null => check.add(unknown(field, known)),
                schema => check.value(value, schema),
            });
        }
        if let Some(message) = union_rule(schema)
            && map.len() != 1
        {
            self.add(message);
        }
        self.at_most(map.len(), &schema["maxProperties"], "entries");
    }

    fn list(&mut self, list: &[Value], schema: &Value) {
        for (index, value) in list.iter().enumerate() {
            self.inside(Segment::Index(index), |check| check.value(value, &schema["items"]));
        }
        self.at_most(list.len(), &schema["maxItems"], "entries");
    }

    fn text(&mut self, text: &str, schema: &Value) {
        if schema["format"] == "duration" {
            match text.parse::<Duration>() {
                Err(error) => self.add(error.to_string()),
                Ok(duration) if duration == Duration::default() => {
                    self.add("a duration of zero has no meaning here: write 1ms or more")
                }
                Ok(_) => {}
            }
            return;
        }
        if let Some(choices) = schema["enum"].as_array() {
            let choices: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
            if !choices.contains(&text) {
                self.add(format!("{text:?} is none of {}", choices.join(", ")));
            }
        }
        if text.is_empty() && schema["minLength"].as_u64() > Some(0) {
            self.add("is empty");
        }
        self.at_most(text.chars().count(), &schema["maxLength"], "characters");
    }

    fn integer(&mut self, number: i64, schema: &Value) {
        if let Some(least) = schema["minimum"].as_f64().filter(|least| (number as f64) < *least) {
            self.add(format!("{number} is too small: write {least} or more"));
        }
        let highest = match schema["format"].as_str() {
            Some("int32") => Some(f64::from(i32::MAX)),
            _ => None,
        };
        let most = schema["maximum"].as_f64().or(highest);
        if let Some(most) = most.filter(|most| number as f64 > *most) {
            self.add(format!("{number} is too large: write {most} or less"));
        }
    }

    fn at_most(&mut self, length: usize, most: &Value, what: &str) {
        if let Some(most) = most.as_u64().filter(|most| length as u64 > *most) {
            self.add(format!("has {length} {what}: at most {most} are allowed"));
        }
    }
}

/// The sentence of a union's rule: such an object has exactly one member.
fn union_rule(schema: &Value) -> Option<&str> {
    let rules = schema["x-kubernetes-validations"].as_array()?;
    rules
        .iter()
        .filter_map(|rule| rule["message"].as_str())
        .find(|text| text.starts_with("set exactly one of"))
}

fn unknown(field: &str, known: Option<&Map<String, Value>>) -> String {
    let plain = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    let names: Vec<&str> = known.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    match names.iter().min_by_key(|name| distance(&plain(name), &plain(field))) {
        Some(near) if distance(&plain(near), &plain(field)) <= 2 => {
            format!("is no field: did you mean {near}?")
        }
        _ => format!("is no field: there are {}", names.join(", ")),
    }
}

/// How many letters must be changed, added or removed to get from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("{value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

fn article(kind: &str) -> &str {
    match kind {
        "object" => "a map",
        "array" => "a list",
        "string" => "text",
        "integer" => "a whole number",
        "boolean" => "true or false",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::yaml::show;
    use serde_json::json;

    fn found(mut spec: Value) -> Vec<String> {
        check_spec(&mut spec)
            .into_iter()
            .map(|mismatch| format!("{}: {}", show(&mismatch.path), mismatch.message))
            .collect()
    }

    fn minimal() -> Value {
        json!({"broker": {"secretRef": {"name": "s"}}, "source": {"queue": {"name": "q"}}})
    }

    #[test]
    fn a_minimal_spec_fits() {
        assert_eq!(found(minimal()), Vec::<String>::new());
    }

    #[test]
    fn null_counts_as_left_out() {
        let mut spec = minimal();
        spec["retry"] = json!({"mode": null, "delays": null});
        assert_eq!(found(spec), Vec::<String>::new());
    }

    #[test]
    fn all_mistakes_are_found_at_once() {
        let mut spec = minimal();
        spec["source"]["queue"] = json!({"tpye": "quorum", "maxLength": 0, "groupSize": 3_000_000_000_i64});
        spec["retry"] = json!({"mode": "broker", "delays": ["5s", 7, "2w", "0s"]});
        spec["broker"] = json!({"secretRef": {"name": "s"}, "clusterRef": {"name": "c"}});
        spec["colour"] = json!("red");
        let found = found(spec);
        for wanted in [
            "spec.source.queue.name: is missing",
            "spec.source.queue.tpye: is no field: did you mean type?",
            "spec.source.queue.maxLength: 0 is too small: write 1 or more",
            "spec.source.queue.groupSize: 3000000000 is too large: write 15 or less",
            "spec.retry.mode: \"broker\" is none of Broker, Application, Native, None",
            "spec.retry.delays[1]: is the number 7 where text is wanted",
            "spec.retry.delays[3]: a duration of zero has no meaning here: write 1ms or more",
            "spec.broker: set exactly one of clusterRef, secretRef",
        ] {
            assert!(found.iter().any(|line| line == wanted), "{wanted} is not among {found:#?}");
        }
        assert!(found.iter().any(|line| line.starts_with("spec.retry.delays[2]: \"2w\" is no duration")));
        assert!(found.iter().any(|line| line.starts_with("spec.colour: is no field: there are")));
    }
}

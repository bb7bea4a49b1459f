//! The schema of the values: strict, and about the values that there are.

use std::fs;

use serde_json::Value;

use crate::folder;
use crate::helm::CHART;

fn schema() -> Value {
    serde_json::from_str(&fs::read_to_string(folder(CHART).join("values.schema.json")).unwrap()).unwrap()
}

/// Calls `see` with every part of the schema that has properties, and its path.
fn walk(part: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
    if part["properties"].is_object() {
        see(path, part);
    }
    match part {
        Value::Object(members) => {
            members.iter().for_each(|(name, member)| walk(member, &format!("{path}/{name}"), see));
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, path, see)),
        _ => {}
    }
}

#[test]
fn only_global_may_hold_what_nobody_knows() {
    let schema = schema();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    let mut open = Vec::new();
    walk(&schema, "", &mut |path, part| {
        if part["additionalProperties"] != false {
            open.push(path.to_owned());
        }
    });
    assert_eq!(open, ["/properties/global"]);
}

#[test]
fn every_value_of_the_schema_is_one() {
    fn missing(schema: &Value, values: &Value, path: &str, found: &mut Vec<String>) {
        for (name, part) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            match values.get(name) {
                Some(value) => missing(part, value, &path, found),
                None => found.push(path),
            }
        }
    }
    let values = fs::read_to_string(folder(CHART).join("values.yaml")).unwrap();
    let values: Value = serde_yaml::from_str(&values).unwrap();
    let mut found = Vec::new();
    missing(&schema(), &values, "", &mut found);
    // The condition of a parent chart, which has no default.
    assert_eq!(found, [".enabled"]);
}

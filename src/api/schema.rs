//! The pieces of schema that several fields share.
//!
//! Everything a user writes is bounded, both for the API server's cost estimate of the CEL rules
//! and because the broker has limits of its own. Nothing here sets a schema default: the API
//! server would write it into the object, and GitOps tools would report it as drift.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{Schema, SchemaGenerator, json_schema, transform::transform_subschemas};
use serde_json::{Map, Value, json};

/// CEL rules, each with the sentence that says what to write instead.
pub(super) fn rules(rules: &[(&str, &str)]) -> Value {
    rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect()
}

/// Rules that every name on the broker has to satisfy.
const NAME_RULES: [(&str, &str); 4] = [
    ("size(bytes(self)) <= 255", "the name is longer than 255 bytes, the broker's limit: shorten it"),
    ("!self.matches('\\\\p{Cc}')", "the name contains a control character: remove it"),
    ("self == self.trim()", "the name starts or ends with a blank: remove it"),
    ("self != '.' && self != '..'", "the management API can't address . and ..: choose another name"),
];

/// The rule for names of what we declare ourselves.
const OWN_NAME_RULE: (&str, &str) = (
    "!self.startsWith('amq.') && !self.startsWith('redrive.')",
    "names that start with amq. or redrive. are reserved: choose another name",
);

fn name_with(extra: &[(&str, &str)]) -> Schema {
    let all: Vec<_> = NAME_RULES.iter().chain(extra).copied().collect();
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "x-kubernetes-validations": rules(&all),
    })
}

/// The name of a broker object that only has to exist.
pub(super) fn foreign_name(_: &mut SchemaGenerator) -> Schema {
    name_with(&[])
}

/// The name of an exchange that messages come from, which may be one of the broker's own.
pub(super) fn binding_exchange(_: &mut SchemaGenerator) -> Schema {
    name_with(&[
        (
            "self != 'amq.default'",
            "the default exchange leads to every queue by its name and takes no other binding: leave this one out, or bind another exchange",
        ),
        (
            "!self.startsWith('redrive.')",
            "exchanges that start with redrive. carry no messages: bind another one",
        ),
    ])
}

/// The name of a broker object that we declare or write to.
pub(super) fn own_name(_: &mut SchemaGenerator) -> Schema {
    name_with(&[OWN_NAME_RULE])
}

/// The name of a dead-letter queue, in which `{queue}` stands for the source queue.
pub(super) fn dead_letter_name(_: &mut SchemaGenerator) -> Schema {
    name_with(&[
        OWN_NAME_RULE,
        ("!self.replace('{queue}', '').matches('[{}]')", "only {queue} may stand in braces here"),
    ])
}

/// The template for the names of retry queues.
pub(super) fn retry_name_template(_: &mut SchemaGenerator) -> Schema {
    name_with(&[
        OWN_NAME_RULE,
        (
            "!self.replace('{queue}', '').replace('{attempt}', '').replace('{delay}', '').matches('[{}]')",
            "only {queue}, {attempt} and {delay} may stand in braces here",
        ),
    ])
}

/// A routing key. Empty is a valid key.
pub(super) fn routing_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 255,
        "x-kubernetes-validations": rules(&[
            (
                "size(bytes(self)) <= 255",
                "the routing key is longer than 255 bytes, the broker's limit: shorten it",
            ),
            (
                "!self.matches('\\\\p{Cc}')",
                "the routing key contains a control character: remove it",
            ),
        ]),
    })
}

/// A routing key of a binding, which a topic exchange may read as a pattern.
pub(super) fn binding_key(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = routing_key(generator);
    push_rules(
        &mut schema,
        &[(
            "self.split('.').filter(word, word == '#').size() <= 2",
            "the broker takes at most two # in a topic key: split it into several bindings",
        )],
    );
    schema
}

/// The category of a quarantine queue.
pub(super) fn category(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 40,
        "x-kubernetes-validations": rules(&[(
            "self.matches('^[a-z0-9][a-z0-9-]{0,39}$')",
            "a category consists of lower case letters, digits and hyphens, and starts with a letter or digit",
        )]),
    })
}

/// Headers with the exact text each must have.
pub(super) fn headers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 255},
        "x-kubernetes-validations": rules(&[
            (
                "self.all(name, name.size() > 0 && name.size() <= 127)",
                "a header's name has 1 to 127 characters",
            ),
            (
                "!('x-match' in self)",
                "x-match isn't a header but says how headers are matched: remove it (all of them must match)",
            ),
        ]),
    })
}

/// The name of a Kubernetes object.
pub(super) fn object_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 253})
}

/// A moment, in RFC 3339.
pub(super) fn moment(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "maxLength": 64})
}

/// Conditions, one of each type.
pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<Condition>();
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// Arguments of a queue: integers, texts and booleans by name.
pub(super) fn arguments(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Adds rules to those that the schema has already.
fn push_rules(schema: &mut Schema, more: &[(&str, &str)]) {
    let own = schema.ensure_object().entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let (Value::Array(own), Value::Array(more)) = (own, rules(more)) {
        own.extend(more);
    }
}

/// Turns an externally tagged enum into an object of which exactly one member is set.
///
/// Kubernetes has no properties inside `oneOf`, and its message for a violated `oneOf` doesn't
/// name the members: one CEL rule does.
pub(super) fn union(schema: &mut Schema) {
    let Some(Value::Array(variants)) = schema.remove("oneOf") else {
        return;
    };
    let mut members = Map::new();
    for variant in variants {
        let description = variant.get("description").cloned();
        let Some(Value::Object(properties)) = variant.get("properties").cloned() else {
            continue;
        };
        for (name, mut member) in properties {
            if let (Some(text), Some(member)) = (&description, member.as_object_mut()) {
                member.insert("description".into(), text.clone());
                member.remove("additionalProperties");
            }
            members.insert(name, member);
        }
    }
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    let set: Vec<String> = names.iter().map(|name| format!("has(self.{name})")).collect();
    let rule = format!("[{}].filter(set, set).size() == 1", set.join(", "));
    let message = format!("set exactly one of {}", names.join(", "));
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), Value::Object(members));
    push_rules(schema, &[(&rule, &message)]);
}

/// What the whole of a spec needs: plain descriptions, no `null`, and no duration of zero.
pub(super) fn spec(schema: &mut Schema) {
    status(schema);
    positive_durations(schema);
}

/// What the whole of a status needs: plain descriptions, and no `null`.
pub(super) fn status(schema: &mut Schema) {
    without_null(schema);
    unwrapped(schema);
}

/// Joins the lines of each description: line breaks of the source mean nothing to a reader.
fn unwrapped(schema: &mut Schema) {
    transform_subschemas(&mut unwrapped, schema);
    if let Some(text) = schema.get("description").and_then(Value::as_str) {
        let joined = text.replace('\n', " ");
        schema.insert("description".into(), joined.into());
    }
}

/// Refuses durations of zero. In a spec none has a meaning; in a status one may well be zero.
fn positive_durations(schema: &mut Schema) {
    transform_subschemas(&mut positive_durations, schema);
    if schema.get("format") == Some(&json!("duration")) {
        push_rules(
            schema,
            &[("self >= duration('1ms')", "a duration of zero has no meaning here: write 1ms or more")],
        );
    }
}

/// Makes an optional field one that may be left out, instead of one that may be `null`.
///
/// The API server drops a `null` where the schema doesn't allow it, so that rules only have to
/// ask `has()`.
fn without_null(schema: &mut Schema) {
    transform_subschemas(&mut without_null, schema);
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(alternatives)) = object.get_mut("anyOf") {
        alternatives.retain(|alternative| alternative.get("type") != Some(&json!("null")));
        if let [Value::Object(only)] = alternatives.as_slice() {
            let only = only.clone();
            object.remove("anyOf");
            for (key, value) in only {
                object.entry(key).or_insert(value);
            }
        }
    }
}

//! Manifests from files: every RetryPipeline in them, checked, and all that is wrong
//! with them, each with file, document, line and field.

use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::yaml::{self, Segment};
use super::{rules, schema};
use crate::api::annotations::ALLOW_RECREATE;
use crate::api::{GROUP, RetryPipelineSpec, VERSION};
use crate::topology::names;
use crate::topology::spec::Identity;
use crate::topology::validate::{self, Pipeline};

/// No manifest comes near; what is larger is a mistake.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Something that keeps a pipeline from being planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    /// The file, `-` for standard input; absent where the cause is no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    /// Which document of the file, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) document: Option<usize>,
    /// The line in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
    /// The field's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) field: Option<String>,
    /// What is wrong, and what to write instead.
    pub(super) message: String,
}

impl Problem {
    /// A problem that is in no file.
    pub(super) fn of_no_file(message: String) -> Self {
        Self { file: None, document: None, line: None, field: None, message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(file) = &self.file else { return f.write_str(&self.message) };
        f.write_str(file)?;
        if let Some(document) = self.document {
            write!(f, ", document {document}")?;
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(field) = &self.field {
            write!(f, ": {field}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A document of a kind that is not planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Skipped {
    /// The file.
    pub(super) file: String,
    /// Which document, counted from 1.
    pub(super) document: usize,
    /// Its kind.
    pub(super) kind: String,
    /// Its name, if it has one.
    pub(super) name: String,
}

/// A RetryPipeline that can be planned.
#[derive(Debug)]
pub(super) struct Manifest {
    /// The file.
    pub(super) file: String,
    /// Which document, counted from 1.
    pub(super) document: usize,
    /// Its namespace, or `default`.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// Its UID, where the file came out of a cluster.
    pub(super) uid: Option<String>,
    /// The pending plan that it allows.
    pub(super) consent: Option<String>,
    /// Its specification.
    pub(super) spec: RetryPipelineSpec,
}

impl Manifest {
    /// The checked pipeline under an identity.
    pub(super) fn pipeline(&self, identity: Identity) -> Result<Pipeline, Vec<validate::Problem>> {
        validate::validate(identity, self.spec.to_topology())
    }
}

/// All that the files hold.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) pipelines: Vec<Manifest>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) problems: Vec<Problem>,
}

impl Manifests {
    /// Reads files; `-` is standard input.
    pub(super) fn read(files: &[String]) -> Self {
        let mut manifests = Self::default();
        for file in files {
            let shown = if file == "-" { "standard input" } else { file };
            match text(file) {
                Ok(text) => manifests.file(shown, &text),
                Err(message) => manifests.problems.push(problem(shown, None, None, message)),
            }
        }
        manifests.find_doubles();
        if manifests.pipelines.is_empty() && manifests.problems.is_empty() {
            manifests.problems.push(Problem::of_no_file("no file holds a RetryPipeline".to_owned()));
        }
        manifests
    }

    /// Reads a text that stands in no file.
    pub(super) fn of_text(shown: &str, text: &str) -> Self {
        let mut manifests = Self::default();
        manifests.file(shown, text);
        manifests
    }

    fn file(&mut self, file: &str, text: &str) {
        for (index, document) in yaml::documents(text).into_iter().enumerate() {
            let place = Place { file, text, index };
            match document {
                Err(fault) => self.problems.push(problem(file, Some(index + 1), fault.line, fault.message)),
                // What stands between two separators, comments for instance.
                Ok(Value::Null) => {}
                Ok(Value::Object(document)) => self.document(&place, document),
                Ok(_) => {
                    self.problems.push(place.problem(&[], "is no resource: a resource is a map".to_owned()))
                }
            }
        }
    }

    fn document(&mut self, place: &Place<'_>, document: Map<String, Value>) {
        let text = |key: &str| document.get(key).and_then(Value::as_str);
        let Some(kind) = text("kind") else {
            return self.problems.push(place.at("kind", "is missing"));
        };
        let group =
            text("apiVersion").and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
        let ours = group == GROUP || text("apiVersion").is_none();
        if kind != "RetryPipeline" || !ours {
            let name =
                document.get("metadata").and_then(|metadata| metadata["name"].as_str()).unwrap_or_default();
            self.skipped.push(Skipped {
                file: place.file.to_owned(),
                document: place.index + 1,
                kind: kind.to_owned(),
                name: name.to_owned(),
            });
            return;
        }
        match pipeline(place, document) {
            Ok(manifest) => self.pipelines.push(manifest),
            Err(problems) => self.problems.extend(problems),
        }
    }

    /// One name can only belong to one resource.
    fn find_doubles(&mut self) {
        for (index, manifest) in self.pipelines.iter().enumerate() {
            let same =
                |other: &&Manifest| other.namespace == manifest.namespace && other.name == manifest.name;
            if let Some(first) = self.pipelines[..index].iter().find(same) {
                let message = format!(
                    "{}/{} stands in {}, document {} already: keep one",
                    first.namespace, first.name, first.file, first.document
                );
                self.problems.push(problem(&manifest.file, Some(manifest.document), None, message));
            }
        }
    }
}

/// Where a document is.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
    index: usize,
}

impl Place<'_> {
    fn problem(&self, path: &[Segment], message: String) -> Problem {
        let field = Some(yaml::show(path)).filter(|field| !field.is_empty());
        let line = yaml::line_of(self.text, self.index, path);
        Problem { field, ..problem(self.file, Some(self.index + 1), line, message) }
    }

    fn at(&self, field: &str, message: &str) -> Problem {
        self.problem(&yaml::path(field), message.to_owned())
    }
}

fn problem(file: &str, document: Option<usize>, line: Option<usize>, message: String) -> Problem {
    Problem { file: Some(file.to_owned()), document, line, ..Problem::of_no_file(message) }
}

fn text(file: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = if file == "-" {
        std::io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(Path::new(file)).and_then(|open| open.take(MAX_BYTES + 1).read_to_end(&mut bytes))
    };
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err("does not exist".to_owned()),
        Err(error) => return Err(format!("can't be read: {error}")),
        Ok(_) => {}
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("is larger than {} MiB and can't be a manifest", MAX_BYTES / 1024 / 1024));
    }
    let text = String::from_utf8(bytes).map_err(|_| "is not text in UTF-8".to_owned())?;
    if text.contains('\0') {
        return Err("is not text: it contains a zero byte".to_owned());
    }
    Ok(text)
}

/// Checks a RetryPipeline, as far as that goes without its broker.
fn pipeline(place: &Place<'_>, mut document: Map<String, Value>) -> Result<Manifest, Vec<Problem>> {
    let mut problems = Vec::new();
    match document.get("apiVersion").and_then(Value::as_str) {
        None => problems.push(place.at("apiVersion", &format!("is missing: write {GROUP}/{VERSION}"))),
        Some(version) if version != format!("{GROUP}/{VERSION}") => {
            problems
                .push(place.at("apiVersion", &format!("{version} is not known: write {GROUP}/{VERSION}")));
        }
        Some(_) => {}
    }
    for key in document.keys() {
        if !["apiVersion", "kind", "metadata", "spec", "status"].contains(&key.as_str()) {
            problems.push(
                place.problem(&[Segment::Key(key.clone())], "is no field of a RetryPipeline".to_owned()),
            );
        }
    }
    let (namespace, name, uid) = metadata(place, &document, &mut problems);
    let annotations = document.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let consent = annotations.and_then(|all| all.get(ALLOW_RECREATE)).and_then(Value::as_str);
    let consent = consent.map(str::to_owned);
    let Some(mut spec) = document.remove("spec") else {
        problems.push(place.at("spec", "is missing"));
        return Err(problems);
    };
    let mismatches = schema::check_spec(&mut spec);
    let fits = mismatches.is_empty();
    problems.extend(mismatches.into_iter().map(|mismatch| place.problem(&mismatch.path, mismatch.message)));
    match serde_json::from_value::<RetryPipelineSpec>(spec) {
        Ok(spec) => {
            let manifest = Manifest {
                file: place.file.to_owned(),
                document: place.index + 1,
                namespace,
                name,
                uid,
                consent,
                spec,
            };
            problems.extend(beyond_the_schema(place, &manifest, &problems));
            if problems.is_empty() { Ok(manifest) } else { Err(problems) }
        }
        Err(error) => {
            if fits {
                problems.push(place.at("spec", &error.to_string()));
            }
            Err(problems)
        }
    }
}

fn metadata(
    place: &Place<'_>,
    document: &Map<String, Value>,
    problems: &mut Vec<Problem>,
) -> (String, String, Option<String>) {
    let mut text = |field: &str| match document.get("metadata").and_then(|metadata| metadata.get(field)) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => {
            problems.push(place.at(&format!("metadata.{field}"), "is no text: put it in quotes"));
            None
        }
    };
    let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
    let message = match &name {
        None => Some("is missing"),
        Some(name) if name.len() > 63 => Some("is longer than 63 characters: shorten it"),
        Some(name) if !is_object_name(name) => {
            Some("is no name for a resource: use a-z, 0-9, '-' and '.', with a letter or digit at both ends")
        }
        Some(_) => None,
    };
    if let Some(message) =
        message.filter(|_| !problems.iter().any(|found| found.field.as_deref() == Some("metadata.name")))
    {
        problems.push(place.at("metadata.name", message));
    }
    (namespace.unwrap_or_else(|| "default".to_owned()), name.unwrap_or_default(), uid)
}

/// RFC 1123, as Kubernetes checks it.
fn is_object_name(name: &str) -> bool {
    let ends = |label: &str| {
        let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        alphanumeric(label.as_bytes().first()) && alphanumeric(label.as_bytes().last())
    };
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    name.bytes().all(allowed) && name.split('.').all(ends)
}

/// What fields mean together, and what they expand to; without a second word on a
/// field that the schema has refused already.
fn beyond_the_schema(place: &Place<'_>, manifest: &Manifest, known: &[Problem]) -> Vec<Problem> {
    let unchecked = Identity {
        cluster: String::new(),
        namespace: manifest.namespace.clone(),
        name: manifest.name.clone(),
        uid: String::new(),
    };
    let mut found: Vec<Problem> = rules::check(&manifest.spec)
        .into_iter()
        .map(|(field, message)| place.at(&format!("spec.{field}"), message))
        .collect();
    if let Some(message) = names::problem("the vhost", manifest.spec.vhost()) {
        found.push(place.at("spec.vhost", &message));
    }
    let expanded = manifest.pipeline(unchecked).err().unwrap_or_default();
    for problem in expanded {
        let field = format!("spec.{}", problem.field);
        // Both say the same of some fields, and what is missing has no wrong parts.
        let covers = |other: &str| {
            field.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if !found.iter().filter_map(|other| other.field.as_deref()).any(covers) {
            found.push(place.at(&field, &problem.message));
        }
    }
    found.retain(|problem| !known.iter().any(|other| other.field == problem.field));
    found
}

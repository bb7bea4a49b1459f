//! Which names of a broker a namespace may use, where several namespaces share its user.
//!
//! The broker can't tell the tenants of one user apart, so that its owner says who may use what:
//!
//! ```text
//! shop=/shop:orders.+carts.,/shop-eu; billing=/billing
//! ```
//!
//! Each entry names a namespace and its vhosts. A vhost alone is granted whole; with prefixes,
//! only names that begin with one of them. The characters `% , ; : = +` and blanks inside of a
//! name are percent-encoded. One malformed entry makes the whole text grant nothing: half of what
//! somebody wrote may be more than they meant.
//!
//! All that a pipeline derives begins with a name that it was given, and a grant ends in a
//! prefix, never in a whole name: whoever may use the names of [`uses`] may use every later
//! generation, shard and exchange of the chain as well. A test compares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::pipeline::Pipeline;

/// What separates the parts of a text of grants, and so stands encoded inside of names.
const SEPARATORS: &str = "%,;:=+";

/// Whether a list of namespaces, separated by commas, names this one. Blanks around the names do
/// not count; `*` stands for all.
#[must_use]
pub fn lists_namespace(list: &str, namespace: &str) -> bool {
    list.split(',').map(str::trim).any(|listed| listed == "*" || listed == namespace)
}

/// What an owner grants, by namespace and vhost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(BTreeMap<String, BTreeMap<String, Reach>>);

/// How far a grant on a vhost goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every name.
    Whole,
    /// Names that begin with one of these; none of them is empty.
    Prefixes(BTreeSet<String>),
}

impl Reach {
    /// Whether a name is within it, byte by byte.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        match self {
            Self::Whole => true,
            Self::Prefixes(prefixes) => prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())),
        }
    }

    fn extend(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::Prefixes(prefixes), Self::Prefixes(more)) => prefixes.extend(more),
            (_, Self::Whole) => *self = Self::Whole,
            (Self::Whole, _) => {}
        }
    }
}

/// Why a text of grants can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Which entry, counted from 1. It is not repeated: it may be another tenant's.
    pub entry: usize,
    /// What is wrong with it, and what to write instead.
    pub problem: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} {}", self.entry, self.problem)
    }
}

impl std::error::Error for Malformed {}

impl Grants {
    /// Reads a text of grants; an empty one grants nothing.
    ///
    /// # Errors
    /// The first entry that is malformed.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut grants = Self::default();
        let entries = text.split(';').map(str::trim).filter(|entry| !entry.is_empty());
        for (index, entry) in entries.enumerate() {
            let (namespace, vhosts) =
                read_entry(entry).map_err(|problem| Malformed { entry: index + 1, problem })?;
            let known = grants.0.entry(namespace).or_default();
            for (vhost, reach) in vhosts {
                match known.get_mut(&vhost) {
                    Some(before) => before.extend(reach),
                    None => drop(known.insert(vhost, reach)),
                }
            }
        }
        Ok(grants)
    }

    /// How far a namespace's grant on a vhost goes; `None`: there is none.
    #[must_use]
    pub fn reach(&self, namespace: &str, vhost: &str) -> Option<&Reach> {
        self.0.get(namespace)?.get(vhost)
    }

    /// What of this is not granted to a namespace on a vhost; `None`: everything is.
    #[must_use]
    pub fn missing(&self, namespace: &str, vhost: &str, uses: &[Use]) -> Option<Missing> {
        let Some(reach) = self.reach(namespace, vhost) else {
            return Some(Missing { vhost: true, uses: uses.to_vec() });
        };
        let uses: Vec<Use> = uses.iter().filter(|one| !reach.covers(&one.name)).cloned().collect();
        (!uses.is_empty()).then_some(Missing { vhost: false, uses })
    }
}

impl fmt::Display for Grants {
    /// As it is written in an annotation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (namespace, vhosts)) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{namespace}=")?;
            for (index, (vhost, reach)) in vhosts.iter().enumerate() {
                if index > 0 {
                    f.write_str(",")?;
                }
                f.write_str(&encode(vhost))?;
                if let Reach::Prefixes(prefixes) = reach {
                    let prefixes: Vec<String> = prefixes.iter().map(|prefix| encode(prefix)).collect();
                    write!(f, ":{}", prefixes.join("+"))?;
                }
            }
        }
        Ok(())
    }
}

/// A vhost, and how far a grant on it goes.
type Vhost = (String, Reach);

fn read_entry(entry: &str) -> Result<(String, Vec<Vhost>), &'static str> {
    let (namespace, vhosts) =
        entry.split_once('=').ok_or("names no vhost: write NAMESPACE=VHOST, or NAMESPACE=VHOST:PREFIX")?;
    let namespace = namespace.trim();
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if namespace.is_empty() || !namespace.bytes().all(is_plain) {
        return Err("does not begin with the name of one namespace: write NAMESPACE=VHOST");
    }
    let vhosts = vhosts.split(',').map(read_vhost).collect::<Result<_, _>>()?;
    Ok((namespace.to_owned(), vhosts))
}

fn read_vhost(text: &str) -> Result<Vhost, &'static str> {
    let (vhost, prefixes) = match text.split_once(':') {
        Some((vhost, prefixes)) => (vhost, Some(prefixes)),
        None => (text, None),
    };
    let vhost = decode(vhost)?;
    let Some(prefixes) = prefixes else { return Ok((vhost, Reach::Whole)) };
    let prefixes = prefixes.split('+').map(decode).collect::<Result<_, _>>()?;
    Ok((vhost, Reach::Prefixes(prefixes)))
}

/// A name without its encoding.
fn decode(text: &str) -> Result<String, &'static str> {
    const ENCODING: &str = "holds a % that is no encoded byte: write % itself as %25";
    let text = text.trim();
    if text.is_empty() {
        return Err("holds an empty vhost or prefix: leave out the separator before it");
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
                    return Err(ENCODING);
                };
                u8::try_from(high * 16 + low).map_err(|_| ENCODING)?
            }
            b'=' | b':' | b'+' | b',' | b';' => {
                return Err("holds a separator inside of a name: write , ; : = + as %2C %3B %3A %3D %2B");
            }
            byte if byte.is_ascii_whitespace() || byte.is_ascii_control() => {
                return Err("holds a blank inside of a name: write it as %20");
            }
            byte => byte,
        };
        bytes.push(decoded);
    }
    String::from_utf8(bytes).map_err(|_| "holds encoded bytes that are no text in UTF-8: correct them")
}

/// A name as it stands in a text of grants.
#[must_use]
pub fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for character in name.chars() {
        if SEPARATORS.contains(character) || character.is_whitespace() || character.is_control() {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        } else {
            encoded.push(character);
        }
    }
    encoded
}

/// A name that a resource uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The field of the specification that it comes from, without `spec`.
    pub field: String,
    /// `queue` or `exchange`.
    pub kind: &'static str,
    /// The name.
    pub name: String,
}

impl Use {
    /// A queue.
    #[must_use]
    pub fn queue(field: &str, name: &str) -> Self {
        Self { field: field.to_owned(), kind: "queue", name: name.to_owned() }
    }

    /// An exchange.
    #[must_use]
    pub fn exchange(field: &str, name: &str) -> Self {
        Self { field: field.to_owned(), kind: "exchange", name: name.to_owned() }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} ({})", self.kind, self.name, self.field)
    }
}

/// Every name that a pipeline declares, binds, matches by a policy, reads, publishes to or
/// adopts, but for those that begin with one of these. The exchange of the markers is Redrive's
/// own and nobody's to name.
#[must_use]
pub fn uses(pipeline: &Pipeline) -> Vec<Use> {
    let source = &pipeline.spec.source;
    let mut uses = vec![Use::queue("source.queue.name", &source.queue)];
    uses.extend(source.exchange.iter().map(|one| Use::exchange("source.exchange.name", &one.name)));
    let bound = source.bindings.iter().enumerate();
    uses.extend(
        bound.map(|(index, one)| Use::exchange(&format!("source.bindings[{index}].exchange"), &one.exchange)),
    );
    let tiers = pipeline.tiers.iter();
    uses.extend(tiers.map(|tier| Use::queue("retry.naming.template", &tier.name)));
    uses.push(Use::queue("deadLetter.name", &pipeline.dlq));
    uses
}

/// What a namespace lacks on a vhost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Whether nothing of the vhost is granted.
    pub vhost: bool,
    /// The names that are not.
    pub uses: Vec<Use>,
}

impl Missing {
    /// The narrowest entry that would grant it: no more than these names and what begins with
    /// them.
    #[must_use]
    pub fn remedy(&self, namespace: &str, vhost: &str) -> String {
        let names: BTreeSet<&str> = self.uses.iter().map(|one| one.name.as_str()).collect();
        let mut prefixes: Vec<&str> = Vec::new();
        // In order, so that a name comes right after those that it begins with.
        for name in names {
            if !prefixes.last().is_some_and(|prefix| name.starts_with(prefix)) {
                prefixes.push(name);
            }
        }
        let prefixes: Vec<String> = prefixes.into_iter().map(encode).collect();
        match prefixes.is_empty() {
            true => format!("{namespace}={}", encode(vhost)),
            false => format!("{namespace}={}:{}", encode(vhost), prefixes.join("+")),
        }
    }
}

#[cfg(test)]
mod tests;

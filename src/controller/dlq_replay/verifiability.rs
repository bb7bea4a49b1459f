//! Whether an approval can be believed: whether the API server checks who asks and who approves.
//!
//! The names in a `DlqReplay` are text. They prove something only where the policies of
//! `admission/` are installed, whole and enforcing. [`verify`] compares what the API server holds
//! with the manifests that this operator was built with.
//!
//! Guarantees: a policy counts only if it matches the same requests, under the same conditions,
//! with every one of our rules, refuses what it can't judge, and is bound everywhere with `Deny`.
//! Stricter is fine: further rules, and other wording of messages.
//!
//! Leaves out: whoever may change these policies may change them back afterwards, and cluster
//! administrators stand above all of it. The policy that stamps the requester only spares typing.

use std::fmt;

use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use kube::{Api, Client};
use serde::Deserialize;

use crate::controller::api_server::{API_TIMEOUT, within};

/// The manifests that people apply.
const MANIFESTS: [&str; 4] = [
    include_str!("../../../admission/replay-identity.yaml"),
    include_str!("../../../admission/replay-after-approval.yaml"),
    include_str!("../../../admission/replay-worker-status.yaml"),
    include_str!("../../../admission/pipeline-floor.yaml"),
];

/// The one variable that a cluster may set to a text of its own.
const CLUSTER_FLOOR: &str = "clusterFloor";

/// How long API servers may take until a new policy is in effect. They need about one second.
const SETTLING: SignedDuration = SignedDuration::from_secs(5);

/// What the API server holds under the name of one policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Installed {
    /// The policy, if there is one.
    pub policy: Option<ValidatingAdmissionPolicy>,
    /// The binding of the same name, if there is one.
    pub binding: Option<ValidatingAdmissionPolicyBinding>,
}

/// Whether approvals can be believed.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All policies are enforced. What is older than they are may not have been checked:
    /// see [`Verdict::vouches_for`].
    Verified {
        /// The creation of the youngest policy or binding; none where the server gave no times.
        since: Option<Time>,
    },
    /// At least one is not. Never empty.
    Unverified(Vec<Finding>),
}

/// What is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The policy's name.
    pub policy: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// In which way a policy doesn't protect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is none.
    PolicyMissing,
    /// Nothing puts it into effect.
    BindingMissing,
    /// What it can't judge passes.
    FailsOpen,
    /// It takes parameters, so that it may depend on an object that anybody edits.
    Parameterised,
    /// It looks at other requests than it should.
    MatchesOthers,
    /// Its conditions or variables are others.
    Rewritten,
    /// A rule is missing; its message.
    RuleMissing(String),
    /// The binding is for another policy.
    BindsAnother,
    /// The binding warns or records, and lets pass.
    NotDenying,
    /// The binding leaves out some namespaces, objects or requests.
    Narrowed,
    /// The operator may not read it.
    Unreadable,
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not answer as it should; try again.
    #[error("can't read the admission policies: {0}")]
    Kubernetes(#[source] Box<kube::Error>),
    /// The API server did not answer in time; try again.
    #[error("the API server did not answer within {API_TIMEOUT:?}")]
    Timeout,
    /// The manifests in this binary can't be read.
    #[error("the admission policies of this version are broken: {0}")]
    Manifest(#[from] serde_yaml::Error),
}

impl Verdict {
    /// Whether approvals can be believed.
    pub fn is_verified(&self) -> bool {
        matches!(self, Self::Verified { .. })
    }

    /// Whether a replay that was created at this moment was checked from then on. One that is
    /// older than the policies could have been given any name.
    pub fn vouches_for(&self, created: &Time) -> bool {
        let Self::Verified { since: Some(since) } = self else { return false };
        created.0.duration_since(since.0) >= SETTLING
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Unverified(findings) = self else {
            return f.write_str("approvals are checked by the API server");
        };
        let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
        write!(
            f,
            "nobody can tell who approved: {}; apply the manifests in admission/ of this version",
            findings.join(", ")
        )
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.policy;
        match &self.fault {
            Fault::PolicyMissing => write!(f, "the policy {name} is missing"),
            Fault::BindingMissing => write!(f, "the policy {name} has no binding of that name"),
            Fault::FailsOpen => write!(f, "the policy {name} lets pass what it can't judge"),
            Fault::Parameterised => write!(f, "the policy {name} takes parameters"),
            Fault::MatchesOthers => write!(f, "the policy {name} looks at other requests"),
            Fault::Rewritten => write!(f, "the policy {name} has other conditions or variables"),
            Fault::RuleMissing(message) => write!(f, "the policy {name} lacks the rule \"{message}\""),
            Fault::BindsAnother => write!(f, "the binding {name} is for another policy"),
            Fault::NotDenying => write!(f, "the binding {name} does not deny"),
            Fault::Narrowed => write!(f, "the binding {name} leaves requests out"),
            Fault::Unreadable => write!(f, "the operator may not read the policy {name} or its binding"),
        }
    }
}

/// Asks the API server for our policies and judges them: eight small reads by name, at once.
///
/// What the operator may not read counts as not enforced.
///
/// # Errors
///
/// Where the API server doesn't answer: nothing is known then, and asking again helps.
pub async fn verify(client: &Client) -> Result<Verdict, Error> {
    verify_against(client, &policies(&MANIFESTS)?).await
}

/// As [`verify`], against other policies than those of this version.
///
/// # Errors
///
/// As [`verify`].
pub async fn verify_against(client: &Client, wanted: &[ValidatingAdmissionPolicy]) -> Result<Verdict, Error> {
    let looks = wanted.iter().map(|wanted| look(client, name_of(wanted)));
    let found = within(API_TIMEOUT, try_join_all(looks)).await.map_err(|_| Error::Timeout)?;
    match found {
        Ok(found) => Ok(judge(wanted, &found)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(unreadable(wanted, &status.message)),
        Err(error) => Err(Error::Kubernetes(Box::new(error))),
    }
}

/// The validating policies that these manifests hold; other kinds are left out.
///
/// # Errors
///
/// Where a text isn't YAML, or a policy isn't one.
pub fn policies(manifests: &[&str]) -> Result<Vec<ValidatingAdmissionPolicy>, serde_yaml::Error> {
    let mut policies = Vec::new();
    for document in manifests.iter().flat_map(|text| serde_yaml::Deserializer::from_str(text)) {
        let document = serde_yaml::Value::deserialize(document)?;
        if document["kind"] == "ValidatingAdmissionPolicy" {
            policies.push(serde_yaml::from_value(document)?);
        }
    }
    Ok(policies)
}

/// Compares what is wanted with what was found, one by one in the same order.
pub fn judge(wanted: &[ValidatingAdmissionPolicy], found: &[Installed]) -> Verdict {
    let nothing = Installed::default();
    let found: Vec<_> = found.iter().chain(std::iter::repeat(&nothing)).take(wanted.len()).collect();
    let findings: Vec<Finding> = wanted
        .iter()
        .zip(&found)
        .flat_map(|(wanted, found)| {
            let faults = policy_faults(wanted, found).into_iter().chain(binding_faults(wanted, found));
            faults.map(|fault| Finding { policy: name_of(wanted).to_owned(), fault })
        })
        .collect();
    if findings.is_empty() {
        Verdict::Verified { since: found.iter().filter_map(|found| created(found)).max() }
    } else {
        Verdict::Unverified(findings)
    }
}

fn name_of(wanted: &ValidatingAdmissionPolicy) -> &str {
    wanted.metadata.name.as_deref().unwrap_or_default()
}

async fn look(client: &Client, name: &str) -> Result<Installed, kube::Error> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let (policy, binding) = futures::try_join!(policies.get_opt(name), bindings.get_opt(name))?;
    Ok(Installed { policy, binding })
}

fn unreadable(wanted: &[ValidatingAdmissionPolicy], refusal: &str) -> Verdict {
    tracing::warn!(refusal, "the admission policies can't be read");
    let finding = |wanted| Finding { policy: name_of(wanted).to_owned(), fault: Fault::Unreadable };
    Verdict::Unverified(wanted.iter().map(finding).collect())
}

fn created(found: &Installed) -> Option<Time> {
    let policy = found.policy.as_ref().and_then(|policy| policy.metadata.creation_timestamp.clone());
    let binding = found.binding.as_ref().and_then(|binding| binding.metadata.creation_timestamp.clone());
    policy.max(binding)
}

fn policy_faults(wanted: &ValidatingAdmissionPolicy, found: &Installed) -> Vec<Fault> {
    let Some(found) = &found.policy else { return vec![Fault::PolicyMissing] };
    let (Some(wanted), Some(found)) = (&wanted.spec, &found.spec) else {
        return vec![Fault::PolicyMissing];
    };
    let mut faults = Vec::new();
    // Fail is the server's default.
    if found.failure_policy.as_deref().is_some_and(|policy| policy != "Fail") {
        faults.push(Fault::FailsOpen);
    }
    if found.param_kind.is_some() {
        faults.push(Fault::Parameterised);
    }
    if explicit(wanted.match_constraints.as_ref()) != explicit(found.match_constraints.as_ref()) {
        faults.push(Fault::MatchesOthers);
    }
    let wanted_conditions = wanted.match_conditions.as_deref().unwrap_or_default();
    let found_conditions = found.match_conditions.as_deref().unwrap_or_default();
    let wanted_variables = wanted.variables.as_deref().unwrap_or_default();
    let found_variables = found.variables.as_deref().unwrap_or_default();
    if wanted_conditions != found_conditions || !same_variables(wanted_variables, found_variables) {
        faults.push(Fault::Rewritten);
    }
    let rules = found.validations.as_deref().unwrap_or_default();
    let lacking = wanted.validations.iter().flatten().filter(|wanted| {
        // Another wording is as good, and so are further rules.
        !rules.iter().any(|rule| rule.expression == wanted.expression)
    });
    faults.extend(lacking.map(|rule| Fault::RuleMissing(rule.message.clone().unwrap_or_default())));
    faults
}

fn binding_faults(wanted: &ValidatingAdmissionPolicy, found: &Installed) -> Vec<Fault> {
    if found.policy.is_none() {
        // Enough is said.
        return Vec::new();
    }
    let Some(found) = found.binding.as_ref().and_then(|binding| binding.spec.as_ref()) else {
        return vec![Fault::BindingMissing];
    };
    let mut faults = Vec::new();
    if found.policy_name.as_deref() != Some(name_of(wanted)) {
        faults.push(Fault::BindsAnother);
    }
    if !found.validation_actions.iter().flatten().any(|action| action == "Deny") {
        faults.push(Fault::NotDenying);
    }
    if explicit(found.match_resources.as_ref()) != explicit(None) {
        faults.push(Fault::Narrowed);
    }
    if found.param_ref.is_some() {
        faults.push(Fault::Parameterised);
    }
    faults
}

/// With all that the API server fills in, so that a default that is spelled out makes no
/// difference.
fn explicit(constraints: Option<&MatchResources>) -> MatchResources {
    let mut constraints = constraints.cloned().unwrap_or_default();
    constraints.match_policy.get_or_insert_with(|| "Equivalent".to_owned());
    constraints.namespace_selector.get_or_insert_default();
    constraints.object_selector.get_or_insert_default();
    explicit_rules(constraints.resource_rules.get_or_insert_default());
    explicit_rules(constraints.exclude_resource_rules.get_or_insert_default());
    constraints
}

fn explicit_rules(rules: &mut [NamedRuleWithOperations]) {
    for rule in rules {
        rule.scope.get_or_insert_with(|| "*".to_owned());
    }
}

/// Whether the variables are ours, but for the floor that a cluster may set.
fn same_variables(wanted: &[Variable], found: &[Variable]) -> bool {
    wanted.len() == found.len()
        && wanted.iter().zip(found).all(|(wanted, found)| {
            wanted == found || wanted.name == CLUSTER_FLOOR && found.name == CLUSTER_FLOOR && is_text(found)
        })
}

/// Whether this is one text in quotes, and no expression that could say anything else.
fn is_text(variable: &Variable) -> bool {
    let text = variable.expression.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    text.is_some_and(|text| !text.contains(['\'', '\\']))
}

#[cfg(test)]
mod tests;

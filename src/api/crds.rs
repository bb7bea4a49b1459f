//! The custom resource definitions as files.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use super::{DlqReplay, RetryPipeline};

/// What stands at the top of each generated file.
const HEADER: &str = "# Generated from the types in src/api: UPDATE_CRDS=1 cargo test --test crds\n";

/// The definitions of both kinds.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![DlqReplay::crd(), RetryPipeline::crd()]
}

/// Renders one file per kind: its name, such as `redrive.dev_retrypipelines.yaml`, and its YAML.
///
/// The same input gives the same bytes.
pub fn render() -> Result<Vec<(String, String)>, serde_yaml::Error> {
    all().iter().map(render_one).collect()
}

fn render_one(crd: &CustomResourceDefinition) -> Result<(String, String), serde_yaml::Error> {
    let file = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
    Ok((file, format!("{HEADER}{}", serde_yaml::to_string(crd)?)))
}

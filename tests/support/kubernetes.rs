//! The API server that KUBECONFIG names, with our definitions in it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::fmt::Debug;
use std::process::Command;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config, Resource};
use redrive::api::crds;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::OnceCell;

/// How to reach the cluster. Fails, never skips, where none is named.
pub async fn config() -> Config {
    let Some(kubeconfig) = Kubeconfig::from_env().unwrap() else {
        panic!(
            "KUBECONFIG names no cluster: start one with `hack/dev up` and name it with \
             `eval \"$(hack/dev env)\"`"
        );
    };
    // Both TLS libraries of our dependencies use this one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

pub async fn client() -> Client {
    Client::try_from(config().await).unwrap()
}

/// A client with the certificate of this user, and the path of its kubeconfig. In a cluster whose
/// authority isn't ours, the administrator acts in the user's name, and there is no path.
pub async fn client_of(user: &str) -> (Client, Option<String>) {
    static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    if std::env::var_os("REDRIVE_KUBECONFIG").is_some() {
        let mut config = config().await;
        config
            .headers
            .push((HeaderName::from_static("impersonate-user"), HeaderValue::from_str(user).unwrap()));
        return (Client::try_from(config).unwrap(), None);
    }
    let _turn = ONE_AT_A_TIME.lock().await;
    let dev = std::env::var("REDRIVE_DEV").expect("`eval \"$(hack/dev env)\"` sets REDRIVE_DEV");
    let made = Command::new(dev).args(["user", user]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let kubeconfig = Kubeconfig::read_from(&path).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    (Client::try_from(config).unwrap(), Some(path))
}

/// Creates an object as it is written; a field that its kind doesn't have is an error.
pub async fn create<K: Resource + DeserializeOwned + Clone + Debug>(
    api: &Api<K>,
    object: &Value,
) -> kube::Result<K> {
    let body = serde_json::to_vec(object).unwrap();
    let mut request = Request::new(api.resource_url()).create(&PostParams::default(), body).unwrap();
    *request.uri_mut() = format!("{}&fieldValidation=Strict", request.uri()).parse().unwrap();
    api.clone().into_client().request(request).await
}

/// A client with a token of this service account, which must exist.
pub async fn client_of_account(admin: &Client, namespace: &str, name: &str) -> Client {
    let accounts = Api::<ServiceAccount>::namespaced(admin.clone(), namespace);
    let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
    let issued = accounts.create_token_request(name, &PostParams::default(), &request).await.unwrap();
    let mut config = config().await;
    config.auth_info = AuthInfo { token: Some(issued.status.unwrap().token.into()), ..AuthInfo::default() };
    Client::try_from(config).unwrap()
}

/// Applies the definitions and waits until the API server works by them, once for all tests of a
/// process.
pub async fn with_definitions(client: &Client) {
    static APPLIED: OnceCell<()> = OnceCell::const_new();
    APPLIED.get_or_init(|| apply_definitions(client)).await;
}

async fn apply_definitions(client: &Client) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let params = PatchParams::apply("redrive-tests").force();
    for crd in crds::all() {
        let name = crd.metadata.name.clone().unwrap();
        let before = api.get_opt(&name).await.unwrap().and_then(|crd| crd.metadata.generation);
        let applied = api.patch(&name, &params, &Patch::Apply(&crd)).await.unwrap();
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(240), established).await.unwrap().unwrap();
        if before != applied.metadata.generation {
            // Established says nothing about a changed schema, which is served a moment later.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
}

/// Applies copies of our definitions, in another group and without their rules, and waits until
/// the API server works by them.
pub async fn copy_definitions(client: &Client, group: &str) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds::all() {
        let mut copy = serde_json::to_value(crd).unwrap();
        forget_rules(&mut copy);
        let name = format!("{}.{group}", copy["spec"]["names"]["plural"].as_str().unwrap());
        copy["metadata"]["name"] = name.clone().into();
        copy["spec"]["group"] = group.into();
        copy["spec"]["names"]["shortNames"] = serde_json::Value::Null;
        let copy: CustomResourceDefinition = serde_json::from_value(copy).unwrap();
        api.create(&PostParams::default(), &copy).await.unwrap();
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(240), established).await.unwrap().unwrap();
    }
}

/// Removes such copies.
pub async fn remove_definitions(client: &Client, group: &str) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds::all() {
        let name = format!("{}.{group}", crd.spec.names.plural);
        // They may never have been made.
        let _ = api.delete(&name, &Default::default()).await;
    }
}

fn forget_rules(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Object(members) => {
            members.remove("x-kubernetes-validations");
            members.values_mut().for_each(forget_rules);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(forget_rules),
        _ => {}
    }
}

//! The series of RabbitMQ's own exporter that alerts and dashboards take, as `docs/metrics.md` lists them.

use std::collections::BTreeSet;

use reqwest::Url;
use rstest::rstest;
use serde_json::Value;

use super::support::Version::{self, V40, V43};
use super::support::*;

/// Rows of `docs/metrics.md` that name an endpoint of the exporter: its path, and the series there.
fn documented() -> Vec<(String, BTreeSet<String>)> {
    let page = include_str!("../../docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `/metrics"));
    let quoted = |row: &str| row.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let row = |row: &str| {
        let mut words = quoted(row);
        let path = words.remove(0);
        (path, words.into_iter().filter(|word| word.starts_with("rabbitmq_")).collect())
    };
    rows.map(row).collect()
}

#[rstest]
#[tokio::test]
async fn every_documented_series_is_there(#[values(V43, V40)] version: Version) {
    let uri = std::env::var(format!("REDRIVE_BROKER_{}_URI", version.series())).unwrap();
    if !std::env::var("REDRIVE_DEV_OURS").unwrap_or_default().contains(&uri) {
        eprintln!("left out: of a broker that is not ours the exporter's port may be out of reach");
        return;
    }
    in_vhost(version, "exporter", async |v| {
        let (_, overview) = v.raw("GET", "/overview", None).await;
        let overview: Value = serde_json::from_str(&overview).unwrap();
        let listeners = overview["listeners"].as_array().unwrap();
        let exporter = listeners.iter().find(|one| one["protocol"] == "http/prometheus").unwrap();
        let uri = Url::parse(&uri).unwrap();
        let documented = documented();
        assert_eq!(documented.len(), 3, "{documented:?}");
        for (path, series) in documented {
            let url = format!("http://{}:{}{path}", uri.host_str().unwrap(), exporter["port"]);
            let text = reqwest::get(url).await.unwrap().text().await.unwrap();
            // An alarm that later versions do not have any more.
            let gone = |name: &str| version == V43 && name == "rabbitmq_alarms_file_descriptor_limit";
            let missing: Vec<_> = series
                .into_iter()
                .filter(|name| !text.contains(&format!("# TYPE {name} ")) && !gone(name))
                .collect();
            assert!(missing.is_empty(), "{path} of {version:?} lacks {missing:?}");
        }
    })
    .await;
}

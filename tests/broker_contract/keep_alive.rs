//! How long the management API keeps an idle connection.

use std::time::{Duration, Instant};

use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::Version::{self, V40, V43};

#[rstest]
#[tokio::test]
async fn an_idle_connection_is_closed_after_five_seconds(#[values(V40, V43)] version: Version) {
    let endpoint = version.endpoint();
    let url = reqwest::Url::parse(&endpoint.base_url().to_string()).unwrap();
    let address = (url.host_str().unwrap(), url.port_or_known_default().unwrap());
    let mut connection = TcpStream::connect(address).await.unwrap();
    // An answer without rights is an answer, and the connection stays.
    let request = format!("GET /api/vhosts HTTP/1.1\r\nHost: {}\r\n\r\n", address.0);
    // The broker's time begins later, with its answer.
    let (mut answer, asked) = ([0; 4_096], Instant::now());
    connection.write_all(request.as_bytes()).await.unwrap();
    while connection.read(&mut answer).await.unwrap() > 0 {}
    let idle = asked.elapsed();
    assert!(
        idle > Duration::from_millis(4_500),
        "closed after {idle:?}: sooner than the client lets go of it"
    );
    assert!(idle < Duration::from_secs(60), "closed after {idle:?}");
}

//! TLS listeners of a running broker, with certificates that a test chooses.
//!
//! They serve what the broker's plain listeners serve, by the broker's own TLS, and end with the
//! value that started them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::authority::Authority;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// What a listener shows, and what it wants.
pub struct Shows<'a> {
    /// Certificate and key, both PEM.
    pub identity: &'a (String, String),
    /// Whoever connects must show a certificate of this authority.
    pub clients: Option<&'a Authority>,
}

/// What listens behind TLS.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    Amqp,
    Management,
}

/// A listener of the broker of a series, such as `43`.
pub struct Listener {
    series: &'static str,
    protocol: Protocol,
    /// Where the broker keeps its certificate.
    files: String,
    /// Where it listens, on loopback.
    pub port: u16,
}

impl Listener {
    /// Starts one on a free port, or on `port` in place of one that was stopped. `plain` is the
    /// port of the listener that serves the same without TLS.
    pub fn start(
        series: &'static str,
        plain: u16,
        protocol: Protocol,
        port: Option<u16>,
        shows: &Shows<'_>,
    ) -> Self {
        let port = port.unwrap_or_else(free_port);
        // Erlang remembers what it read of a path, and the API lists the options of listeners.
        let files = format!("/var/lib/rabbitmq/tls-{port}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let (certificate, key) = shows.identity;
        let authority = shows.clients.map(Authority::pem).unwrap_or_default();
        let clients = match shows.clients {
            None => "{verify, verify_none}".to_owned(),
            Some(_) => format!(
                "{{verify, verify_peer}}, {{fail_if_no_peer_cert, true}}, {{cacertfile, \"{files}/ca\"}}"
            ),
        };
        let options = format!(
            "ok = filelib:ensure_dir(\"{files}/\"), \
             ok = file:write_file(\"{files}/certificate\", <<\"{certificate}\">>), \
             ok = file:write_file(\"{files}/key\", <<\"{key}\">>), \
             ok = file:write_file(\"{files}/ca\", <<\"{authority}\">>), \
             Tls = [{{certfile, \"{files}/certificate\"}}, {{keyfile, \"{files}/key\"}}, {clients}]"
        );
        let start = match protocol {
            Protocol::Amqp => {
                format!("rabbit_networking:start_ssl_listener({{\"127.0.0.1\", {port}}}, Tls, 2)")
            }
            Protocol::Management => format!(
                "[Plain] = [Info || Info <- maps:values(ranch:info()), maps:get(port, Info) =:= {plain}], \
                 Socket = [{{ip, {{127,0,0,1}}}}, {{port, {port}}} | Tls], \
                 {{ok, _}} = ranch:start_listener({port}, ranch_ssl, \
                    (maps:get(transport_options, Plain))#{{socket_opts => Socket}}, \
                    cowboy_tls, maps:get(protocol_options, Plain)), ok"
            ),
        };
        assert_eq!(evaluate(series, &format!("{options}, {start}.")).trim(), "ok");
        Self { series, protocol, port, files }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let port = self.port;
        let stop = match self.protocol {
            Protocol::Amqp => format!("rabbit_networking:stop_tcp_listener({{\"127.0.0.1\", {port}}})"),
            Protocol::Management => format!("ranch:stop_listener({port})"),
        };
        evaluate(self.series, &format!("{stop}, file:del_dir_r(\"{}\").", self.files));
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Evaluates Erlang on the development cluster's broker.
pub fn evaluate(series: &str, erlang: &str) -> String {
    let dev = std::env::var("REDRIVE_DEV").expect("REDRIVE_DEV: eval \"$(hack/dev env)\"");
    let output = Command::new(dev).args(["broker", "ctl", series, "eval", erlang]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

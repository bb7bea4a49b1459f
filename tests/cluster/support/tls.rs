//! A broker's listeners behind TLS, with a certificate that can be replaced while they are in use.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use super::authority::{Authority, server_config};

/// The listeners; they end with the test.
pub(crate) struct Terminator {
    config: watch::Sender<Arc<ServerConfig>>,
    accepting: Vec<AbortHandle>,
}

impl Drop for Terminator {
    fn drop(&mut self) {
        self.accepting.iter().for_each(AbortHandle::abort);
    }
}

impl Terminator {
    /// With a certificate for `localhost` of this authority.
    pub(crate) fn new(authority: &Authority) -> Self {
        Self { config: watch::Sender::new(certified(authority)), accepting: Vec::new() }
    }

    /// A listener that leads to `host:port`; its own port on `localhost`.
    pub(crate) async fn listen(&mut self, upstream: &str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (config, upstream) = (self.config.subscribe(), upstream.to_owned());
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, config.clone(), upstream.clone()));
            }
        });
        self.accepting.push(accepting.abort_handle());
        port
    }

    /// Gets a certificate of this authority, and breaks all connections, as a restart does.
    pub(crate) fn replace(&self, authority: &Authority) {
        self.config.send_replace(certified(authority));
    }
}

fn certified(authority: &Authority) -> Arc<ServerConfig> {
    Arc::new(server_config(&authority.sign("localhost"), None))
}

async fn carry(near: TcpStream, mut config: watch::Receiver<Arc<ServerConfig>>, upstream: String) {
    let acceptor = TlsAcceptor::from(config.borrow_and_update().clone());
    let Ok(mut near) = acceptor.accept(near).await else { return };
    let Ok(mut far) = TcpStream::connect(upstream).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = config.changed() => {}
    }
}

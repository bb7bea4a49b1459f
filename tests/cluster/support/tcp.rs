//! A tunnel to a server that can be closed, as if the server were gone; or to several in turn, as a
//! Service leads to those of its pods that live.

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The tunnel; it ends with the test.
pub(crate) struct Tunnel {
    pub(crate) address: String,
    open: watch::Sender<bool>,
    refused: watch::Receiver<usize>,
    accepting: AbortHandle,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Tunnel {
    /// Leads to these servers, each `host:port`.
    pub(crate) async fn start(mut servers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (open, state) = watch::channel(true);
        let (refuse, refused) = watch::channel(0);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *state.borrow() {
                    servers.rotate_left(1);
                    tokio::spawn(carry(near, servers.clone(), state.clone()));
                } else {
                    refuse.send_modify(|count| *count += 1);
                }
            }
        });
        Self { address, open, refused, accepting: accepting.abort_handle() }
    }

    /// Breaks all connections, and each new one.
    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    /// Waits until so many connections were tried in vain, all in all.
    pub(crate) async fn refused(&self, count: usize) {
        let _ = self.refused.clone().wait_for(|refused| *refused >= count).await.unwrap();
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

async fn carry(mut near: TcpStream, servers: Vec<String>, mut open: watch::Receiver<bool>) {
    let Some(mut far) = connect(servers).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = open.wait_for(|open| !open) => {}
    }
}

/// The first that takes a connection.
async fn connect(servers: Vec<String>) -> Option<TcpStream> {
    for server in servers {
        if let Ok(stream) = TcpStream::connect(server).await {
            return Some(stream);
        }
    }
    None
}

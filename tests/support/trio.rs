//! Three nodes of a real RabbitMQ cluster, in a development cluster of their own, thrown away at
//! the end. Any of them can be killed without a warning, and started again with its data.

use std::process::{Command, Stdio};

/// The nodes, and the name of their development cluster.
pub(crate) struct Trio {
    name: String,
    /// Management API and AMQP of each, as URIs with user and password.
    pub(crate) uris: Vec<(String, String)>,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: eval \"$(hack/dev env)\""))
}

/// Calls `hack/dev` for the development cluster of this name.
fn develop(name: &str, arguments: &[&str]) {
    let mut command = Command::new(variable("REDRIVE_DEV"));
    let status = command.args(arguments).env("REDRIVE_DEV_NAME", name).stdout(Stdio::null()).status();
    assert!(status.expect("hack/dev runs").success(), "hack/dev {arguments:?} failed");
}

impl Trio {
    /// Starts an empty trio of a version such as `43`, beside what other tests use.
    pub(crate) async fn start(purpose: &str, version: &str) -> Self {
        let name = format!("{}-{purpose}", variable("REDRIVE_DEV_NAME"));
        let mut trio = Self { name, uris: Vec::new() };
        trio.call(&["clean"]).await;
        trio.call(&["trio", "up", version]).await;
        trio.uris = uris(&trio.name);
        assert_eq!(trio.uris.len(), 3, "{:?}", trio.uris);
        trio
    }

    /// Ends a node, from 1 on, without a warning.
    pub(crate) async fn kill(&self, node: usize) {
        self.call(&["trio", "kill", &node.to_string()]).await;
    }

    /// Starts a node again, and waits until it answers.
    pub(crate) async fn start_again(&self, node: usize) {
        self.call(&["trio", "start", &node.to_string()]).await;
    }

    /// Aside, so that the messages of a test go on moving meanwhile.
    async fn call(&self, arguments: &[&str]) {
        let name = self.name.clone();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let call = move || develop(&name, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(call).await.expect("hack/dev");
    }
}

impl Drop for Trio {
    fn drop(&mut self) {
        let mut clean = Command::new(variable("REDRIVE_DEV"));
        let _ = clean.arg("clean").env("REDRIVE_DEV_NAME", &self.name).status();
    }
}

/// What `hack/dev env` says of a trio.
fn uris(name: &str) -> Vec<(String, String)> {
    // It is not content with a trio alone, and shows it all the same.
    let output = Command::new(variable("REDRIVE_DEV")).arg("env").env("REDRIVE_DEV_NAME", name).output();
    let environment = String::from_utf8(output.expect("hack/dev runs").stdout).expect("text");
    let list = |variable: &str| -> Vec<String> {
        let start = format!("export {variable}=");
        let line = environment.lines().find_map(|line| line.strip_prefix(&start)).expect("a trio");
        // Quoted for a shell.
        line.replace('\\', "").split(',').map(str::to_owned).collect()
    };
    list("REDRIVE_TRIO_URIS").into_iter().zip(list("REDRIVE_TRIO_AMQP_URIS")).collect()
}

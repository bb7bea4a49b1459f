//! The operator as a process of its own: started, measured, stopped.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// Clock ticks per second in `/proc/PID/stat`; the kernel shows it so to everybody.
const TICKS: f64 = 100.0;

/// A running operator.
pub(crate) struct Operator {
    child: Child,
}

impl Operator {
    /// Starts one that watches one namespace.
    pub(crate) fn start(namespace: &str) -> Result<Self> {
        Self::start_with(namespace, &[])
    }

    /// Starts one with more arguments.
    pub(crate) fn start_with(namespace: &str, more: &[&str]) -> Result<Self> {
        let log = std::env::temp_dir().join(format!("redrive-bench-{}.log", std::process::id()));
        let file = File::options().create(true).append(true).open(&log)?;
        let child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["controller", "--allow-local-brokers", "--watch-namespace", namespace])
            .args(more)
            // Unless the environment asks for more, it says what is wrong and no more.
            .env("REDRIVE_LOG", std::env::var("REDRIVE_LOG").unwrap_or_else(|_| "warn".to_owned()))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Self { child })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time used so far, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        cpu_of(self.pid())
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> Result<f64> {
        resident(self.pid())
    }

    /// The highest resident memory so far, in KiB.
    pub(crate) fn peak(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Asks it to stop and waits.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.terminate()?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > Duration::from_secs(60) {
                return Err("the operator does not stop".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn terminate(&self) -> Result<()> {
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        Ok(())
    }
}

impl Drop for Operator {
    /// A figure that fails leaves no operator behind.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Resident memory of a process in KiB.
pub(crate) fn resident(pid: u32) -> Result<f64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).ok_or("no Rss")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Processor time of a process so far, in seconds.
pub(crate) fn cpu_of(pid: u32) -> Result<f64> {
    cpu(&pid.to_string())
}

/// The same of an entry below `/proc`, such as `self`.
pub(crate) fn cpu(process: &str) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name in parentheses may hold blanks.
    let fields: Vec<&str> = stat.rsplit_once(") ").ok_or("no name in stat")?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    Ok((ticks(11).ok_or("no utime")? + ticks(12).ok_or("no stime")?) / TICKS)
}

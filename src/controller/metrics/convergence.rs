//! From a change of a pipeline's specification to Ready.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// From one pipeline on an idle broker to a thousand, or one that waits for people.
const SECONDS: [f64; 12] = [0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];

/// When each pipeline's generation was first seen; none once it was carried out.
pub(crate) struct Convergence {
    seen: Mutex<HashMap<String, (i64, Option<Instant>)>>,
    time: Histogram,
}

impl Default for Convergence {
    fn default() -> Self {
        Self { seen: Mutex::default(), time: Histogram::new(SECONDS) }
    }
}

impl Convergence {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "From the sight of a changed specification to Ready";
        registry.register("redrive_pipeline_convergence_seconds", help, self.time.clone());
    }

    /// A generation that is at work. One that was carried out before this process began does
    /// not count.
    pub(crate) fn begin(&self, uid: &str, generation: i64, is_done: bool) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen.get(uid).is_some_and(|(known, _)| *known == generation);
        if !known {
            seen.insert(uid.to_owned(), (generation, (!is_done).then(Instant::now)));
        }
    }

    /// It was carried out.
    pub(crate) fn end(&self, uid: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(began) = seen.get_mut(uid).and_then(|(_, began)| began.take()) {
            self.time.observe(began.elapsed().as_secs_f64());
        }
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

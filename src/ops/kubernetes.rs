//! A client of the API server that writes only while a term holds, and counts what it asks.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

use super::metrics::Calls;
use super::term::Term;

/// Another process may have taken over, so nothing is written any more.
#[derive(Debug, thiserror::Error)]
#[error("nothing is written: this process does not lead any more")]
pub struct TermOver;

/// A client whose writes fail with [`TermOver`] once the term has ended, those included that it
/// repeats by itself.
///
/// # Errors
/// Where the configuration does not hold.
pub fn client(config: Config, term: Term, calls: Calls) -> kube::Result<Client> {
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&FenceLayer { term, calls, host }).build())
}

struct FenceLayer {
    term: Term,
    calls: Calls,
    host: String,
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fence<S>;

    fn layer(&self, inner: S) -> Fence<S> {
        Fence { inner, term: self.term.clone(), calls: self.calls.clone(), host: self.host.clone() }
    }
}

struct Fence<S> {
    inner: S,
    term: Term,
    calls: Calls,
    host: String,
}

impl<S, B> Service<Request<Body>> for Fence<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let term = if is_read { Term::unlimited() } else { self.term.clone() };
        let (calls, host, method) = (self.calls.clone(), self.host.clone(), request.method().to_string());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = while_it_holds(&term, answer).await;
            let code =
                answer.as_ref().map_or("<error>".to_owned(), |answer| answer.status().as_str().to_owned());
            calls.count(code, method, host);
            answer
        })
    }
}

/// Goes on with a call only while the term holds. It is asked at every step, since the client beneath
/// repeats by itself what the API server would not take at once.
async fn while_it_holds<T, E: Into<BoxError>>(
    term: &Term,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    let mut call = pin!(call);
    poll_fn(|context| match term.holds() {
        true => call.as_mut().poll(context).map_err(Into::into),
        false => Poll::Ready(Err(TermOver.into())),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[tokio::test]
    async fn a_call_that_would_be_repeated_after_the_term_is_not() {
        let term = Term::until(Instant::now() + Duration::from_millis(50));
        let mut repeated = false;
        let call = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            repeated = true;
            Ok::<_, BoxError>(())
        };
        let ended = while_it_holds(&term, call).await;
        assert!(ended.is_err_and(|error| error.is::<TermOver>()));
        assert!(!repeated);
    }
}

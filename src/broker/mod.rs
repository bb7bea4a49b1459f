//! The only way to a RabbitMQ broker.
//!
//! [`Endpoint`] says where a broker is and who we are there; [`AddressGuard`]
//! decides at every connect whether that address may be talked to;
//! [`Management`] reads and writes topology over HTTP; [`amqp`] opens AMQP
//! connections under the same rules and reads exact counts; [`events`] hears what
//! others change.
//!
//! Guarantees: nothing is written before `/api/overview` has shown a RabbitMQ;
//! a foreign server's words never enter an error's text; secrets never enter
//! `Debug` output or errors; no call is repeated by itself; every call ends, by
//! an answer or by its timeout.
//!
//! Left out: what ought to be there (`topology` decides that), retries and
//! backoff (the controller's), and publishing over HTTP (API-16: it ignores
//! alarms).

pub mod amqp;
pub mod connection;
pub mod error;
pub mod events;
pub mod guard;
mod http;
mod lenient;
mod loggable;
mod look;
pub mod management;
mod meter;
pub mod moving;
mod path;
mod refusal;
pub mod replay;
mod rows;
mod snapshot;
pub(crate) mod stream;
mod tls;
mod watch;
mod wire;
mod write;

pub use connection::{Credentials, Endpoint, EndpointError};
pub use error::BrokerError;
pub use guard::AddressGuard;
pub use loggable::is_loggable;
pub use look::Names;
pub use management::{Management, Overview, QueueTotals, Supervision, WhoAmI};
pub use meter::Meter;
pub use watch::Consumers;
pub use write::{Declared, Removed};

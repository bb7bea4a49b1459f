//! Redrive reconciles RabbitMQ retry topology as Kubernetes resources and
//! replays dead letters without losing one. ARCHITECTURE.md draws the map.

pub mod api;
pub mod broker;
pub mod cli;
pub mod controller;
pub mod ops;
pub mod replay;
mod runner;
pub mod topology;

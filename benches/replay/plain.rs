#![allow(dead_code, clippy::all)]
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use futures::StreamExt;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable};
use redrive::broker::{AddressGuard, amqp};
use crate::Result;
use crate::lab::{ORIGIN, TARGET, VHOST, endpoint};

pub(crate) async fn carry_out(args: &[String]) -> Result<()> {
    let pairs: usize = args[0].parse()?;
    let window: usize = args[1].parse()?;
    let many: u64 = args[2].parse()?;
    let mandatory = args[3] == "m";
    let prefetch: u16 = args[4].parse()?;
    let ackeach: u64 = args[5].parse()?;
    let total = 100_000u64;
    let done = Arc::new(AtomicU64::new(0));
    let endpoint = endpoint()?;
    let guard = AddressGuard::new(true, []);
    let began = Instant::now();
    let mut tasks = Vec::new();
    let _ = many;
    for pair in 0..pairs {
        let reading = amqp::connect(&endpoint, &guard, VHOST, "r").await?;
        let publishing = amqp::connect(&endpoint, &guard, VHOST, "p").await?;
        let read = reading.create_channel().await?;
        read.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let publish = publishing.create_channel().await?;
        publish.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut consumer = read.basic_consume(ORIGIN.into(), format!("c{pair}").into(), BasicConsumeOptions::default(), FieldTable::default()).await?;
        let done = done.clone();
        tasks.push(tokio::spawn(async move {
            let _keep = (reading, publishing);
            let mut flying = VecDeque::new();
            let mut unacked = 0u64;
            let mut last = 0u64;
            let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
            loop {
                let next = tokio::time::timeout(std::time::Duration::from_millis(100), consumer.next()).await;
                if let Ok(Some(Ok(delivery))) = next {
                    let mut properties = delivery.properties;
                    let mut headers = properties.headers().clone().unwrap_or_default();
                    for h in ["x-a", "x-b", "x-c", "x-d"] { headers.insert(h.into(), AMQPValue::LongString("0123456789012345".into())); }
                    properties = properties.with_headers(headers);
                    let confirm = publish.basic_publish("".into(), TARGET.into(), options, &delivery.data, properties).await.unwrap();
                    flying.push_back((delivery.delivery_tag, confirm));
                } else if flying.is_empty() {
                    if done.load(Ordering::Relaxed) >= total { break; }
                }
                let over = next_empty(flying.len(), window, done.load(Ordering::Relaxed) + unacked + flying.len() as u64 >= total);
                while flying.len() > over {
                    let Some((tag, confirm)) = flying.pop_front() else { break };
                    let _ = confirm.await.unwrap();
                    last = tag;
                    unacked += 1;
                    if unacked >= ackeach || flying.is_empty() {
                        read.basic_ack(last, BasicAckOptions { multiple: true }).await.unwrap();
                        done.fetch_add(unacked, Ordering::Relaxed);
                        unacked = 0;
                    }
                }
                if done.load(Ordering::Relaxed) >= total { break; }
            }
            let _ = last;
        }));
    }
    for task in tasks { task.await?; }
    println!("plain {args:?}: {:.2} s, own cpu {:.2}", began.elapsed().as_secs_f64(), crate::process::cpu("self")?);
    Ok(())
}

fn next_empty(flying: usize, window: usize, end: bool) -> usize { if end { 0 } else { window.min(flying) } }

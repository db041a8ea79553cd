//! The network between the hosts: how the runtime reaches the model, and the weather.

use std::io;
use std::time::Duration;

use continuable::runtime::BoxFuture;
use continuable::wire::{ByteStream, Connect};
use turmoil::net::TcpStream;

use super::visitor::VISITOR;
use super::{LATENCY_MIN, Shared, guard};
use crate::faults::{Host, NetworkEffect, NetworkFault};
use crate::trace::{Event, Note, Stamp};

/// Where the model is served.
pub(super) const MODEL_PORT: u16 = 80;

/// Connects to the model's host.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelConnect;

impl Connect for ModelConnect {
    fn connect(&self) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async {
            let stream = TcpStream::connect((Host::Model.name(), MODEL_PORT)).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

/// The network faults of a plan: which are to come, and which are under way.
pub(super) struct Weather {
    /// With their places in the plan, the next one last.
    coming: Vec<(u64, NetworkFault)>,
    under_way: Vec<(u64, NetworkFault)>,
    /// Until when the runtime host stays down, once it crashed.
    down_until: u64,
    down: bool,
}

impl Weather {
    pub(super) fn new(faults: &[NetworkFault]) -> Self {
        let mut coming: Vec<_> = (0..).zip(faults.iter().copied()).collect();
        coming.sort_by_key(|(number, fault)| std::cmp::Reverse((fault.at_ms, *number)));
        Self { coming, under_way: Vec::new(), down_until: 0, down: false }
    }

    /// Begins and ends what is due at `ms`.
    pub(super) fn blow(&mut self, sim: &mut turmoil::Sim<'_>, shared: &Shared, ms: u64) {
        while let Some((number, fault)) = self.coming.pop_if(|(_, fault)| fault.at_ms <= ms) {
            let until = ms + fault.for_ms;
            self.begin(sim, shared, (number, fault), (ms, until));
            self.under_way.push((until, fault));
        }
        let (over, still): (Vec<_>, Vec<_>) =
            self.under_way.drain(..).partition(|(until, _)| *until <= ms);
        self.under_way = still;
        for (_, fault) in over {
            end(sim, shared, &fault);
        }
        if self.down && ms >= self.down_until {
            self.down = false;
            start(sim, shared);
        }
    }

    fn begin(
        &mut self,
        sim: &mut turmoil::Sim<'_>,
        shared: &Shared,
        (number, fault): (u64, NetworkFault),
        (ms, until): (u64, u64),
    ) {
        match fault.effect {
            NetworkEffect::Partition(a, b) => sim.partition(a.name(), b.name()),
            NetworkEffect::OneWay(from, to) => sim.partition_oneway(from.name(), to.name()),
            NetworkEffect::Hold(a, b) => sim.hold(a.name(), b.name()),
            NetworkEffect::Latency(a, b, latency) => {
                sim.set_link_latency(a.name(), b.name(), Duration::from_millis(latency));
            }
            NetworkEffect::Crash(Host::Runtime) => {
                // A process that is down cannot die again.
                let Some(life) = guard(&shared.current).clone() else { return };
                if self.down || life.runtime.crashed().is_some() {
                    return;
                }
                self.down_until = until;
                note(shared, ms, number, &fault);
                shared.disk.freeze();
                life.runtime.request_crash(fault.kind());
                return;
            }
            NetworkEffect::Crash(host) => sim.crash(host.name()),
            NetworkEffect::Stream { after_chunks, how } => {
                *guard(&shared.breaks) = Some((after_chunks, how));
            }
        }
        note(shared, ms, number, &fault);
    }

    /// The runtime's process died: buries it, and starts it again, at once or when its fault ends.
    pub(super) fn crash(&mut self, sim: &mut turmoil::Sim<'_>, shared: &Shared, ms: u64) {
        sim.crash(Host::Runtime.name());
        guard(&shared.current).take();
        shared.bury(ms);
        if !shared.plan.visits.is_empty() {
            sim.crash(VISITOR);
            shared.bury_visitor(ms);
        }
        if self.down_until > ms {
            self.down = true;
        } else {
            start(sim, shared);
        }
    }

    /// Fair weather from now on.
    pub(super) fn clear(&mut self, sim: &mut turmoil::Sim<'_>, shared: &Shared) {
        self.coming.clear();
        for (_, fault) in self.under_way.drain(..) {
            end(sim, shared, &fault);
        }
    }
}

/// The machine starts again, with every process on it.
fn start(sim: &mut turmoil::Sim<'_>, shared: &Shared) {
    sim.bounce(Host::Runtime.name());
    if !shared.plan.visits.is_empty() {
        sim.bounce(VISITOR);
    }
}

fn note(shared: &Shared, ms: u64, number: u64, fault: &NetworkFault) {
    let life = shared.life.load(std::sync::atomic::Ordering::Relaxed);
    let stamp = Stamp { ms, life, actor: "weather".into() };
    let (kind, at) = (fault.kind(), format!("{:?}", fault.effect));
    shared.record.push(stamp, Event::Note(Note::Struck { fault: Some(number), kind, at }));
}

fn end(sim: &mut turmoil::Sim<'_>, shared: &Shared, fault: &NetworkFault) {
    match fault.effect {
        NetworkEffect::Partition(a, b) => sim.repair(a.name(), b.name()),
        NetworkEffect::OneWay(from, to) => sim.repair_oneway(from.name(), to.name()),
        NetworkEffect::Hold(a, b) => sim.release(a.name(), b.name()),
        NetworkEffect::Latency(a, b, _) => {
            sim.set_link_latency(a.name(), b.name(), LATENCY_MIN);
        }
        NetworkEffect::Crash(Host::Runtime) => {}
        NetworkEffect::Crash(host) => sim.bounce(host.name()),
        NetworkEffect::Stream { .. } => *guard(&shared.breaks) = None,
    }
}

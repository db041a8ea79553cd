//! Tasks against those who wait for them, read them and own them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use continuable::agent::CreateAgent;
use continuable::channel::Latch;
use continuable::model::script::Step;
use continuable::runtime::Runtime;
use continuable::store::disk::DiskOperation;

use crate::check::stage::Racer;
use crate::check::{Outcome, Race, Script, Stage, Variant};
use crate::disk::{DiskError, DiskFault};

/// A wait, its end without a result, the Task's end, and its notice.
pub const L11: Race = Race {
    id: "L11",
    sentence: "wait, wait abort, settle, notice",
    dropped: &[],
    variants: &[
        Variant {
            name: "aborted",
            script: |stage| l11(stage, false),
            allowed: &[
                "wait: completed; tasks: completed; notices: 0",
                "wait: WAIT_ABORTED; tasks: completed; notices: 1",
                "wait: completed; tasks: completed; notices: 1",
            ],
        },
        Variant {
            name: "dropped",
            script: |stage| l11(stage, true),
            allowed: &[
                "wait: completed; tasks: completed; notices: 0",
                "wait: dropped; tasks: completed; notices: 1",
                "wait: completed; tasks: completed; notices: 1",
            ],
        },
        Variant {
            name: "timed out",
            script: l11_timed_out,
            allowed: &[
                "wait: completed; tasks: completed; notices: 0",
                "wait: running; tasks: completed; notices: 1",
            ],
        },
    ],
};

fn l11(stage: Stage, dropped: bool) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let (task, end) = stage.task(&parent.agent);
        stage.quiet().await;
        let disk = stage.hold_disk();
        let (signal, drops) = (stage.signal(), Latch::new());
        let wait = stage.wait("wait", &parent.agent, &task, Some(signal.clone())).until(&drops);
        let giving_up = match dropped {
            true => stage.set("caller", &drops),
            false => stage.give_up("caller", &signal),
        };
        stage.race(vec![wait, giving_up, stage.set("end", &end)]).await;
        disk.set(());
        stage.quiet().await;
        waited(&stage)
    })
}

fn waited(stage: &Stage) -> Outcome {
    Outcome(vec![
        ("wait", stage.said("wait")),
        ("tasks", stage.tasks()),
        ("notices", stage.notices().to_string()),
    ])
}

/// The Task's end and the end of the caller's patience are due at the same moment.
fn l11_timed_out(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let (task, end) = stage.task(&parent.agent);
        stage.quiet().await;
        let disk = stage.hold_disk();
        let moment = Duration::from_millis(10);
        let (tasks, caller) = (Arc::clone(&stage.deployment().tasks), parent.agent.id().clone());
        let wait = Racer::new("wait", async move {
            match tasks.wait(&task, Some(&caller), Some(moment), None).await {
                Ok(seen) => seen.status.word().to_owned(),
                Err(error) => error.code().word().to_owned(),
            }
        });
        let asleep = stage.runtime.sleep(moment);
        let ending = Racer::new("end", async move {
            asleep.await;
            end.set(());
            "set".to_owned()
        });
        stage.race(vec![wait, ending]).await;
        disk.set(());
        stage.quiet().await;
        waited(&stage)
    })
}

/// A read of a Task against its end.
pub const L12: Race = Race {
    id: "L12",
    sentence: "read against settle",
    dropped: &[],
    variants: &[Variant {
        name: "",
        script: l12,
        allowed: &[
            "read: text; tasks: completed; notices: 0",
            "read: empty; tasks: completed; notices: 1",
            "read: text; tasks: completed; notices: 1",
        ],
    }],
};

fn l12(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let (task, end) = stage.task(&parent.agent);
        stage.quiet().await;
        let disk = stage.hold_disk();
        let read = stage.read("read", &parent.agent, &task);
        stage.race(vec![read, stage.set("end", &end)]).await;
        disk.set(());
        stage.quiet().await;
        Outcome(vec![
            ("read", stage.said("read")),
            ("tasks", stage.tasks()),
            ("notices", stage.notices().to_string()),
        ])
    })
}

/// The owner of a Task is replaced while the Task ends.
pub const L21: Race = Race {
    id: "L21",
    sentence: "owner replaced by a same-id instance against settle",
    dropped: &[],
    variants: &[Variant {
        name: "",
        script: l21,
        allowed: &[
            "owner: replaced; notified: the exact owner; tasks: completed",
            "owner: replaced; notified: none; tasks: completed",
            "owner: replaced; notified: none; tasks: killed",
        ],
    }],
};

fn l21(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let owner = stage.parent("owner").await;
        let (_task, end) = stage.task(&owner.agent);
        stage.quiet().await;
        let (first, second) = (owner.agent.instance(), Arc::new(Mutex::new(None)));
        let (agents, place) = (Arc::clone(&stage.deployment().agents), Arc::clone(&second));
        let replacing = Racer::new("owner", async move {
            let id = owner.agent.id().clone();
            owner.handle.dispose().await;
            drop(owner);
            match agents.create(CreateAgent::new(id)).await {
                Ok(handle) => {
                    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
                    "replaced".to_owned()
                }
                Err(error) => error.code().word().to_owned(),
            }
        });
        stage.race(vec![replacing, stage.set("end", &end)]).await;
        let mut instances = vec![("the exact owner", first)];
        if let Some(handle) = &*second.lock().unwrap_or_else(PoisonError::into_inner) {
            instances.push(("its successor", handle.agent().instance()));
        }
        Outcome(vec![
            ("owner", stage.said("owner")),
            ("notified", stage.notified(&instances)),
            ("tasks", stage.tasks()),
        ])
    })
}

/// A notice for a child against its closing for settlement.
pub const L26: Race = Race {
    id: "L26",
    sentence: "inject (a leaf's notice) against the child's closing for settlement",
    dropped: &[],
    variants: &[
        Variant {
            name: "the disk works",
            script: |stage| l26(stage, true),
            allowed: &[
                "notified: the child; notice: logged; tasks: completed, completed",
                "notified: none; notice: nowhere; tasks: completed, completed",
            ],
        },
        Variant {
            name: "only what came before is confirmed",
            script: |stage| l26(stage, false),
            allowed: &[
                "notified: the child; notice: nowhere; \
                 tasks: failed DURABILITY_FAILED, completed",
                "notified: none; notice: nowhere; tasks: completed, completed",
            ],
        },
    ],
};

fn l26(stage: Stage, disk_works: bool) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let child = stage.start(&parent.agent, vec![Step::held("", "answer", "one")]);
        stage.quiet().await;
        let agents = stage.deployment().agents.list();
        let agent = agents.into_iter().find(|agent| *agent.id() == child.child);
        let agent = agent.expect("its model is held");
        // The leaf outlives the closing: its owner's disposal, which would kill it, waits.
        let disposal = stage.hold_disposal(&agent);
        let (_leaf, end) = stage.task(&agent);
        let turn = Latch::new();
        let held = turn.clone();
        stage.set_disk(move |operation| {
            let flushes = operation == DiskOperation::SyncDirectory;
            flushes.then(|| DiskFault::Hold(held.clone()))
        });
        stage.release("answer");
        stage.quiet().await;
        // The loop's flush has only names left to sync.
        if !disk_works {
            stage.set_disk(|operation| {
                let changes = matches!(operation, DiskOperation::Append | DiskOperation::Sync);
                changes.then_some(DiskFault::Fail(DiskError::Io))
            });
        }
        turn.set(());
        stage.race(vec![stage.set("end", &end)]).await;
        let instances = [("the child", agent.instance())];
        let notified = stage.notified(&instances);
        disposal.set(());
        stage.quiet().await;
        Outcome(vec![
            ("notified", notified),
            ("notice", stage.message("background task job-1").to_owned()),
            ("tasks", stage.tasks()),
        ])
    })
}

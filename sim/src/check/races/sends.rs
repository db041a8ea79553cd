//! Sends against everything that a child goes through.

use continuable::channel::Latch;
use continuable::ids::SessionId;
use continuable::message::MessageSource;
use continuable::model::script::Step;
use serde_json::json;

use crate::check::stage::Parent;
use crate::check::{Outcome, Race, Script, Stage, Variant};
use crate::deployment::WORK_TOOL;

/// A send against the end of a turn.
pub const L1: Race = Race {
    id: "L1",
    sentence: "send against the end of the running turn",
    dropped: &[],
    variants: &[Variant {
        name: "",
        script: l1,
        allowed: &[
            "send: steered; message: logged, requested; tasks: completed; live: 0",
            "send: NOT_DELIVERED; message: nowhere; tasks: completed; live: 0",
            "send: started; message: logged, requested; tasks: completed, completed; live: 0",
        ],
    }],
};

fn l1(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let script = vec![
            Step::held("", "answer", "one"),
            Step::held("", "later", "two"),
            Step::say("three"),
        ];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        stage.release("answer");
        let send = stage.send("send", &parent.agent, &child.child, "joined");
        stage.race(vec![send]).await;
        stage.release("later");
        stage.quiet().await;
        Outcome(vec![
            ("send", stage.said("send")),
            ("message", stage.message("joined").to_owned()),
            ("tasks", stage.tasks()),
            ("live", stage.live(&[&parent.agent]).to_string()),
        ])
    })
}

/// A send between the result of an activation and the end of its association.
pub const L2: Race = Race {
    id: "L2",
    sentence: "send between result and association removal",
    dropped: &[],
    variants: &[Variant {
        name: "",
        script: l2,
        allowed: &[
            "send: NOT_DELIVERED; message: nowhere; tasks: completed; live: 0; notices: 1",
            "send: started; message: logged, requested; tasks: completed, completed; live: 0; \
             notices: 2",
        ],
    }],
};

fn l2(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let script = vec![Step::held("", "answer", "one"), Step::say("two")];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        let flushes = stage.hold_flushes();
        flushes.turn.set(());
        stage.release("answer");
        stage.quiet().await;
        // The child is closed for settlement, and its result is the next thing to come.
        flushes.last.set(());
        let send = stage.send("send", &parent.agent, &child.child, "joined");
        stage.race(vec![send]).await;
        flushes.open();
        stage.quiet().await;
        Outcome(vec![
            ("send", stage.said("send")),
            ("message", stage.message("joined").to_owned()),
            ("tasks", stage.tasks()),
            ("live", stage.live(&[&parent.agent]).to_string()),
            ("notices", stage.notices().to_string()),
        ])
    })
}

/// Two sends to a stopped child.
pub const L3: Race = Race {
    id: "L3",
    sentence: "two sends to a stopped child",
    dropped: &[],
    variants: &[Variant {
        name: "",
        script: l3,
        allowed: &[
            "sends: started, NOT_DELIVERED; one: logged, requested; two: nowhere; \
             tasks: completed, completed",
            "sends: NOT_DELIVERED, started; one: nowhere; two: logged, requested; \
             tasks: completed, completed",
            "sends: started, steered; one: logged, requested; two: logged, requested; \
             tasks: completed, completed",
            "sends: steered, started; one: logged, requested; two: logged, requested; \
             tasks: completed, completed",
        ],
    }],
};

fn l3(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let script = vec![
            Step::say("one"),
            Step::held("", "later", "two"),
            Step::say("three"),
            Step::say("four"),
        ];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        let first = stage.send("one", &parent.agent, &child.child, "message one");
        let second = stage.send("two", &parent.agent, &child.child, "message two");
        stage.race(vec![first, second]).await;
        stage.release("later");
        stage.quiet().await;
        Outcome(vec![
            ("sends", format!("{}, {}", stage.said("one"), stage.said("two"))),
            ("one", stage.message("message one").to_owned()),
            ("two", stage.message("message two").to_owned()),
            ("tasks", stage.tasks()),
        ])
    })
}

/// A person and the parent send to a running child.
pub const L14: Race = Race {
    id: "L14",
    sentence: "human send against parent send on a running child (turn held open)",
    dropped: &[],
    variants: &[Variant {
        name: "",
        script: l14,
        allowed: &[
            "sends: steered, steered; heard: hello by a person, go on by the parent; \
             tasks: completed; notices: 1",
            "sends: steered, steered; heard: go on by the parent, hello by a person; \
             tasks: completed; notices: 1",
        ],
    }],
};

fn l14(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let script = vec![Step::held("", "answer", "one"), Step::say("two")];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        let source = MessageSource::User;
        let human = stage.send_as("human", &parent.agent, &child.child, "hello", source, None);
        let coordinator = stage.send("parent", &parent.agent, &child.child, "go on");
        stage.race(vec![human, coordinator]).await;
        stage.release("answer");
        stage.quiet().await;
        Outcome(vec![
            ("sends", format!("{}, {}", stage.said("human"), stage.said("parent"))),
            ("heard", stage.heard(&child.child)),
            ("tasks", stage.tasks()),
            ("notices", stage.notices().to_string()),
        ])
    })
}

/// A steer against the capture of the structured result.
pub const L16: Race = Race {
    id: "L16",
    sentence: "structured capture against steer",
    dropped: &[],
    variants: &[
        Variant {
            name: "before the capture's step",
            script: |stage| l16(stage, true),
            allowed: &[
                "send: steered; receipts: turn 1 step 2; message: logged, requested; \
                 tasks: completed",
                "send: NOT_DELIVERED; receipts: rejected; message: nowhere; tasks: completed",
            ],
        },
        Variant {
            name: "in the capture's step",
            script: |stage| l16(stage, false),
            allowed: &[
                "send: NOT_DELIVERED; receipts: rejected; message: nowhere; tasks: completed",
                "send: NOT_DELIVERED; receipts: none; message: nowhere; tasks: completed",
            ],
        },
    ],
};

fn l16(stage: Stage, before: bool) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let report = Step::Structured(json!({ "answer": "done" }));
        let work = Step::tool(WORK_TOOL, json!({}));
        let script = match before {
            true => vec![Step::gate("answer"), work, Step::gate("later"), report],
            false => vec![Step::gate("answer"), report],
        };
        let schema = json!({
            "type": "object",
            "properties": { "answer": { "type": "string" } },
            "required": ["answer"],
        });
        let child = stage.start_structured(&parent.agent, schema, script);
        steered_at_the_end(stage, parent, child.child).await
    })
}

/// A steer against a tool that concludes the turn.
pub const L17: Race = Race {
    id: "L17",
    sentence: "concluding tool against steer",
    dropped: &[],
    variants: &[
        Variant {
            name: "before the concluding step",
            script: |stage| l17(stage, true),
            allowed: &[
                "send: steered; receipts: turn 1 step 2; message: logged, requested; \
                 tasks: completed",
                "send: NOT_DELIVERED; receipts: rejected; message: nowhere; tasks: completed",
            ],
        },
        Variant {
            name: "from the concluding step to the loop's flush",
            script: |stage| l17(stage, false),
            allowed: &[
                "send: NOT_DELIVERED; receipts: rejected; message: nowhere; tasks: completed",
                "send: steered; receipts: turn 2 step 1; message: logged, requested; \
                 tasks: completed",
            ],
        },
        Variant {
            name: "from the loop's flush to the final one",
            script: l17_flushed,
            allowed: &[
                "send: steered; receipts: turn 2 step 1; message: logged, requested; \
                 tasks: completed",
                "send: NOT_DELIVERED; receipts: none; message: nowhere; tasks: completed",
            ],
        },
    ],
};

fn conclude() -> Step {
    Step::tool(WORK_TOOL, json!({ "conclude": true }))
}

fn l17(stage: Stage, before: bool) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let work = Step::tool(WORK_TOOL, json!({}));
        let script = match before {
            true => vec![Step::gate("answer"), work, Step::gate("later"), conclude()],
            false => vec![Step::gate("answer"), conclude(), Step::say("two")],
        };
        let child = stage.start(&parent.agent, script);
        steered_at_the_end(stage, parent, child.child).await
    })
}

/// The race of a send against what the open turn does from the gate `answer` on, up to the gate
/// `later` or to the loop's flush.
async fn steered_at_the_end(stage: Stage, parent: Parent, child: SessionId) -> Outcome {
    stage.quiet().await;
    let disk = stage.hold_disk();
    stage.release("answer");
    let send = stage.send("send", &parent.agent, &child, "joined");
    stage.race(vec![send]).await;
    disk.set(());
    stage.release("later");
    stage.quiet().await;
    steered(&stage)
}

fn steered(stage: &Stage) -> Outcome {
    Outcome(vec![
        ("send", stage.said("send")),
        ("receipts", stage.receipts()),
        ("message", stage.message("joined").to_owned()),
        ("tasks", stage.tasks()),
    ])
}

fn l17_flushed(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let script = vec![Step::gate("answer"), conclude(), Step::held("", "later", "two")];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        let flushes = stage.hold_flushes();
        stage.release("answer");
        stage.quiet().await;
        flushes.turn.set(());
        let send = stage.send("send", &parent.agent, &child.child, "joined");
        stage.race(vec![send]).await;
        flushes.open();
        stage.release("later");
        stage.quiet().await;
        steered(&stage)
    })
}

/// A sender gives up while its message waits for its admission.
pub const L20: Race = Race {
    id: "L20",
    sentence: "sender gives up against admission",
    dropped: &[],
    variants: &[
        Variant {
            name: "against the drain",
            script: |stage| l20(stage, Step::held("", "answer", "one"), false),
            allowed: &[
                "send: CANCELLED; receipts: rejected; message: nowhere; tasks: completed",
                "send: steered; receipts: turn 1 step 2; message: logged, requested; \
                 tasks: completed",
            ],
        },
        Variant {
            name: "dropped against the drain",
            script: |stage| l20(stage, Step::held("", "answer", "one"), true),
            allowed: &[
                "send: dropped; receipts: rejected; message: nowhere; tasks: completed",
                "send: dropped; receipts: turn 1 step 2; message: logged, requested; \
                 tasks: completed",
                "send: steered; receipts: turn 1 step 2; message: logged, requested; \
                 tasks: completed",
            ],
        },
        Variant {
            name: "against a rejection",
            script: |stage| l20(stage, conclude(), false),
            allowed: &[
                "send: CANCELLED; receipts: rejected; message: nowhere; tasks: completed",
                "send: NOT_DELIVERED; receipts: rejected; message: nowhere; tasks: completed",
            ],
        },
        Variant {
            name: "against the claim of a prompt",
            script: l20_claimed,
            allowed: &[
                "send: CANCELLED; receipts: rejected; message: nowhere; tasks: completed",
                "send: steered; receipts: turn 2 step 1; message: logged, requested; \
                 tasks: completed",
            ],
        },
    ],
};

fn l20(stage: Stage, answer: Step, dropped: bool) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let script = vec![Step::gate("answer"), answer, Step::held("", "later", "two")];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        let disk = stage.hold_disk();
        let (signal, drops) = (stage.signal(), Latch::new());
        let source = MessageSource::User;
        let (agent, patience) = (&parent.agent, Some(signal.clone()));
        let send = stage.send_as("send", agent, &child.child, "joined", source, patience);
        stage.begin(send.until(&drops)).await;
        stage.release("answer");
        let giving_up = match dropped {
            true => stage.set("caller", &drops),
            false => stage.give_up("caller", &signal),
        };
        stage.race(vec![giving_up]).await;
        disk.set(());
        stage.release("later");
        stage.quiet().await;
        steered(&stage)
    })
}

fn l20_claimed(stage: Stage) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let script = vec![Step::held("", "answer", "one"), Step::held("", "later", "two")];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        let flushes = stage.hold_flushes();
        stage.release("answer");
        stage.quiet().await;
        let signal = stage.signal();
        let (source, patience) = (MessageSource::User, Some(signal.clone()));
        let send = stage.send_as("send", &parent.agent, &child.child, "joined", source, patience);
        stage.begin(send).await;
        flushes.turn.set(());
        let giving_up = stage.give_up("caller", &signal);
        stage.race(vec![giving_up]).await;
        flushes.open();
        stage.release("later");
        stage.quiet().await;
        steered(&stage)
    })
}

/// A foreign send and the real parent's.
pub const L22: Race = Race {
    id: "L22",
    sentence: "foreign send against the real parent's send",
    dropped: &[],
    variants: &[
        Variant {
            name: "to a stopped child",
            script: |stage| l22(stage, false),
            allowed: &[
                "foreign: started; parent: started; heard: mine by the parent; \
                 tasks: completed, completed, failed UNAUTHORIZED",
                "foreign: started; parent: started; heard: mine by the parent; \
                 tasks: completed, failed UNAUTHORIZED, completed",
                "foreign: FOREIGN_TASK; parent: started; heard: mine by the parent; \
                 tasks: completed, completed",
            ],
        },
        Variant {
            name: "to a running child",
            script: |stage| l22(stage, true),
            allowed: &["foreign: FOREIGN_TASK; parent: steered; heard: mine by the parent; \
                 tasks: completed"],
        },
    ],
};

fn l22(stage: Stage, running: bool) -> Script {
    Box::pin(async move {
        stage.assemble();
        let parent = stage.parent("parent").await;
        let stranger = stage.parent("stranger").await;
        let first = match running {
            true => Step::held("", "answer", "one"),
            false => Step::say("one"),
        };
        let script = vec![first, Step::held("", "later", "two"), Step::say("three")];
        let child = stage.start(&parent.agent, script);
        stage.quiet().await;
        let writes = stage.hold_writes();
        let mine = stage.send("parent", &parent.agent, &child.child, "mine");
        let foreign = stage.send("foreign", &stranger.agent, &child.child, "foreign");
        stage.race(vec![mine, foreign]).await;
        writes.set(());
        stage.release("answer");
        stage.release("later");
        stage.quiet().await;
        Outcome(vec![
            ("foreign", stage.said("foreign")),
            ("parent", stage.said("parent")),
            ("heard", stage.heard(&child.child)),
            ("tasks", stage.tasks()),
        ])
    })
}

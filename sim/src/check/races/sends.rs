//! Sends against everything that a child goes through.

use continuable::model::script::Step;

use crate::check::{Outcome, Race, Script, Stage, Variant};

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

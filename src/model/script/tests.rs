use std::time::Duration;

use serde_json::json;

use super::*;
use crate::cancel::CancelSignal;
use crate::facts::CancelScope;
use crate::ids::OwnerId;
use crate::model::{FinishReason, ModelChunk};
use crate::runtime::{TokioRuntime, contain};
use crate::vocabulary::CancelCause;

/// A model and what its requests need.
struct Bench {
    runtime: Arc<dyn Runtime>,
    model: ScriptedModel,
}

impl Bench {
    fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
        Self { model: ScriptedModel::shared(Arc::clone(&runtime), steps), runtime }
    }

    fn request(&self, session: &str) -> ModelRequest {
        let scope = CancelScope::Call { call: "test".to_owned() };
        ModelRequest {
            provider: "mock".to_owned(),
            model: "mock".to_owned(),
            max_tokens: None,
            system: String::new(),
            tools: Vec::new(),
            messages: Vec::new(),
            agent: OwnerId(1),
            session: SessionId::new(session),
            turn: 1,
            step: 1,
            signal: CancelSignal::new(Arc::clone(&self.runtime), scope),
        }
    }

    /// Every chunk of the next response of `session`.
    async fn chunks(&self, session: &str) -> Result<Vec<ModelChunk>, ModelError> {
        let mut stream = self.model.start(self.request(session)).await?;
        let mut chunks = Vec::new();
        while let Some(chunk) = stream.next().await {
            chunks.push(chunk?);
        }
        Ok(chunks)
    }

    /// The text and the finish of the next response of `session`.
    async fn said(&self, session: &str) -> String {
        match self.chunks(session).await {
            Ok(chunks) => text_of(&chunks),
            Err(error) => format!("error: {error}"),
        }
    }
}

fn text_of(chunks: &[ModelChunk]) -> String {
    let text = chunks.iter().filter_map(|chunk| match chunk {
        ModelChunk::TextDelta { text, .. } => Some(text.as_str()),
        _ => None,
    });
    text.collect()
}

fn say(text: &str) -> Step {
    Step::say(text)
}

#[tokio::test]
async fn a_text_streams_in_the_reference_shapes() {
    let bench = Bench::new([say("first step")]);
    let chunks = bench.chunks("s").await.expect("answers");
    let json: Vec<_> =
        chunks.iter().map(|chunk| serde_json::to_string(chunk).expect("serialises")).collect();
    assert_eq!(
        json,
        [
            r#"{"type":"block-start","index":0,"blockType":"text"}"#,
            r#"{"type":"text-delta","index":0,"text":"first step"}"#,
            r#"{"type":"block-end","index":0,"block":{"type":"text","text":"first step"}}"#,
            r#"{"type":"usage","usage":{"inputTokens":10,"outputTokens":5}}"#,
            r#"{"type":"finish","reason":{"kind":"stop"}}"#,
        ]
    );
}

#[tokio::test]
async fn tool_calls_have_ids_of_their_own_and_keep_the_order_of_their_arguments() {
    let calls = vec![("a".to_owned(), json!({"z": 1, "a": 2})), ("b".to_owned(), json!({}))];
    let bench = Bench::new([Step::Tools(calls)]);
    let chunks = bench.chunks("s").await.expect("answers");
    let deltas: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| match chunk {
            ModelChunk::ToolCallDelta { id, arguments_delta, .. } => {
                Some((id.as_deref().expect("an id"), arguments_delta.as_str()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(deltas, [("call-1-1-0", r#"{"z":1,"a":2}"#), ("call-1-1-1", "{}")]);
    assert_eq!(chunks.last(), Some(&ModelChunk::Finish { reason: FinishReason::ToolCalls }));
}

#[tokio::test]
async fn an_exhausted_script_fails_the_request() {
    let bench = Bench::new([say("only")]);
    assert_eq!(bench.said("s").await, "only");
    assert_eq!(bench.said("s").await, "error: script exhausted");
    assert_eq!(bench.model.request_count(), 2);
}

#[tokio::test]
async fn each_session_follows_its_own_script_and_the_others_share() {
    let bench = Bench::new([say("shared 1"), say("shared 2")]);
    bench.model.push(&SessionId::new("own"), [say("own 1")]);
    assert_eq!(bench.said("x").await, "shared 1");
    assert_eq!(bench.said("own").await, "own 1");
    assert_eq!(bench.said("y").await, "shared 2");
    assert_eq!(bench.said("own").await, "error: script exhausted");
}

#[tokio::test]
async fn the_nth_new_session_takes_the_script_laid_out_for_it() {
    let bench = Bench::new([say("shared")]);
    bench.model.push(&SessionId::new("parent"), [say("p")]);
    bench.model.push_new_session(2, [say("second child"), say("again")]);
    bench.model.set_factory(Arc::new(|request, n| {
        (n == 3).then(|| vec![Step::say(format!("made for {} as {n}", request.session))])
    }));
    assert_eq!(bench.said("parent").await, "p");
    assert_eq!(bench.said("a").await, "shared");
    assert_eq!(bench.said("b").await, "second child");
    assert_eq!(bench.said("c").await, "made for c as 3");
    assert_eq!(bench.said("b").await, "again");
}

#[tokio::test]
async fn a_gate_holds_the_response_until_it_is_released() {
    let bench = Arc::new(Bench::new([Step::gate("g"), say("after")]));
    let task = tokio::spawn({
        let bench = Arc::clone(&bench);
        async move { bench.said("s").await }
    });
    bench.model.reached("g").await;
    assert!(!task.is_finished());
    assert_eq!(bench.model.active(), 1);
    bench.model.release("g");
    assert_eq!(task.await.expect("ends"), "after");
    assert_eq!(bench.model.active(), 0);
}

#[tokio::test]
async fn a_response_may_be_held_in_its_middle() {
    let bench = Bench::new([Step::held("one ", "g", "two")]);
    let mut stream = bench.model.start(bench.request("s")).await.expect("opens");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.push(stream.next().await.expect("a chunk").expect("no failure"));
    }
    // A dropped wait loses nothing.
    let held = tokio::time::timeout(Duration::from_millis(1), stream.next()).await;
    assert!(held.is_err());
    assert!(bench.model.was_reached("g"));
    bench.model.release("g");
    while let Some(chunk) = stream.next().await {
        seen.push(chunk.expect("no failure"));
    }
    assert_eq!(text_of(&seen), "one two");
}

#[tokio::test]
async fn hanging_and_endless_responses_end_when_they_are_cancelled() {
    for step in [Step::Hang, Step::Endless(Duration::from_millis(1))] {
        let bench = Bench::new([step]);
        let request = bench.request("s");
        let signal = request.signal.clone();
        let mut stream = bench.model.start(request).await.expect("opens");
        assert!(stream.next().await.is_some_and(|chunk| chunk.is_ok()));
        assert!(stream.next().await.is_some_and(|chunk| chunk.is_ok()));
        signal.cancel(CancelCause::Kill);
        assert!(stream.next().await.is_some_and(|chunk| chunk.is_err()));
        assert!(stream.next().await.is_none());
    }
}

#[tokio::test]
async fn a_gate_gives_up_when_the_request_is_cancelled() {
    let bench = Bench::new([Step::gate("never"), say("unsaid")]);
    let request = bench.request("s");
    request.signal.cancel(CancelCause::User);
    assert!(bench.model.start(request).await.is_err());
    assert_eq!(bench.model.active(), 0);
}

#[tokio::test]
async fn functions_see_the_request_and_may_lead_to_a_gate() {
    let bench = Bench::new([
        Step::func(|request| Step::say(format!("turn {}", request.turn))),
        Step::func(|_| Step::gate("g")),
        say("behind the gate"),
    ]);
    bench.model.release("g");
    assert_eq!(bench.said("s").await, "turn 1");
    assert_eq!(bench.said("s").await, "behind the gate");
}

#[tokio::test]
async fn a_step_for_always_is_never_used_up_and_a_loop_of_gates_fails() {
    let bench = Bench::new([Step::Always(Box::new(say("again")))]);
    for _ in 0..3 {
        assert_eq!(bench.said("s").await, "again");
    }
    let bench = Bench::new([Step::Always(Box::new(Step::gate("g")))]);
    bench.model.release("g");
    assert_eq!(bench.said("s").await, "error: the script leads to no answer");
}

#[tokio::test]
async fn failures_come_where_the_script_puts_them() {
    let broken = Step::Break { text: "half".to_owned(), error: "reset".to_owned() };
    let bench = Bench::new([
        Step::Err("refused".to_owned()),
        Step::RateLimited,
        broken,
        Step::Cut("x".into()),
    ]);
    assert_eq!(bench.said("s").await, "error: refused");
    let limited = bench.model.start(bench.request("s")).await.err().expect("refused");
    assert_eq!(limited.service_code.as_deref(), Some("rate_limit"));
    let mut stream = bench.model.start(bench.request("s")).await.expect("opens");
    let mut ends = Vec::new();
    while let Some(chunk) = stream.next().await {
        ends.push(chunk.is_ok());
    }
    assert_eq!(ends, [true, true, true, false]);
    let cut = bench.chunks("s").await.expect("no failure");
    assert!(!cut.iter().any(|chunk| matches!(chunk, ModelChunk::Finish { .. })));
}

#[tokio::test]
async fn a_scripted_panic_is_contained_and_leaves_the_model_usable() {
    let bench = Bench::new([
        Step::Panic("at once".to_owned()),
        Step::PanicMidStream("later".to_owned()),
        Step::func(|_| panic!("in a function")),
        say("still here"),
    ]);
    for text in ["at once", "later", "in a function"] {
        let panicked = contain(&bench.runtime, "model", bench.chunks("s")).await;
        assert_eq!(panicked.expect_err("panics").text, text);
    }
    assert_eq!(bench.said("s").await, "still here");
    assert_eq!(bench.model.active(), 0);
}

#[tokio::test]
async fn requests_are_kept_in_order_unless_told_otherwise() {
    let bench = Bench::new([Step::Always(Box::new(Step::Empty))]);
    for session in ["a", "b", "a"] {
        bench.said(session).await;
    }
    assert_eq!(bench.model.requests_of(&SessionId::new("a")).len(), 2);
    bench.model.set_recording(false);
    bench.said("a").await;
    assert_eq!(bench.model.requests().len(), 3);
    assert_eq!(bench.model.request_count(), 4);
}

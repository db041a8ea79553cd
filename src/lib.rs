//! Continuable background subagents: a durable child session with a series of Task-backed
//! activations.
//!
//! **Read this page first.** It is the map; the modules below are listed in reading order.
//!
//! # Bird's view
//!
//! A *child* agent works in the background. It ends its turn, its result is confirmed durable, the
//! agent is disposed, and what remains is a *session*: a log on disk. Later its parent, or a person,
//! sends it a message, and it lives again:
//!
//! ```text
//! durable child session
//!   activation 1: Task 1 -> run -> agent -> result -> final flush -> dispose -> terminal
//!   activation 2: Task 2 -> run -> agent -> result -> final flush -> dispose -> terminal
//! ```
//!
//! Every activation has exactly one Task and one outcome, whoever supplied its messages. A message
//! to a running child joins its turn (`steered`); a message to a stopped one starts a fresh Task
//! (`started`); a message that lost a race is reported as not delivered, and is nowhere.
//!
//! # Example
//!
//! Start a child on a real directory, wait for its result, and continue it by id after the process
//! has ended and another one has begun. The model is the scripted one; yours implements
//! [`model::ModelClient`].
//!
//! ```
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use continuable::assembly::{Assembly, AssemblyConfig};
//! use continuable::control::ContinuableStartSpec;
//! use continuable::ids::SessionId;
//! use continuable::message::{ContentBlock, MessageSource};
//! use continuable::model::script::{ScriptedModel, Step};
//! use continuable::runtime::{Runtime, TokioRuntime};
//! use continuable::store::StdDisk;
//!
//! type Failure = Box<dyn std::error::Error>;
//!
//! /// One process: all layers on `directory`, with a model that says `answer`.
//! fn process(directory: &Path, answer: &str) -> Result<Assembly, Failure> {
//!     let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
//!     let model = ScriptedModel::shared(Arc::clone(&runtime), [Step::say(answer)]);
//!     let disk = Arc::new(StdDisk::new(directory));
//!     Ok(Assembly::new(AssemblyConfig::new(runtime, disk, Arc::new(model)))?)
//! }
//!
//! fn main() -> Result<(), Failure> {
//!     let directory = tempfile::tempdir()?;
//!     let me = SessionId::new("parent");
//!
//!     // The first process starts a child and reads its result.
//!     let first = tokio::runtime::Runtime::new()?;
//!     let child = first.block_on(async {
//!         let process = process(directory.path(), "The bridge is 1,280 metres long.")?;
//!         let parent = process.create_parent(me.clone()).await?;
//!         let spec = ContinuableStartSpec::text("spawn", "measure", "How long is the bridge?");
//!         let started = process.control.start_continuable(parent.agent(), spec)?;
//!         process.tasks.wait(&started.task, Some(&me), None, None).await?;
//!         let read = process.tasks.read(&started.task, Some(&me)).await?;
//!         assert_eq!(read.text, "The bridge is 1,280 metres long.");
//!         process.shutdown().await?;
//!         Ok::<_, Failure>(started.child)
//!     })?;
//!     drop(first);
//!
//!     // Another process knows nothing but the directory and the child's id.
//!     let second = tokio::runtime::Runtime::new()?;
//!     second.block_on(async {
//!         let process = process(directory.path(), "It opened in 1937.")?;
//!         let parent = process.create_parent(me.clone()).await?;
//!         let question = vec![ContentBlock::text("And when did it open?")];
//!         let (control, user) = (&process.control, MessageSource::User);
//!         let sent =
//!             control.send_message(parent.agent(), child.as_str(), question, user, None).await?;
//!         process.tasks.wait(&sent.task, Some(&me), None, None).await?;
//!         let read = process.tasks.read(&sent.task, Some(&me)).await?;
//!         assert_eq!(read.text, "It opened in 1937.");
//!         process.shutdown().await?;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! # Code map
//!
//! | layer | module | what it decides |
//! |---|---|---|
//! | base | [`vocabulary`], [`ids`], [`message`], [`error`], [`points`], [`facts`] | the words |
//! | seam | [`runtime`], [`sync`], [`channel`], [`cancel`] | spawn, time, randomness, points, facts; the one lock; who cancelled first |
//! | session | [`session`] | the append-only log: rules, folds, repair, descriptor |
//! | store | [`store`] | plain JSONL, durable marks, damage, listing |
//! | model | [`model`] | streamed answers; the client over HTTP ([`model::http`], on [`wire`]); the scripted fake |
//! | agent | [`agent`] | registry, turn loop, steering with receipts, tools, disposal |
//! | task | [`task`] | records, waits, notices, owners |
//! | provider | [`provider`] | spawn and fork, the final flush, one result per run |
//! | control | [`control`] | associations, routes, one activation from start to terminal |
//! | tools | [`tools`] | what the model calls |
//! | adapter | [`adapter`] | what a person calls, over a byte stream |
//! | sections | [`sections`] | the critical sections that span layers |
//!
//! Entry points: [`assembly::Assembly`] puts the layers together;
//! [`control::SubagentControlService`] is the service behind the model's tools and a person's
//! screen; [`facts::Fact`] and [`points::Point`] are the whole dynamics on two pages.
//!
//! # Architecture invariants
//!
//! - **Synchronous means one critical section.** Whatever the design calls synchronous is one
//!   function in [`sections`], or one method of a pure core under one lock. Locks are taken in one
//!   order, sections are two-phase, no lock is held across an await; [`sync::Mutex`] checks the
//!   first two on every acquisition.
//! - **Cores decide, drivers wait.** A core is `&mut self -> decision`: no clock, no lock, no I/O.
//!   A driver is a straight line of *point, await, recheck*.
//! - **Cancellation is a signal followed by quiescence.** Nothing here aborts a task; dropping one
//!   means the process died. Dropping a caller's future stops nothing but the wait.
//! - **Facts are recorded where they become true**, inside the section, so their order is a
//!   linearisation also on many threads.
//! - **Absent on purpose:** a resident child after its Task is terminal; a phase machine of
//!   activations; a second result for a steered message; a recovery of Tasks after a restart.

pub mod ids;
pub mod vocabulary;
pub mod error;
pub mod message;
pub mod points;
pub mod facts;
pub mod sync;
pub mod channel;
pub mod cancel;
pub mod runtime;
pub mod wire;
pub mod session;
pub mod store;
pub mod model;
pub mod agent;
pub mod sections;
pub mod task;
pub mod provider;
pub mod control;
pub mod tools;
pub mod adapter;
pub mod assembly;

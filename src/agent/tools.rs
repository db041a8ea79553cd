//! Tools: what an agent's model may call.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use serde_json::Value;

use super::Agent;
use crate::cancel::CancelSignal;
use crate::message::{ContentBlock, Message};
use crate::runtime::BoxFuture;
use crate::session::ToolErrorInfo;
use crate::sync::{Access, LockClass, Mutex, ObjectKind, key_of, touch};

pub use crate::model::ToolDefinition;

/// Whether calls of one response may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolMode {
    /// With other parallel calls.
    Parallel,
    /// Alone.
    Exclusive,
}

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct ToolInvocation {
    /// The call's id.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments, valid for the tool's schema.
    pub arguments: Value,
    /// The calling agent.
    pub agent: Agent,
    /// Fires when the turn is cancelled; the tool should then end.
    pub signal: CancelSignal,
    /// The open turn.
    pub turn: u64,
    /// The open step.
    pub step: u64,
}

/// What a call produced.
#[derive(Debug, Clone, Default)]
pub struct ToolOutput {
    /// What the model is shown.
    pub content: Vec<ContentBlock>,
    /// Set if the call failed.
    pub error: Option<ToolErrorInfo>,
    /// The result as a value, for programs.
    pub value: Option<Value>,
    /// Whether a successful result ends the turn.
    pub concludes: bool,
    /// Contexts that enter the log after the last result of the batch.
    pub contexts: Vec<Message>,
}

impl ToolOutput {
    /// A success with one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![ContentBlock::text(text)], ..Self::default() }
    }

    /// A failure with one text.
    pub fn failed(name: &str, code: &str, text: impl Into<String>) -> Self {
        let error = ToolErrorInfo { name: name.to_owned(), code: code.to_owned() };
        Self { error: Some(error), ..Self::text(text) }
    }
}

/// A tool. Its body is foreign code: a panic is a failed result (contract P18).
pub trait Tool: Send + Sync {
    /// What the model is told about it.
    fn definition(&self) -> ToolDefinition;

    /// Whether it may run beside other calls.
    fn mode(&self) -> ToolMode {
        ToolMode::Exclusive
    }

    /// Runs a call to its end.
    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput>;
}

/// A tool of that name is registered already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a tool named {0:?} is registered already")]
pub struct DuplicateTool(pub String);

/// The tools of a deployment, by name.
pub struct ToolRegistry {
    tools: Mutex<BTreeMap<String, Arc<dyn Tool>>>,
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tools.lock().keys()).finish()
    }
}

impl Default for ToolRegistry {
    fn default() -> Self {
        Self { tools: Mutex::new(LockClass::Leaf, BTreeMap::new()) }
    }
}

impl ToolRegistry {
    /// Registers `tool` until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`DuplicateTool`] if its name is taken.
    pub fn register(self: &Arc<Self>, tool: Arc<dyn Tool>) -> Result<ToolGuard, DuplicateTool> {
        let name = tool.definition().name;
        let mut tools = self.tools.lock();
        if tools.contains_key(&name) {
            return Err(DuplicateTool(name));
        }
        touch(ObjectKind::Name, key_of(&name), Access::Write);
        tools.insert(name.clone(), tool);
        Ok(ToolGuard { registry: Arc::downgrade(self), name })
    }

    /// The tools registered now, by name.
    pub fn snapshot(&self) -> BTreeMap<String, Arc<dyn Tool>> {
        self.tools.lock().clone()
    }
}

/// Unregisters its tool when dropped.
#[must_use = "dropping the guard unregisters the tool"]
#[derive(Debug)]
pub struct ToolGuard {
    registry: Weak<ToolRegistry>,
    name: String,
}

impl Drop for ToolGuard {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        touch(ObjectKind::Name, key_of(&self.name), Access::Write);
        // The tool is foreign: it is dropped after the lock.
        let removed = registry.tools.lock().remove(&self.name);
        drop(removed);
    }
}

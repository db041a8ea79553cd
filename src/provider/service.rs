//! [`SubagentService`]: registration, checks in their order, dispatch, lifecycle (fact-sheet 5).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use serde_json::Value;

use super::{
    Capabilities, ContinuableRequest, ResumeRequest, Run, RunInfo, StartFuture, StartRequest,
    SubagentError, SubagentProvider, SubagentResult,
};
use crate::agent::schema;
use crate::ids::RunId;
use crate::message::ContentBlock;
use crate::runtime::{Runtime, contain, contain_call};
use crate::sync::{Access, LockClass, Mutex, ObjectKind, key_of, touch};
use crate::vocabulary::StopReason;

/// The largest integer that JSON keeps exact.
pub(super) const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// Told of providers and runs. Foreign code: called with no lock held, a panic is contained,
/// except that one in [`provider_added`](Self::provider_added) undoes the registration.
pub trait SubagentListener: Send + Sync {
    /// A provider was registered.
    fn provider_added(&self, name: &str) {
        let _unused = name;
    }

    /// A provider was removed. Running runs are not affected.
    fn provider_removed(&self, name: &str) {
        let _unused = name;
    }

    /// A published run started.
    fn run_started(&self, run: &RunInfo) {
        let _unused = run;
    }

    /// A run's result settled. `output` is the result's; absent only when the result failed.
    fn run_ended(&self, run: &RunInfo, stop: &StopReason, output: Option<&[ContentBlock]>) {
        let _unused = (run, stop, output);
    }
}

#[derive(Default)]
struct State {
    next: u64,
    providers: BTreeMap<String, (u64, Arc<dyn SubagentProvider>)>,
    listeners: BTreeMap<u64, Arc<dyn SubagentListener>>,
}

/// The providers of one process.
pub struct SubagentService {
    me: Weak<Self>,
    runtime: Arc<dyn Runtime>,
    state: Mutex<State>,
    runs: AtomicU64,
}

impl fmt::Debug for SubagentService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubagentService")
    }
}

/// Undoes a registration when dropped.
#[must_use = "dropping it unregisters"]
pub struct Registration {
    service: Weak<SubagentService>,
    key: u64,
    provider: Option<String>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(service) = self.service.upgrade() {
            service.unregister(self.key, self.provider.as_deref());
        }
    }
}

fn touch_name(name: &str, access: Access) {
    touch(ObjectKind::Name, key_of(name), access);
}

impl SubagentService {
    /// A service without providers.
    pub fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            runtime,
            state: Mutex::new(LockClass::Leaf, State::default()),
            runs: AtomicU64::new(0),
        })
    }

    /// Registers a provider under its name, until the registration is dropped. Removal blocks new
    /// starts and revokes nothing.
    ///
    /// # Errors
    ///
    /// `DUPLICATE_PROVIDER`; an empty name; a listener that panics on the news undoes it.
    pub fn register(
        &self,
        provider: Arc<dyn SubagentProvider>,
    ) -> Result<Registration, SubagentError> {
        let name = provider.name().to_owned();
        if name.is_empty() {
            return Err(SubagentError::EmptyName);
        }
        let key = {
            let mut state = self.state.lock();
            touch_name(&name, Access::Write);
            if state.providers.contains_key(&name) {
                return Err(SubagentError::DuplicateProvider(name));
            }
            let key = state.next;
            state.next += 1;
            state.providers.insert(name.clone(), (key, provider));
            key
        };
        let registration =
            Registration { service: self.me.clone(), key, provider: Some(name.clone()) };
        for listener in self.listeners() {
            let told = contain_call(&self.runtime, "provider listener", || {
                listener.provider_added(&name);
            });
            if let Err(cause) = told {
                // Dropping the registration tells the others that it is gone again.
                drop(registration);
                return Err(SubagentError::RegistrationVetoed { provider: name, cause });
            }
        }
        Ok(registration)
    }

    /// Adds a listener, until the registration is dropped.
    pub fn listen(&self, listener: Arc<dyn SubagentListener>) -> Registration {
        let mut state = self.state.lock();
        let key = state.next;
        state.next += 1;
        state.listeners.insert(key, listener);
        Registration { service: self.me.clone(), key, provider: None }
    }

    fn unregister(&self, key: u64, provider: Option<&str>) {
        let mut state = self.state.lock();
        let listener = state.listeners.remove(&key);
        let removed = provider.and_then(|name| {
            touch_name(name, Access::Write);
            let ours = state.providers.get(name).is_some_and(|(held, _)| *held == key);
            ours.then(|| state.providers.remove(name)).flatten()
        });
        drop(state);
        drop(listener);
        if let (Some(_), Some(name)) = (removed, provider) {
            self.tell(|listener| listener.provider_removed(name));
        }
    }

    fn listeners(&self) -> Vec<Arc<dyn SubagentListener>> {
        self.state.lock().listeners.values().cloned().collect()
    }

    /// Tells every listener; one that panics keeps no other from hearing.
    pub(super) fn tell(&self, news: impl Fn(&dyn SubagentListener)) {
        for listener in self.listeners() {
            let told = contain_call(&self.runtime, "subagent listener", || news(&*listener));
            // The panic is recorded as a fact and fails nothing.
            drop(told);
        }
    }

    /// The provider of that name.
    pub fn provider(&self, name: &str) -> Option<Arc<dyn SubagentProvider>> {
        touch_name(name, Access::Read);
        self.state.lock().providers.get(name).map(|(_, provider)| Arc::clone(provider))
    }

    /// The names of all providers, in order.
    pub fn providers(&self) -> Vec<String> {
        self.state.lock().providers.keys().cloned().collect()
    }

    fn named(&self, name: &str) -> Result<Arc<dyn SubagentProvider>, SubagentError> {
        self.provider(name).ok_or_else(|| SubagentError::NoProvider(name.to_owned()))
    }

    /// Starts a one-shot child. The provider is not called if a check fails.
    ///
    /// # Errors
    ///
    /// In this order: `NO_PROVIDER`; `UNSUPPORTED_CAPABILITY`; an invalid depth cap or schema; then
    /// whatever the provider says.
    pub async fn start(&self, name: &str, request: StartRequest) -> Result<Run, SubagentError> {
        let provider = self.named(name)?;
        check(&*provider, &request)?;
        let parent = request.parent.clone();
        let start = self.call(|| provider.start(request))?;
        Ok(Run::watch(self, name, &parent, self.started(start).await?))
    }

    /// Starts a child that can be continued, under the identity the control service minted.
    ///
    /// # Errors
    ///
    /// As [`SubagentService::start`]; a provider without continuation is `UNSUPPORTED_CAPABILITY`.
    pub async fn start_continuable(
        &self,
        name: &str,
        request: ContinuableRequest,
    ) -> Result<Run, SubagentError> {
        let provider = self.named(name)?;
        check(&*provider, &request.request)?;
        let continuable = provider.resume().ok_or_else(|| no_continuation(name))?;
        let parent = request.request.parent.clone();
        let start = self.call(|| continuable.start(request))?;
        Ok(Run::watch(self, name, &parent, self.started(start).await?))
    }

    /// Resumes a persisted child. Lookup and authorisation were the caller's job.
    ///
    /// # Errors
    ///
    /// `NO_PROVIDER`, `UNSUPPORTED_CAPABILITY`, then whatever the provider says.
    pub async fn resume(&self, name: &str, request: ResumeRequest) -> Result<Run, SubagentError> {
        let provider = self.named(name)?;
        let continuable = provider.resume().ok_or_else(|| no_continuation(name))?;
        let parent = request.parent.clone();
        let start = self.call(|| continuable.resume(request))?;
        Ok(Run::watch(self, name, &parent, self.started(start).await?))
    }

    fn call(&self, call: impl FnOnce() -> StartFuture) -> Result<StartFuture, SubagentError> {
        Ok(contain_call(&self.runtime, "subagent provider", call)?)
    }

    async fn started(
        &self,
        start: StartFuture,
    ) -> Result<Arc<dyn super::SubagentRun>, SubagentError> {
        contain(&self.runtime, "subagent provider", start).await?
    }

    pub(super) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    pub(super) fn next_run(&self) -> RunId {
        RunId(self.runs.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }
}

fn no_continuation(provider: &str) -> SubagentError {
    unsupported(provider, "continuation")
}

fn unsupported(provider: &str, capability: &'static str) -> SubagentError {
    SubagentError::UnsupportedCapability { provider: provider.to_owned(), capability }
}

/// The checks before dispatch, in the fact-sheet's order.
fn check(provider: &dyn SubagentProvider, request: &StartRequest) -> Result<(), SubagentError> {
    let Capabilities { output_schema, depth_limit, tool_filter, persona } = provider.capabilities();
    let needs = [
        ("outputSchema", request.output_schema.is_some(), output_schema),
        ("maxDepth", request.max_depth.is_some(), depth_limit),
        ("toolFilter", request.tool_filter.is_some(), tool_filter),
        ("persona", request.persona.is_some(), persona),
    ];
    for (capability, wanted, has) in needs {
        if wanted && !has {
            return Err(unsupported(provider.name(), capability));
        }
    }
    if let Some(depth) = request.max_depth.filter(|depth| *depth > SAFE_INTEGER_MAX) {
        return Err(SubagentError::DepthRange(depth));
    }
    request.output_schema.as_ref().map_or(Ok(()), check_schema)
}

fn check_schema(schema: &Value) -> Result<(), SubagentError> {
    let invalid = |error: schema::SchemaError| SubagentError::InvalidSchema(error.to_string());
    schema::Schema::arguments(schema).map(drop).map_err(invalid)
}

/// The stop reason that a settled result reports.
pub(super) fn stop_of(outcome: &Result<SubagentResult, SubagentError>) -> StopReason {
    outcome.as_ref().map_or(StopReason::Error, |result| result.stop.clone())
}

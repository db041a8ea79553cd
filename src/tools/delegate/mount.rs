//! A delegation tool that is there while its provider is.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{ConfigError, DelegateConfig, DelegateServices, DelegateTool, PROVIDER_MANAGED};
use crate::agent::tools::{RegisterError, ToolGuard, ToolRegistry};
use crate::provider::{Registration, SubagentListener, SubagentProvider};
use crate::sync::{Access, LockClass, Mutex, ObjectKind, key_of, touch};

/// Why a tool is not registered although its provider is there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The provider cannot keep a depth cap.
    #[error(
        "the {tool} tool caps the depth, but subagent provider {provider:?} has no depth limit; \
         set maxDepth to {PROVIDER_MANAGED:?}"
    )]
    DepthLimit {
        /// The tool.
        tool: String,
        /// The provider.
        provider: String,
    },
    /// The registry refused the tool.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// A mounted instance: it waits for its provider, and registers its tool while the provider is
/// registered. Dropping it unmounts it for good.
///
/// An instance that was waiting and cannot be mounted when its provider appears does not take the
/// provider away from the others, as the reference did: it says why in
/// [`DelegateMount::last_error`] and goes on waiting.
#[must_use = "dropping it unmounts the tool"]
pub struct DelegateMount {
    instance: Arc<Instance>,
    _listening: Registration,
}

impl fmt::Debug for DelegateMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelegateMount")
            .field("tool", &self.instance.config.tool_name)
            .field("mounted", &self.is_mounted())
            .finish_non_exhaustive()
    }
}

impl DelegateMount {
    /// Mounts the tool, now or once its provider appears.
    ///
    /// # Errors
    ///
    /// An invalid configuration; with the provider there, everything that keeps the tool from
    /// being registered. Nothing is left behind.
    pub fn new(
        config: DelegateConfig,
        services: DelegateServices,
        registry: Arc<ToolRegistry>,
    ) -> Result<Self, MountError> {
        config.check()?;
        let state = Mutex::new(LockClass::Leaf, State::default());
        let instance = Arc::new(Instance { config, services, registry, state });
        let listener = Arc::new(Listener(Arc::downgrade(&instance)));
        let listening = instance.services.subagents.listen(listener);
        instance.follow();
        let mount = Self { instance, _listening: listening };
        match mount.last_error() {
            Some(error) => Err(error),
            None => Ok(mount),
        }
    }

    /// Whether the tool is registered now.
    pub fn is_mounted(&self) -> bool {
        self.instance.state.lock().mounted.is_some()
    }

    /// Why the tool is not registered although its provider is.
    pub fn last_error(&self) -> Option<MountError> {
        self.instance.state.lock().error.clone()
    }
}

impl Drop for DelegateMount {
    fn drop(&mut self) {
        self.instance.state.lock().unmounted = true;
        self.instance.follow();
    }
}

/// Follows the provider; only its own.
struct Listener(Weak<Instance>);

impl Listener {
    fn heard(&self, name: &str) {
        if let Some(instance) = self.0.upgrade()
            && instance.config.provider == name
        {
            instance.follow();
        }
    }
}

impl SubagentListener for Listener {
    fn provider_added(&self, name: &str) {
        self.heard(name);
    }

    fn provider_removed(&self, name: &str) {
        self.heard(name);
    }
}

struct Mounted {
    provider: Arc<dyn SubagentProvider>,
    _tool: ToolGuard,
}

#[derive(Default)]
struct State {
    unmounted: bool,
    mounted: Option<Mounted>,
    error: Option<MountError>,
    /// Somebody is following; `again` tells him that there is more to follow.
    following: bool,
    again: bool,
}

struct Instance {
    config: DelegateConfig,
    services: DelegateServices,
    registry: Arc<ToolRegistry>,
    state: Mutex<State>,
}

impl Instance {
    /// Brings the registration in line with the provider's presence. Providers may come and go on
    /// many threads: one caller follows at a time, and looks again for those who found it busy, so
    /// the last look is never older than the last news.
    fn follow(&self) {
        {
            let mut state = self.state.lock();
            if state.following {
                state.again = true;
                return;
            }
            state.following = true;
        }
        while self.look() {}
    }

    /// One look; true if there is another to take.
    fn look(&self) -> bool {
        touch(ObjectKind::Name, key_of(&self.config.tool_name), Access::Write);
        let (unmounted, mounted) = {
            let mut state = self.state.lock();
            state.again = false;
            (state.unmounted, state.mounted.take())
        };
        let present = self.services.subagents.provider(&self.config.provider);
        let kept = match (present.filter(|_| !unmounted), mounted) {
            (Some(present), Some(mounted)) if Arc::ptr_eq(&present, &mounted.provider) => {
                Ok(Some(mounted))
            }
            (Some(present), replaced) => {
                // The name must be free before the other wording takes it.
                drop(replaced);
                self.mount(present).map(Some)
            }
            (None, gone) => {
                drop(gone);
                Ok(None)
            }
        };
        let mut state = self.state.lock();
        state.error = kept.as_ref().err().cloned();
        state.mounted = kept.ok().flatten();
        state.following = state.again;
        state.again
    }

    fn mount(&self, provider: Arc<dyn SubagentProvider>) -> Result<Mounted, MountError> {
        let mounted = DelegateTool::new(self.config.clone(), self.services.clone(), &*provider)
            .and_then(|tool| Ok(self.registry.register(Arc::new(tool))?));
        match mounted {
            Ok(tool) => Ok(Mounted { provider, _tool: tool }),
            Err(error) => {
                let tool = &self.config.tool_name;
                tracing::warn!(target: "continuable", tool, %error, "a tool is not mounted");
                Err(error)
            }
        }
    }
}

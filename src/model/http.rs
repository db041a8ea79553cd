//! The model client over HTTP: OpenAI-compatible chat completions, streamed.
//!
//! Every request has a connection of its own, over any byte stream ([`Connect`]); there is no pool
//! and no timer. The connection's task belongs to its request: when the response ended or was given
//! up, it is told to stop, and [`ModelClient::quiesced`] waits for it. Reading order: [`request`]
//! (pure: what is sent), [`events`] (pure: server-sent events of any split), [`response`] (pure: from
//! events to chunks), then this file.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::{ModelChunk, ModelClient, ModelError, ModelRequest, ModelStream};
use crate::channel::Latch;
use crate::ids::OwnerId;
use crate::runtime::{BoxFuture, Runtime, spawn};
use crate::sync::{LockClass, Mutex};
use crate::wire::Connect;

pub mod events;
pub mod request;
pub mod response;

use events::EventParser;
use response::Assembler;

/// Tell a server that must know who asks, such as a scripted one: the session's id.
pub const SESSION_HEADER: &str = "x-continuable-session";
/// The asking agent instance.
pub const AGENT_HEADER: &str = "x-continuable-agent";
/// Its open turn.
pub const TURN_HEADER: &str = "x-continuable-turn";
/// Its open step.
pub const STEP_HEADER: &str = "x-continuable-step";

/// How much of a failure's body is read, in bytes.
const FAILURE_BODY_MAX: usize = 64 * 1024;

/// Where and how the model is asked.
#[derive(Clone)]
pub struct HttpModelConfig {
    /// The `Host` header.
    pub host: String,
    /// The path of chat completions.
    pub path: String,
    /// A bearer token; never shown.
    pub token: Option<String>,
    /// Whether requests say which session, agent, turn and step they are of.
    pub identify: bool,
}

impl HttpModelConfig {
    /// The usual path at `host`, without a token.
    pub fn new(host: impl Into<String>) -> Self {
        let path = "/v1/chat/completions".to_owned();
        Self { host: host.into(), path, token: None, identify: false }
    }
}

impl fmt::Debug for HttpModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpModelConfig")
            .field("host", &self.host)
            .field("path", &self.path)
            .field("identify", &self.identify)
            .finish_non_exhaustive()
    }
}

/// The connections under way: of each agent the latches that their tasks set at their end.
type Connections = Arc<Mutex<BTreeMap<OwnerId, Vec<Latch<()>>>>>;

/// A model service behind a connector.
#[derive(Clone)]
pub struct HttpModel {
    runtime: Arc<dyn Runtime>,
    connector: Arc<dyn Connect>,
    config: Arc<HttpModelConfig>,
    connections: Connections,
}

impl fmt::Debug for HttpModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpModel").field("config", &self.config).finish_non_exhaustive()
    }
}

impl HttpModel {
    /// A client of the service that `connector` reaches.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        connector: Arc<dyn Connect>,
        config: HttpModelConfig,
    ) -> Self {
        let connections = Arc::new(Mutex::new(LockClass::Leaf, BTreeMap::new()));
        Self { runtime, connector, config: Arc::new(config), connections }
    }

    /// How many connections are under way.
    pub fn connections(&self) -> usize {
        self.connections.lock().values().map(Vec::len).sum()
    }

    async fn open(self, asked: ModelRequest) -> Result<Box<dyn ModelStream>, ModelError> {
        let place = format!("{}{}", self.config.host, self.config.path);
        let failed =
            |what: &str, why: &dyn fmt::Display| ModelError::new(format!("{place}: {what}: {why}"));
        let request = self.request(&asked)?;
        let stream = self.connector.connect().await.map_err(|why| failed("no connection", &why))?;
        let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|why| failed("the handshake failed", &why))?;
        let guard = self.own(asked.agent, connection);
        let response = sender
            .send_request(request)
            .await
            .map_err(|why| failed("the request was not answered", &why))?;
        if response.status() != StatusCode::OK {
            return Err(refused(&place, response).await);
        }
        Ok(Box::new(HttpStream {
            place,
            body: response.into_body(),
            parser: EventParser::default(),
            assembler: Assembler::new(asked.turn, asked.step),
            chunks: VecDeque::new(),
            ended: false,
            _guard: guard,
        }))
    }

    fn request(&self, asked: &ModelRequest) -> Result<Request<Full<Bytes>>, ModelError> {
        let body = Full::new(Bytes::from(request::body(asked).to_string()));
        let mut builder = Request::post(&self.config.path)
            .header(HOST, &self.config.host)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream");
        if let Some(token) = &self.config.token {
            builder = builder.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if self.config.identify {
            builder = builder
                .header(SESSION_HEADER, asked.session.as_str())
                .header(AGENT_HEADER, asked.agent.0)
                .header(TURN_HEADER, asked.turn)
                .header(STEP_HEADER, asked.step);
        }
        // The parts are never shown: one of them is the token.
        builder.body(body).map_err(|_| {
            let path = &self.config.path;
            ModelError::new(format!("{path}: a path, host, token or session is no HTTP header"))
        })
    }

    /// Drives the connection in a task of the runtime's, until the response is given up.
    fn own<C>(&self, agent: OwnerId, connection: C) -> ConnectionGuard
    where
        C: Future<Output = hyper::Result<()>> + Send + 'static,
    {
        let (stop, over) = (Latch::new(), Latch::new());
        self.connections.lock().entry(agent).or_default().push(over.clone());
        let (stopped, connections) = (stop.clone(), Arc::clone(&self.connections));
        let drive = async move {
            {
                let connection = std::pin::pin!(connection);
                tokio::select! {
                    biased;
                    () = stopped.wait() => {}
                    // Its failure reaches the request as a failure of the body.
                    _end = connection => {}
                }
            }
            over.set(());
            let mut connections = connections.lock();
            if let Some(mine) = connections.get_mut(&agent) {
                mine.retain(|latch| latch.get().is_none());
                if mine.is_empty() {
                    connections.remove(&agent);
                }
            }
        };
        spawn(&self.runtime, format!("model connection of {agent}"), drive).detach();
        ConnectionGuard(stop)
    }
}

impl ModelClient for HttpModel {
    fn start(
        &self,
        request: ModelRequest,
    ) -> BoxFuture<'static, Result<Box<dyn ModelStream>, ModelError>> {
        let (client, signal) = (self.clone(), request.signal.clone());
        Box::pin(async move {
            tokio::select! {
                biased;
                _cause = signal.cancelled() => Err(ModelError::new("the request was cancelled")),
                opened = client.open(request) => opened,
            }
        })
    }

    fn quiesced(&self, agent: OwnerId) -> BoxFuture<'static, ()> {
        let under_way = self.connections.lock().get(&agent).cloned().unwrap_or_default();
        Box::pin(async move {
            for over in under_way {
                over.wait().await;
            }
        })
    }
}

/// Stops the connection's task when the request is over, however it ends.
struct ConnectionGuard(Latch<()>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.set(());
    }
}

/// What a refused request says: the status, and the service's own words and code.
async fn refused(place: &str, response: Response<Incoming>) -> ModelError {
    let status = response.status();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if text.len() > FAILURE_BODY_MAX {
            text.truncate(FAILURE_BODY_MAX);
            break;
        }
    }
    let said: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
    let message = said["error"]["message"].as_str().unwrap_or("no reason given");
    let limited = status == StatusCode::TOO_MANY_REQUESTS;
    let kind = if limited { "rate-limit" } else { "http" };
    let code = said["error"]["code"].as_str().map(str::to_owned);
    let code = code.or_else(|| limited.then(|| "rate_limit".to_owned()));
    ModelError {
        message: format!("{place}: status {}: {message}", status.as_u16()),
        failure: Some(json!({ "kind": kind, "status": status.as_u16(), "message": message })),
        service_code: code,
    }
}

/// A response as it arrives.
struct HttpStream {
    place: String,
    body: Incoming,
    parser: EventParser,
    assembler: Assembler,
    chunks: VecDeque<ModelChunk>,
    ended: bool,
    _guard: ConnectionGuard,
}

impl HttpStream {
    async fn read(&mut self) -> Result<(), ModelError> {
        let failed = |what: &dyn fmt::Display| {
            ModelError::new(format!("{}: the response broke off: {what}", self.place))
        };
        let frame = match self.body.frame().await {
            Some(Ok(frame)) => frame,
            Some(Err(why)) => return Err(failed(&why)),
            None => {
                self.ended = true;
                self.chunks.extend(self.assembler.end().map_err(|why| failed(&why))?);
                return Ok(());
            }
        };
        let data = frame.data_ref().map_or(&[][..], |data| data);
        for event in self.parser.push(data).map_err(|why| failed(&why))? {
            let chunks = self.assembler.event(&event).map_err(|why| match why.service() {
                Some(error) => error.clone(),
                None => failed(&why),
            })?;
            self.chunks.extend(chunks);
        }
        Ok(())
    }
}

impl ModelStream for HttpStream {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelChunk, ModelError>>> {
        Box::pin(async move {
            loop {
                if let Some(chunk) = self.chunks.pop_front() {
                    return Some(Ok(chunk));
                }
                if self.ended {
                    return None;
                }
                if let Err(error) = self.read().await {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        })
    }
}

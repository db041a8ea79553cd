//! Byte streams, and how they are opened: what the model client and the human adapter stand on.
//!
//! Production brings TCP ([`TcpConnect`]); an embedder with TLS wraps its own stream; the simulator
//! brings its simulated network.

use std::fmt;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::runtime::BoxFuture;

mod tcp;

pub use tcp::TcpConnect;

/// A connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Opens connections to one peer.
pub trait Connect: Send + Sync + fmt::Debug {
    /// Opens one. Dropping the future gives it up.
    fn connect(&self) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;
}

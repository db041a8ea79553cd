//! TCP of the operating system.

use std::io;

use tokio::net::TcpStream;

use super::{ByteStream, Connect};
use crate::runtime::BoxFuture;

/// Opens TCP connections to one address, such as `127.0.0.1:8080`. Needs a tokio runtime with I/O.
#[derive(Debug, Clone)]
pub struct TcpConnect {
    address: String,
}

impl TcpConnect {
    /// Connects to `address`, a host and a port.
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into() }
    }
}

impl Connect for TcpConnect {
    fn connect(&self) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let address = self.address.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

//! A byte stream as lines, both ways at once.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};

use crate::wire::ByteStream;

/// The longest line, in bytes, its end not counted.
pub const LINE_BYTES_MAX: usize = 8 << 20;

/// How much may wait to be written before nothing more is taken on.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// Why a connection ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The stream failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side sent a line without an end.
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The stream ended inside a line.
    #[error("the connection ended inside a line, after {bytes} bytes of it")]
    Torn {
        /// How much of the line had arrived.
        bytes: usize,
    },
}

/// Reads and writes lines. Neither side waits for the other: what is queued is written while the
/// next line is read, so two peers that both talk much never stand before each other's full buffers.
pub(super) struct LineStream<S> {
    input: BufReader<ReadHalf<S>>,
    output: WriteHalf<S>,
    line: Vec<u8>,
    pending: Vec<u8>,
    written: usize,
    flushed: bool,
}

impl<S: ByteStream> LineStream<S> {
    pub(super) fn new(stream: S) -> Self {
        let (input, output) = tokio::io::split(stream);
        let (line, pending) = (Vec::new(), Vec::new());
        Self { input: BufReader::new(input), output, line, pending, written: 0, flushed: true }
    }

    /// Whether more may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() - self.written < PENDING_BYTES_MAX
    }

    /// Queues `line`, which has no line end; [`LineStream::next`] and [`LineStream::finish`] write.
    pub(super) fn queue(&mut self, line: &str) {
        self.pending.extend_from_slice(line.as_bytes());
        self.pending.push(b'\n');
        self.flushed = false;
    }

    /// The next line without its end; `None` at the end of the stream. Writes what is queued while
    /// it waits, and returns early for nothing: dropping the future loses no byte either way.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            let Self { input, output, line, pending, written, flushed } = self;
            tokio::select! {
                biased;
                wrote = write(output, pending, written, flushed), if !*flushed => wrote?,
                chunk = input.fill_buf() => {
                    let chunk = chunk?;
                    if chunk.is_empty() {
                        let bytes = line.len();
                        return if bytes == 0 { Ok(None) } else { Err(LineError::Torn { bytes }) };
                    }
                    let end = chunk.iter().position(|byte| *byte == b'\n');
                    line.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
                    let taken = end.map_or(chunk.len(), |end| end + 1);
                    input.consume(taken);
                    if line.len() > LINE_BYTES_MAX {
                        return Err(LineError::TooLong);
                    }
                    if end.is_some() {
                        return Ok(Some(std::mem::take(line)));
                    }
                }
            }
        }
    }

    /// Writes what is queued and closes this side.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        while !self.flushed {
            write(&mut self.output, &mut self.pending, &mut self.written, &mut self.flushed)
                .await?;
        }
        self.output.shutdown().await
    }
}

/// Writes some of `pending`, or flushes once all is written. Dropping the future loses nothing.
async fn write<S: ByteStream>(
    output: &mut WriteHalf<S>,
    pending: &mut Vec<u8>,
    written: &mut usize,
    flushed: &mut bool,
) -> io::Result<()> {
    if *written < pending.len() {
        let count = output.write(&pending[*written..]).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        *written += count;
        if *written == pending.len() {
            pending.clear();
            *written = 0;
        }
        return Ok(());
    }
    output.flush().await?;
    *flushed = true;
    Ok(())
}

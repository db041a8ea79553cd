//! The surface: which events derive the messages that a model sees (fact-sheet 2.6).

use std::collections::BTreeSet;

use super::event::{Event, EventBody, SurfaceOp};
use super::log::AppendError;
use crate::message::ContentBlock;

/// The ordered sequence numbers of the current surface nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surface {
    nodes: Vec<u64>,
}

impl Surface {
    /// The nodes in order.
    pub fn nodes(&self) -> &[u64] {
        &self.nodes
    }

    /// Takes an already accepted event in. An operation that names no current range is left out:
    /// only stored logs can hold one, and a load must not fail over it.
    pub fn absorb(&mut self, event: &Event) {
        match event.surface {
            None => {}
            Some(SurfaceOp::Append) => self.nodes.push(event.seq),
            Some(SurfaceOp::Replace { start, end }) => {
                if let Some(range) = self.range(start, end) {
                    self.nodes.splice(range, [event.seq]);
                }
            }
        }
    }

    /// The positions of the nodes from `start` to `end`, if both are nodes in that order.
    pub fn range(&self, start: u64, end: u64) -> Option<std::ops::Range<usize>> {
        let first = self.nodes.iter().position(|&node| node == start)?;
        let last = first + self.nodes[first..].iter().position(|&node| node == end)?;
        Some(first..last + 1)
    }
}

/// Checks the surface part of an event that would be the next of a log; `event_at` finds the
/// earlier ones.
pub(super) fn check<'a>(
    surface: &Surface,
    event: &Event,
    event_at: impl Fn(u64) -> Option<&'a Event>,
) -> Result<(), AppendError> {
    let refuse = |what| Err(AppendError::Surface { kind: event.kind().to_owned(), what });
    let Some(op) = event.surface else {
        return match (event.body.is_surface(), &event.sources) {
            (true, _) => refuse("a message needs a surface operation"),
            (false, Some(_)) => refuse("only messages may name their sources"),
            (false, None) => Ok(()),
        };
    };
    if !event.body.is_surface() {
        return refuse("only messages may change the surface");
    }
    if let Some(sources) = &event.sources {
        let may_be_empty = matches!(event.body, EventBody::AssistantMessage { .. });
        if sources.is_empty() && !may_be_empty {
            return refuse("its list of sources is empty");
        }
        if sources.iter().any(|&source| source >= event.seq) {
            return refuse("a source is not earlier than itself");
        }
        let rising = sources.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising && sources.iter().collect::<BTreeSet<_>>().len() != sources.len() {
            return refuse("a source is named twice");
        }
    }
    let SurfaceOp::Replace { start, end } = op else { return Ok(()) };
    let Some(range) = surface.range(start, end) else {
        return refuse("it replaces a range that is not on the surface");
    };
    let shadowed = &surface.nodes[range];
    let sources: BTreeSet<u64> = event.sources.iter().flatten().copied().collect();
    if shadowed.iter().any(|node| !sources.contains(node)) {
        return refuse("its sources do not cover every node it shadows");
    }
    if let EventBody::ToolResult { .. } = event.body {
        let same = match shadowed {
            [node] => event_at(*node).is_some_and(|old| same_but_content(&old.body, &event.body)),
            _ => false,
        };
        if !same {
            return refuse("a tool result may replace one tool result, and only its content");
        }
    }
    Ok(())
}

/// Whether two tool results differ in nothing but what their block says.
fn same_but_content(old: &EventBody, new: &EventBody) -> bool {
    let blank = |body: &EventBody| {
        let mut body = body.clone();
        if let EventBody::ToolResult { message, .. } = &mut body {
            let mut copy = (**message).clone();
            for block in &mut copy.content {
                if let ContentBlock::ToolResult { content, .. } = block {
                    content.clear();
                }
            }
            *message = copy.into();
        }
        body
    };
    matches!(old, EventBody::ToolResult { .. }) && blank(old) == blank(new)
}

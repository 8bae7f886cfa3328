//! Changes to a stream of bytes at given places.

use std::collections::BTreeMap;

/// What happens to a stream at some byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Edit {
    /// Nothing from here on passes; the reader sees the end of the stream.
    End,
    /// These bits of the byte are turned.
    Flip(u8),
    /// So many bytes are left out.
    Omit(u64),
    /// So many bytes pass twice.
    Repeat(u64),
}

/// Applies edits to a stream that comes in parts.
#[derive(Debug, Default)]
pub(super) struct Editor {
    /// Edits to come, by the place in the stream as it was sent.
    due: BTreeMap<u64, Edit>,
    position: u64,
    /// The edit under way, and how many bytes it still concerns.
    active: Option<(Edit, u64)>,
    /// What will be repeated.
    copy: Vec<u8>,
    has_ended: bool,
}

impl Editor {
    pub(super) fn add(&mut self, offset: u64, edit: Edit) {
        self.due.insert(offset, edit);
    }

    /// Whether the stream has been ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Appends what becomes of the next bytes of the stream.
    pub(super) fn apply(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.has_ended {
            if let Some(edit) = self.due.remove(&self.position) {
                self.finish(out);
                self.begin(edit);
                continue;
            }
            let next = self.due.range(self.position..).next().map(|(offset, _)| offset - self.position);
            let left = self.active.map(|(_, left)| left);
            let len = next
                .into_iter()
                .chain(left)
                .fold(rest.len(), |len, bound| usize::try_from(bound).map_or(len, |bound| len.min(bound)));
            let (part, after) = rest.split_at(len);
            self.pass(part, out);
            rest = after;
        }
    }

    fn begin(&mut self, edit: Edit) {
        self.active = match edit {
            Edit::End => {
                self.has_ended = true;
                None
            }
            Edit::Flip(_) => Some((edit, 1)),
            Edit::Omit(len) | Edit::Repeat(len) => (len > 0).then_some((edit, len)),
        };
    }

    fn pass(&mut self, part: &[u8], out: &mut Vec<u8>) {
        self.position += part.len() as u64;
        let Some((edit, left)) = &mut self.active else { return out.extend_from_slice(part) };
        *left -= part.len() as u64;
        match edit {
            Edit::End | Edit::Omit(_) => {}
            Edit::Flip(bits) => out.extend(part.iter().map(|byte| byte ^ *bits)),
            Edit::Repeat(_) => {
                out.extend_from_slice(part);
                self.copy.extend_from_slice(part);
            }
        }
        if *left == 0 {
            self.finish(out);
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.active = None;
        out.append(&mut self.copy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(edits: &[(u64, Edit)], step: usize) -> String {
        let mut editor = Editor::default();
        edits.iter().for_each(|(offset, edit)| editor.add(*offset, *edit));
        let mut out = Vec::new();
        b"0123456789".chunks(step).for_each(|part| editor.apply(part, &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn edits_strike_where_they_are_told_however_the_stream_is_cut() {
        for step in 1..=10 {
            assert_eq!(edited(&[], step), "0123456789");
            assert_eq!(edited(&[(3, Edit::Flip(1))], step), "0122456789");
            assert_eq!(edited(&[(3, Edit::Omit(4))], step), "012789");
            assert_eq!(edited(&[(3, Edit::Repeat(4))], step), "01234563456789");
            assert_eq!(edited(&[(3, Edit::End)], step), "012");
            assert_eq!(
                edited(&[(0, Edit::Repeat(1)), (1, Edit::Omit(1)), (9, Edit::End)], step),
                "002345678"
            );
            assert_eq!(edited(&[(2, Edit::Repeat(5)), (4, Edit::Omit(2))], step), "0123236789");
        }
    }
}

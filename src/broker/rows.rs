//! Splits a JSON list of objects into its rows while it arrives.
//!
//! A vhost with a thousand pipelines has 45,000 bindings; with this neither
//! the body nor a tree of it is ever in memory as a whole, and no thread is
//! blocked.

/// The longest row that is accepted, in bytes: a queue with large arguments
/// has a few thousand.
const MAX_ROW: usize = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before `[`.
    #[default]
    Start,
    /// Where a row may begin.
    Row,
    /// Inside a row.
    Inside,
    /// After a row: a comma or the end.
    After,
    /// After `]`.
    End,
}

/// Finds rows; the caller decodes them.
#[derive(Debug, Default)]
pub(crate) struct RowSplitter {
    state: State,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The beginning of a row whose end has not arrived yet.
    partial: Vec<u8>,
}

impl RowSplitter {
    /// Takes the next piece and hands every row that it completes to `each`.
    ///
    /// # Errors
    /// `()` when this is no list of objects, a row is too long, or `each` says so.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), ()>,
    ) -> Result<(), ()> {
        let mut start = 0;
        for (index, byte) in chunk.iter().copied().enumerate() {
            if self.state == State::Inside {
                if self.ends_row(byte) {
                    let row = &chunk[start..=index];
                    if self.partial.is_empty() {
                        each(row)?;
                    } else {
                        self.partial.extend_from_slice(row);
                        each(&self.partial)?;
                        self.partial.clear();
                    }
                    self.state = State::After;
                }
            } else if self.between(byte)? {
                start = index;
            }
        }
        if self.state == State::Inside {
            self.partial.extend_from_slice(&chunk[start..]);
            if self.partial.len() > MAX_ROW {
                return Err(());
            }
        }
        Ok(())
    }

    /// Whether the list was seen to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.state == State::End
    }

    /// A byte outside rows; true when it begins one.
    fn between(&mut self, byte: u8) -> Result<bool, ()> {
        self.state = match (self.state, byte) {
            (state, b' ' | b'\t' | b'\r' | b'\n') => state,
            (State::Start, b'[') | (State::After, b',') => State::Row,
            (State::Row | State::After, b']') => State::End,
            (State::Row, b'{') => {
                self.depth = 1;
                State::Inside
            }
            _ => return Err(()),
        };
        Ok(self.state == State::Inside)
    }

    /// A byte inside a row; true when it ends it.
    fn ends_row(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, size: usize) -> Result<(Vec<String>, bool), ()> {
        let mut splitter = RowSplitter::default();
        let mut rows = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            splitter.feed(chunk, |row| {
                rows.push(String::from_utf8(row.to_vec()).unwrap());
                Ok(())
            })?;
        }
        Ok((rows, splitter.is_complete()))
    }

    #[test]
    fn rows_are_found_however_the_pieces_fall() {
        let rows = [r#"{"a":"}],\"{"}"#, r#"{"b":[{},[{"c":"\\"}]]}"#, "{}", r#"{"é":"ü"}"#];
        let text = format!(" [ {} ]\n", rows.join(" , "));
        for size in 1..text.len() + 1 {
            let (found, complete) = split(&text, size).unwrap();
            assert_eq!(found, rows, "pieces of {size}");
            assert!(complete);
        }
        assert_eq!(split("[]", 1), Ok((vec![], true)));
    }

    #[test]
    fn a_list_that_breaks_off_is_not_complete() {
        for text in ["", "[", "[{}", "[{},", r#"[{"a":"]"#] {
            assert!(!split(text, 2).unwrap().1, "{text}");
        }
    }

    #[test]
    fn anything_but_a_list_of_objects_is_an_error() {
        for text in ["<html>", "{}", "[1]", "[{}{}]", "[{}]x", "null", r#"["a"]"#] {
            assert!(split(text, 1).is_err(), "{text}");
        }
    }
}

//! Expressions in CEL over one message.
//!
//! Guarantees: an expression that compiles is small: 1 KiB of text, no loop inside a loop,
//! regular expressions only as constants and never over bodies, bodies never inside a loop. And
//! so is its work on each message, which is known beforehand ([`cost`]): where it could be too
//! much, the expression fails on that message. What fails on a message does not match it.
//!
//! Left out: stopping an evaluation half-way. The interpreter counts no steps and asks nobody
//! whether to go on, and a thread can't be ended from outside: a deadline would only leave it
//! behind, still at work.

mod check;
mod convert;
mod cost;

use std::sync::Arc;

use cel::{Context, Env, Program, Value as Cel};

use super::super::message::Message;
use check::{Found, Where};

/// The longest expression, in bytes.
pub const MAX_BYTES: usize = 1_024;

/// An expression that can be asked.
#[derive(Debug)]
pub struct Expression {
    program: Program,
    env: Shared,
    uses: check::Uses,
    /// The length of its text, in bytes.
    length: u64,
}

/// The environment, which has no `Debug` of its own.
struct Shared(Arc<Env>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the standard environment")
    }
}

/// Why an expression can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// What is wrong, and what to write instead.
    pub message: String,
    /// The line, from 1 on.
    pub line: usize,
    /// The column in characters, from 1 on.
    pub column: usize,
    /// The text of that line.
    pub text: String,
}

impl std::fmt::Display for ExpressionError {
    /// The sentence, the place, and the line with a mark below.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { message, line, column, text } = self;
        write!(f, "{message} (line {line}, column {column})\n  {text}\n  {:>column$}", "^")
    }
}

impl std::error::Error for ExpressionError {}

impl Expression {
    /// Compiles an expression; `allow_body` says whether it may read bodies.
    ///
    /// # Errors
    /// [`ExpressionError`] at the first place that can't be used.
    pub fn new(source: &str, allow_body: bool) -> Result<Self, ExpressionError> {
        if source.len() > MAX_BYTES {
            let message = format!(
                "the expression has {} bytes: at most {MAX_BYTES} are allowed, so shorten it",
                source.len()
            );
            return Err(error_at(source, Where { line: 1, column: 1 }, message));
        }
        let env = Env::stdlib().with_optional_support(false);
        let program = env.compile(source).map_err(|errors| syntax(source, &errors))?;
        let uses = check::check(&program, &env, allow_body)
            .map_err(|Found { place, message }| error_at(source, place, message))?;
        Ok(Self { program, env: Shared(Arc::new(env)), uses, length: source.len() as u64 })
    }

    /// Whether it reads bodies.
    #[must_use]
    pub fn reads_body(&self) -> bool {
        self.uses.body
    }

    /// Whether it holds for a message; `None` where it fails: a missing key, a wrong type, an
    /// answer that is neither true nor false, or more work than [`cost::MOST`].
    #[must_use]
    pub fn holds(&self, message: &Message) -> Option<bool> {
        if cost::steps(&self.uses, self.length, message) > cost::MOST {
            return None;
        }
        let mut context = Context::with_env(Arc::clone(&self.env.0));
        if self.uses.headers {
            context.add_variable_from_value("headers", convert::headers(message));
        }
        if self.uses.properties {
            context.add_variable_from_value("properties", convert::properties(message));
        }
        if self.uses.body {
            context.add_variable_from_value("body", Cel::Bytes(Arc::new(message.body.clone())));
        }
        match self.program.execute(&context) {
            Ok(Cel::Bool(holds)) => Some(holds),
            _ => None,
        }
    }
}

/// The first error of the parser; the others mostly follow from it.
fn syntax(source: &str, errors: &cel::ParseErrors) -> ExpressionError {
    let Some(first) = errors.errors.first() else {
        return error_at(source, Where { line: 1, column: 1 }, "the expression can't be read".to_owned());
    };
    let number = |number: isize| usize::try_from(number).unwrap_or(1).max(1);
    let place = Where { line: number(first.pos.0), column: number(first.pos.1) };
    // The parser lists all that could stand here; the first line says what does.
    let words = first.msg.lines().next().unwrap_or_default();
    let words = words.split(" expecting ").next().unwrap_or_default();
    error_at(source, place, format!("the expression is no CEL: {words}"))
}

fn error_at(source: &str, place: Where, message: String) -> ExpressionError {
    let text = source.lines().nth(place.line - 1).unwrap_or_default().to_owned();
    ExpressionError { message, line: place.line, column: place.column, text }
}

#[cfg(test)]
#[path = "expression/tests.rs"]
mod tests;

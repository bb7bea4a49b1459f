//! What an expression may use, checked once when it is compiled.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr};
use cel::{Context, Env, Program, Value as Cel};

/// What there is to read.
const VARIABLES: [&str; 3] = ["headers", "properties", "body"];

/// The fields of `properties`.
const PROPERTIES: [&str; 14] = [
    "exchange",
    "routingKey",
    "contentType",
    "contentEncoding",
    "deliveryMode",
    "priority",
    "correlationId",
    "replyTo",
    "expiration",
    "messageId",
    "timestamp",
    "type",
    "userId",
    "appId",
];

/// The functions there are; the loops `all`, `exists`, `exists_one`, `map` and `filter` and
/// the question `has` are macros, which are gone when this looks.
const FUNCTIONS: [&str; 12] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "type",
];

/// How often an expression may name the body, since most uses copy it.
const MAX_BODIES: u64 = 8;

/// A place in the text, both from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Where {
    /// The line.
    pub(super) line: usize,
    /// The column in characters.
    pub(super) column: usize,
}

/// What is wrong, and where.
pub(super) struct Found {
    pub(super) place: Where,
    pub(super) message: String,
}

/// What an expression reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub(super) headers: bool,
    pub(super) properties: bool,
    pub(super) body: bool,
    pub(super) loops: bool,
    /// Its parts: what is evaluated once, or once for each turn of a loop.
    pub(super) parts: u64,
    /// How often headers or properties are named inside a loop.
    pub(super) inside: u64,
    /// How often they are named elsewhere, or a loop's own variable is.
    pub(super) outside: u64,
    /// How often the body is named.
    pub(super) bodies: u64,
}

/// Checks a program, and says what it reads.
pub(super) fn check(program: &Program, env: &Env, allow_body: bool) -> Result<Uses, Found> {
    let mut check = Check { program, env, allow_body, uses: Uses::default(), bound: Vec::new() };
    let root = program.expression();
    if let Some(what) = other_than_truth(&root.expr) {
        let message = format!("the expression gives {what}: compare it, so that it is true or false");
        return Err(check.found(root, message));
    }
    check.walk(root, false)?;
    Ok(check.uses)
}

struct Check<'a> {
    program: &'a Program,
    env: &'a Env,
    allow_body: bool,
    uses: Uses,
    /// The names of the loop that is being walked.
    bound: Vec<&'a str>,
}

impl<'a> Check<'a> {
    fn walk(&mut self, node: &'a IdedExpr, in_loop: bool) -> Result<(), Found> {
        self.uses.parts += 1;
        match &node.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.variable(node, name, in_loop),
            Expr::Select(select) => self.select(node, select, in_loop),
            Expr::Call(call) => self.call(node, call, in_loop),
            Expr::Comprehension(of) => self.comprehension(node, of, in_loop),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.walk(element, in_loop)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.walk(&entry.key, in_loop)?;
                    self.walk(&entry.value, in_loop)
                }
                EntryExpr::StructField(field) => self.walk(&field.value, in_loop),
            }),
            Expr::Struct(of) => {
                Err(self.found(node, format!("there is no type {:?}: compare single values", of.type_name)))
            }
        }
    }

    fn variable(&mut self, node: &IdedExpr, name: &str, in_loop: bool) -> Result<(), Found> {
        // The accumulator that a macro makes has a name that nobody can write.
        if name.starts_with('@') || self.bound.contains(&name) {
            self.uses.outside += 1;
            return Ok(());
        }
        // What a loop goes over is named once, whatever follows.
        let is_repeated = !self.bound.is_empty();
        self.uses.inside += u64::from(is_repeated);
        self.uses.outside += u64::from(!is_repeated);
        match name {
            "headers" => self.uses.headers = true,
            "properties" => self.uses.properties = true,
            "body" => return self.body(node, in_loop),
            _ => {
                let message = format!("there is no variable {name:?}: there are {}", VARIABLES.join(", "));
                return Err(self.found(node, message));
            }
        }
        Ok(())
    }

    fn body(&mut self, node: &IdedExpr, in_loop: bool) -> Result<(), Found> {
        self.uses.body = true;
        self.uses.bodies += 1;
        let message = if !self.allow_body {
            "the pipeline does not let expressions read bodies: set replayPolicy.allowBody in the RetryPipeline, or compare headers and properties"
        } else if in_loop {
            "body may not be read inside all, exists, exists_one, map or filter: compare it outside"
        } else if self.uses.bodies > MAX_BODIES {
            "body is read more than 8 times: read it less often"
        } else {
            return Ok(());
        };
        Err(self.found(node, message.to_owned()))
    }

    fn select(&mut self, node: &'a IdedExpr, select: &'a SelectExpr, in_loop: bool) -> Result<(), Found> {
        let is_properties = matches!(&select.operand.expr, Expr::Ident(name) if name == "properties")
            && !self.bound.contains(&"properties");
        if is_properties && !PROPERTIES.contains(&select.field.as_str()) {
            let message =
                format!("there is no property {:?}: there are {}", select.field, PROPERTIES.join(", "));
            return Err(self.found(node, message));
        }
        self.walk(&select.operand, in_loop)
    }

    fn call(&mut self, node: &'a IdedExpr, call: &'a CallExpr, in_loop: bool) -> Result<(), Found> {
        let name = call.func_name.as_str();
        let is_operator = !name.starts_with(|c: char| c.is_alphabetic());
        if !is_operator && !FUNCTIONS.contains(&name) {
            let loops = "has, all, exists, exists_one, map, filter";
            let message = format!(
                "there is no function {name:?} like this: there are {}, {loops}",
                FUNCTIONS.join(", ")
            );
            return Err(self.found(node, message));
        }
        if name == "matches" {
            self.regex(node, call, in_loop)?;
        }
        call.target
            .iter()
            .map(|target| &**target)
            .chain(&call.args)
            .try_for_each(|part| self.walk(part, in_loop))
    }

    fn regex(&self, node: &IdedExpr, call: &CallExpr, in_loop: bool) -> Result<(), Found> {
        if in_loop {
            let message = "matches may not stand inside all, exists, exists_one, map or filter: use contains, startsWith or endsWith there";
            return Err(self.found(node, message.to_owned()));
        }
        if call.target.iter().map(|target| &**target).chain(&call.args).any(reads_body) {
            let message = "matches may not search bodies: use contains, startsWith or endsWith";
            return Err(self.found(node, message.to_owned()));
        }
        let Some(Expr::Literal(LiteralValue::String(pattern))) = call.args.last().map(|last| &last.expr)
        else {
            let message = "matches takes its pattern as a text in quotes: write one, such as matches(\"^a\")";
            return Err(self.found(node, message.to_owned()));
        };
        if self.is_pattern(pattern.inner()) {
            return Ok(());
        }
        let message = "the pattern of matches is no regular expression, or too large: use the syntax of RE2";
        Err(self.found(node, message.to_owned()))
    }

    /// Whether the evaluation itself will take the pattern.
    fn is_pattern(&self, pattern: &str) -> bool {
        let Ok(probe) = self.env.compile("''.matches(pattern)") else { return false };
        let mut context = Context::default();
        context.add_variable_from_value("pattern", Cel::from(pattern));
        probe.execute(&context).is_ok()
    }

    fn comprehension(
        &mut self,
        node: &'a IdedExpr,
        of: &'a ComprehensionExpr,
        in_loop: bool,
    ) -> Result<(), Found> {
        if in_loop {
            let message = "all, exists, exists_one, map and filter may not stand inside each other: use two of them joined by && or ||";
            return Err(self.found(node, message.to_owned()));
        }
        self.uses.loops = true;
        // What it loops over counts as inside as well: a loop over a loop's result is none.
        self.walk(&of.iter_range, true)?;
        self.walk(&of.accu_init, true)?;
        let names = [Some(&of.iter_var), of.iter_var2.as_ref(), Some(&of.accu_var)];
        self.bound = names.into_iter().flatten().map(String::as_str).collect();
        for part in [&of.loop_cond, &of.loop_step, &of.result] {
            self.walk(part, true)?;
        }
        self.bound.clear();
        Ok(())
    }

    fn found(&self, node: &IdedExpr, message: String) -> Found {
        Found { place: self.place(node), message }
    }

    /// The first character of the node or of what it consists of.
    fn place(&self, node: &IdedExpr) -> Where {
        let info = self.program.source_info();
        let start = info.offset_for(node.id).map_or(0, |(start, _)| start as usize);
        // In bytes, between two characters.
        let before = info.source.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Where { line, column }
    }
}

fn reads_body(node: &IdedExpr) -> bool {
    node.references().has_variable("body")
}

/// What an expression gives that can be neither true nor false, as far as it shows.
fn other_than_truth(expr: &Expr) -> Option<&'static str> {
    match expr {
        Expr::Literal(LiteralValue::Boolean(_)) => None,
        Expr::Literal(_) => Some("a constant"),
        Expr::List(_) => Some("a list"),
        Expr::Map(_) | Expr::Struct(_) => Some("a table"),
        Expr::Ident(name) if VARIABLES.contains(&name.as_str()) => Some("a whole variable"),
        Expr::Call(call) => match call.func_name.as_str() {
            "_+_" | "_-_" | "_*_" | "_/_" | "_%_" | "-_" => Some("the result of a calculation"),
            "size" | "int" | "uint" | "double" => Some("a number"),
            "string" | "bytes" | "type" => Some("a text"),
            _ => None,
        },
        _ => None,
    }
}

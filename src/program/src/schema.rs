//! Compares documents of the program with docs/json.md, which lists every field once and with one type. For
//! tests.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The type of a field's values, by its name in docs/json.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Boolean,
    Integer,
    Number,
    Text,
    Object,
    /// A map with arbitrary keys.
    MapOfNumbers,
    MapOfTexts,
    Any,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Type {
    shape: Shape,
    is_list: bool,
    is_nullable: bool,
}

impl Type {
    fn read(text: &str) -> Option<Self> {
        let (text, is_nullable) = text
            .strip_suffix(" or null")
            .map_or((text, false), |text| (text, true));
        let (text, is_list) = text
            .strip_prefix("list of ")
            .map_or((text, false), |text| (text, true));
        let shape = match text {
            "boolean" => Shape::Boolean,
            "integer" => Shape::Integer,
            "number" => Shape::Number,
            "text" => Shape::Text,
            "object" => Shape::Object,
            "map of numbers" => Shape::MapOfNumbers,
            "map of texts" => Shape::MapOfTexts,
            "any" => Shape::Any,
            _ => return None,
        };
        Some(Self {
            shape,
            is_list,
            is_nullable,
        })
    }

    fn has(self, value: &Value) -> bool {
        match value {
            Value::Null => self.is_nullable || self.shape == Shape::Any,
            Value::Array(values) if self.is_list => values.iter().all(|value| self.shape.has(value)),
            value => !self.is_list && self.shape.has(value),
        }
    }
}

impl Shape {
    fn has(self, value: &Value) -> bool {
        let all = |is: fn(&Value) -> bool| value.as_object().is_some_and(|map| map.values().all(is));
        match self {
            Self::Boolean => value.is_boolean(),
            Self::Integer => value.is_u64() || value.is_i64(),
            Self::Number => value.is_number(),
            Self::Text => value.is_string(),
            Self::Object => value.is_object(),
            Self::MapOfNumbers => all(|value| value.is_number() || value.is_null()),
            Self::MapOfTexts => all(Value::is_string),
            Self::Any => true,
        }
    }
}

/// The fields that docs/json.md lists.
pub(crate) fn documented() -> BTreeMap<&'static str, Type> {
    let mut fields = BTreeMap::new();
    for line in include_str!("../../../docs/json.md").lines() {
        let Some(row) = line.strip_prefix("| `") else {
            continue;
        };
        let mut cells = row.split('|').map(str::trim);
        let (Some(names), Some(of)) = (cells.next(), cells.next()) else {
            continue;
        };
        let of = Type::read(of).unwrap_or_else(|| panic!("docs/json.md: {of:?} is no type: {line}"));
        for name in names.split(',').map(|name| name.trim().trim_matches('`')) {
            assert!(
                fields.insert(name, of).is_none(),
                "docs/json.md names {name} twice"
            );
        }
    }
    fields
}

/// Panics if a field of this document differs from docs/json.md. Adds the document's field names to `seen`.
pub(crate) fn check(document: &Value, seen: &mut BTreeSet<String>) {
    walk(&documented(), document, seen);
}

fn walk(fields: &BTreeMap<&'static str, Type>, value: &Value, seen: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| walk(fields, value, seen)),
        Value::Object(members) => {
            for (name, value) in members {
                let of = fields.get(name.as_str());
                let of = of.unwrap_or_else(|| panic!("docs/json.md has no {name}: {value}"));
                assert!(of.has(value), "{name} is {value}, and not {of:?}");
                seen.insert(name.clone());
                if of.shape == Shape::Object {
                    walk(fields, value, seen);
                }
            }
        }
        _ => {}
    }
}

//! The order of steps: which belong to one block, how often a block is run, and that no wait can go round in
//! a circle.

use std::collections::BTreeSet;

use anyhow::Result;
use toml::Spanned;

use super::check::{Source, check_rounds, is_name};
use super::model::{Block, Step, Variant, block_of};
use super::schema::{Alternate, File, Step as StepTable};
use super::template::list;

/// Place of a step in the file, as its table names it.
struct StepPlace<'a> {
    table: &'a StepTable,
    /// The group it names, or itself when it has rounds of its own.
    group: Option<&'a Spanned<String>>,
    /// Which `[[alternate]]` that group is in.
    alternate: Option<usize>,
}

/// Cuts the steps into blocks.
pub(super) fn blocks(source: Source<'_>, file: &File) -> Result<Vec<Block>> {
    let Some(first) = file.steps.first() else {
        return Err(source.at(&file.name, "steps: a scenario without steps shows nothing"));
    };
    let places: Vec<StepPlace<'_>> = file
        .steps
        .iter()
        .map(|step| place(file, step.get_ref()))
        .collect();
    for place in &places {
        check_place(source, place)?;
    }
    check_alternates(source, file, &places)?;
    let rounds = file.rounds.map_or(1, |rounds| rounds.get());
    check_rounds(rounds).map_err(|error| source.at(first, &format!("rounds: {error}")))?;
    let grouped = places.iter().any(|place| place.group.is_some());

    let mut blocks: Vec<Block> = Vec::new();
    let mut previous: Option<&StepPlace<'_>> = None;
    for (index, place) in places.iter().enumerate() {
        let same = previous.is_some_and(|previous| same_block(previous, place));
        if !same {
            refuse_split(source, &places, index)?;
            blocks.push(empty_block(file, place, rounds, grouped));
        }
        if let Some(block) = blocks.last_mut() {
            let name = place
                .group
                .map(|group| group.get_ref().clone())
                .unwrap_or_default();
            match block.variants.iter_mut().find(|variant| variant.name == name) {
                Some(variant) => variant.steps.push(index),
                None => block.variants.push(Variant {
                    name,
                    steps: vec![index],
                }),
            }
        }
        previous = Some(place);
    }
    Ok(blocks)
}

fn place<'a>(file: &'a File, table: &'a StepTable) -> StepPlace<'a> {
    let group = table
        .group
        .as_ref()
        .or_else(|| table.rounds.as_ref().map(|_| &table.id));
    let alternate = group.and_then(|group| {
        file.alternate
            .iter()
            .position(|alternate| names(alternate.get_ref()).any(|name| name == group.get_ref()))
    });
    StepPlace {
        table,
        group,
        alternate,
    }
}

fn names(alternate: &Alternate) -> impl Iterator<Item = &String> {
    alternate.groups.iter().map(Spanned::get_ref)
}

fn check_place(source: Source<'_>, place: &StepPlace<'_>) -> Result<()> {
    let id = place.table.id.get_ref();
    if let Some(group) = place
        .table
        .group
        .as_ref()
        .filter(|group| !is_name(group.get_ref()))
    {
        let message = format!("step `{id}`, group: `{}` is no name", group.get_ref());
        return Err(source.at(group, &message));
    }
    let Some(rounds) = &place.table.rounds else {
        return Ok(());
    };
    check_rounds(rounds.get_ref().get())
        .map_err(|error| source.at(rounds, &format!("step `{id}`, rounds: {error}")))?;
    if place.table.group.is_some() {
        let message = format!("step `{id}`, rounds: its group says how often it is run");
        return Err(source.at(rounds, &message));
    }
    if place.table.background {
        let message =
            format!("step `{id}`, rounds: a step in the background is not repeated; give it a group");
        return Err(source.at(rounds, &message));
    }
    Ok(())
}

fn check_alternates(source: Source<'_>, file: &File, places: &[StepPlace<'_>]) -> Result<()> {
    let mut seen: Vec<&str> = Vec::new();
    for table in &file.alternate {
        let alternate = table.get_ref();
        if alternate.groups.len() < 2 {
            return Err(source.at(table, "alternate, groups: two or more are needed to alternate"));
        }
        for rounds in [
            alternate.rounds.map(|rounds| rounds.get()),
            alternate.warmup_rounds,
        ]
        .into_iter()
        .flatten()
        {
            check_rounds(rounds).map_err(|error| source.at(table, &format!("alternate: {error}")))?;
        }
        for group in &alternate.groups {
            let name = group.get_ref().as_str();
            if seen.contains(&name) {
                return Err(source.at(group, &format!("alternate, groups: `{name}` is named twice")));
            }
            seen.push(name);
            let used = |place: &StepPlace<'_>| {
                place
                    .table
                    .group
                    .as_ref()
                    .is_some_and(|used| used.get_ref() == name)
            };
            if !places.iter().any(used) {
                let mut known: Vec<&str> = places
                    .iter()
                    .filter_map(|place| Some(place.table.group.as_ref()?.get_ref().as_str()))
                    .collect();
                known.dedup();
                let message = format!(
                    "alternate, groups: no step is in group `{name}`; the groups of steps are: {}",
                    list(&known)
                );
                return Err(source.at(group, &message));
            }
        }
    }
    Ok(())
}

fn same_block(one: &StepPlace<'_>, other: &StepPlace<'_>) -> bool {
    match (one.group, other.group) {
        (None, None) => true,
        (Some(one_group), Some(other_group)) => {
            one_group.get_ref() == other_group.get_ref()
                || (one.alternate.is_some() && one.alternate == other.alternate)
        }
        _ => false,
    }
}

/// A group whose steps stand apart in the file would run in an order nobody reads from it.
fn refuse_split(source: Source<'_>, places: &[StepPlace<'_>], index: usize) -> Result<()> {
    let Some(place) = places.get(index) else {
        return Ok(());
    };
    let Some(group) = place.group else { return Ok(()) };
    if places
        .iter()
        .take(index)
        .any(|earlier| same_block(earlier, place))
    {
        let id = place.table.id.get_ref();
        let message = format!(
            "step `{id}`: the steps of group `{}` (and of the groups it alternates with) must stand together",
            group.get_ref()
        );
        return Err(source.at(group, &message));
    }
    Ok(())
}

fn empty_block(file: &File, place: &StepPlace<'_>, rounds: u32, grouped: bool) -> Block {
    let alternate = place
        .alternate
        .and_then(|index| file.alternate.get(index))
        .map(Spanned::get_ref);
    let own = place.table.rounds.as_ref().map(|rounds| rounds.get_ref().get());
    let asked = own
        .or_else(|| alternate?.rounds.map(|rounds| rounds.get()))
        .unwrap_or(rounds);
    let warmup = alternate
        .and_then(|alternate| alternate.warmup_rounds)
        .unwrap_or(file.warmup_rounds);
    let setup = grouped && place.group.is_none();
    // The variants stand in the order `groups` names them, which is the order they alternate in.
    let variants = alternate
        .map(|alternate| {
            names(alternate)
                .map(|name| Variant {
                    name: name.clone(),
                    steps: Vec::new(),
                })
                .collect()
        })
        .unwrap_or_default();
    Block {
        variants,
        rounds: if setup { 1 } else { asked },
        warmup_rounds: if setup { 0 } else { warmup },
        setup,
    }
}

/// Fills in which foreground step each step comes after, and refuses waits that could never end.
pub(super) fn order(source: Source<'_>, file: &File, blocks: &[Block], steps: &mut [Step]) -> Result<()> {
    for variant in blocks.iter().flat_map(|block| &block.variants) {
        let mut foreground = None;
        for &index in &variant.steps {
            if let Some(step) = steps.get_mut(index) {
                step.after = foreground;
                foreground = if step.background { foreground } else { Some(index) };
            }
        }
    }
    for (index, step) in steps.iter().enumerate() {
        for (wait, text) in step.wait_for.iter().zip(waits(file, index)) {
            if !reachable(blocks, index, wait.step) {
                let message = format!(
                    "step `{}`, wait_for: `{}` is never run at the same time; a step can wait for those of its \
                     own group, and for those outside all groups that stand before it",
                    step.id,
                    steps.get(wait.step).map_or("", |other| other.id.as_str())
                );
                return Err(source.at(text, &message));
            }
        }
    }
    for index in 0..steps.len() {
        if let Some(circle) = circle(steps, index, index, &mut BTreeSet::new()) {
            let place = file.steps.get(index).map(|step| step.get_ref().id.span());
            return Err(source.fault(place, &format!("wait_for goes round in a circle: {circle}")));
        }
    }
    Ok(())
}

fn waits(file: &File, step: usize) -> &[Spanned<String>] {
    file.steps
        .get(step)
        .map(|step| step.get_ref().wait_for.as_slice())
        .unwrap_or_default()
}

fn reachable(blocks: &[Block], step: usize, target: usize) -> bool {
    let (Some(own), Some(other)) = (block_of(blocks, step), block_of(blocks, target)) else {
        return false;
    };
    if own == other {
        return blocks.get(own).is_some_and(|block| {
            block
                .variants
                .iter()
                .any(|variant| variant.steps.contains(&step) && variant.steps.contains(&target))
        });
    }
    other < own && blocks.get(other).is_some_and(|block| block.setup)
}

/// Describes the way from `here` back to `start` in words. Steps in `seen` are known to lead nowhere.
fn circle(steps: &[Step], start: usize, here: usize, seen: &mut BTreeSet<usize>) -> Option<String> {
    let step = steps.get(here)?;
    let waits = step.wait_for.iter().map(|wait| (wait.step, "waits for"));
    for (next, how) in step
        .after
        .map(|after| (after, "comes after"))
        .into_iter()
        .chain(waits)
    {
        let said = format!("`{}` {how} `{}`", step.id, steps.get(next)?.id);
        if next == start {
            return Some(said);
        }
        if seen.insert(next) {
            if let Some(rest) = circle(steps, start, next, seen) {
                return Some(format!("{said}, {rest}"));
            }
        }
    }
    None
}

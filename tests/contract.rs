//! Holds `docs/contract.md` to the code: every promise and every case has one row, and a row either
//! says `open` or names tests that exist.

use std::collections::BTreeMap;
use std::path::{Component, Path};

const PROMISES: u32 = 208;

/// One row of a table: `| S1 | text | state |`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    line: usize,
    id: String,
    text: String,
    proofs: Proofs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Proofs {
    Open,
    Tests(Vec<TestName>),
}

/// `path/to/file.rs::test_fn_name`
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestName {
    file: String,
    function: String,
}

/// What the document says: its rows, and the case ids that it lists as complete.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contract {
    rows: Vec<Row>,
    cases: Vec<String>,
}

fn parse(text: &str) -> Result<Contract, Vec<String>> {
    let mut contract = Contract::default();
    let mut errors = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        if let Some(ids) = raw.strip_prefix("Case ids:") {
            contract.cases.extend(ids.split_whitespace().map(str::to_owned));
        } else if raw.trim_start().starts_with('|') && !is_frame(raw) {
            match parse_row(line, raw) {
                Ok(row) => contract.rows.push(row),
                Err(error) => errors.push(format!("line {line}: {error}")),
            }
        }
    }
    if errors.is_empty() { Ok(contract) } else { Err(errors) }
}

/// The heading of a table and the rule below it.
fn is_frame(raw: &str) -> bool {
    let first = raw.trim().trim_matches('|').split('|').next().unwrap_or_default().trim();
    first == "Id" || (!first.is_empty() && first.bytes().all(|b| b == b'-' || b == b':'))
}

fn parse_row(line: usize, raw: &str) -> Result<Row, String> {
    let inner = raw.trim().strip_prefix('|').and_then(|r| r.strip_suffix('|')).ok_or("a row ends with |")?;
    let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
    let [id, text, state] = cells[..] else {
        return Err(format!("a row has three cells, this one has {}", cells.len()));
    };
    if !is_id(id) {
        return Err(format!("{id:?} is neither S and a number nor C and three digits"));
    }
    if text.is_empty() {
        return Err(format!("{id} says nothing"));
    }
    Ok(Row { line, id: id.to_owned(), text: text.to_owned(), proofs: parse_state(id, state)? })
}

fn is_id(id: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    match id.split_at_checked(1) {
        Some(("S", number)) => digits(number) && !number.starts_with('0'),
        Some(("C", number)) => digits(number) && number.len() == 3,
        _ => false,
    }
}

fn parse_state(id: &str, state: &str) -> Result<Proofs, String> {
    if state == "open" {
        return Ok(Proofs::Open);
    }
    let tests: Result<Vec<_>, String> = state.split(',').map(|name| parse_test(id, name.trim())).collect();
    let tests = tests?;
    for (index, test) in tests.iter().enumerate() {
        if tests[..index].contains(test) {
            return Err(format!("{id} names {}::{} twice", test.file, test.function));
        }
    }
    Ok(Proofs::Tests(tests))
}

fn parse_test(id: &str, name: &str) -> Result<TestName, String> {
    let bad = || format!("{id}: {name:?} is neither `open` nor path/to/file.rs::test_fn_name");
    let plain = match name.strip_prefix('`') {
        Some(rest) => rest.strip_suffix('`').ok_or_else(bad)?,
        None => name,
    };
    let (file, function) = plain.split_once("::").ok_or_else(bad)?;
    let path = Path::new(file);
    let inside = path.components().all(|c| matches!(c, Component::Normal(_)));
    let identifier = function.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric())
        && function.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    if !inside || path.extension().is_none_or(|e| e != "rs") || !identifier {
        return Err(bad());
    }
    Ok(TestName { file: file.to_owned(), function: function.to_owned() })
}

/// Ids that are missing, doubled or unknown.
fn check_ids(contract: &Contract) -> Vec<String> {
    let mut errors = Vec::new();
    let mut wanted: BTreeMap<String, Vec<usize>> =
        (1..=PROMISES).map(|n| (format!("S{n}"), vec![])).collect();
    for case in &contract.cases {
        if !(is_id(case) && case.starts_with('C')) {
            errors.push(format!("{case:?} in the list of case ids is none"));
        } else if wanted.insert(case.clone(), vec![]).is_some() {
            errors.push(format!("{case} stands twice in the list of case ids"));
        }
    }
    if contract.cases.is_empty() {
        errors.push("there is no list of case ids".to_owned());
    }
    for row in &contract.rows {
        match wanted.get_mut(&row.id) {
            Some(lines) => lines.push(row.line),
            None => errors.push(format!("line {}: {} is not to be in the document", row.line, row.id)),
        }
    }
    for (id, lines) in wanted {
        match lines.len() {
            1 => {}
            0 => errors.push(format!("{id} is missing")),
            _ => errors.push(format!("{id} stands on lines {lines:?}")),
        }
    }
    errors
}

/// Named tests that are not there. `read` gives a file's text by its path from the root.
fn check_tests(contract: &Contract, mut read: impl FnMut(&str) -> Option<String>) -> Vec<String> {
    let mut files: BTreeMap<&str, Option<String>> = BTreeMap::new();
    let mut errors = Vec::new();
    for row in &contract.rows {
        let Proofs::Tests(tests) = &row.proofs else { continue };
        for TestName { file, function } in tests {
            let source = files.entry(file).or_insert_with(|| read(file));
            match source.as_deref().map(|text| find_test(text, function)) {
                Some(Found::Test) => {}
                Some(Found::NoTest) => {
                    errors.push(format!("line {}: {}: fn {function} in {file} is no test", row.line, row.id));
                }
                Some(Found::Nothing) => {
                    errors.push(format!("line {}: {}: {file} has no fn {function}", row.line, row.id));
                }
                None => errors.push(format!("line {}: {}: there is no {file}", row.line, row.id)),
            }
        }
    }
    errors
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Test,
    NoTest,
    Nothing,
}

/// Looks for `fn name` with a test attribute (`#[test]`, `#[tokio::test(..)]`) in the lines just above it.
fn find_test(source: &str, name: &str) -> Found {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut found = Found::Nothing;
    for (index, line) in lines.iter().enumerate() {
        let declared =
            ["pub ", "async ", "unsafe "].iter().fold(*line, |l, word| l.strip_prefix(word).unwrap_or(l));
        let is_it = declared
            .strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with(['(', '<']));
        if !is_it {
            continue;
        }
        let attribute = lines[..index]
            .iter()
            .rev()
            .take_while(|l| !l.is_empty() && !l.ends_with('}') && !l.ends_with('{'))
            .any(|l| l.starts_with("#[test]") || (l.starts_with("#[") && l.contains("::test")));
        if attribute {
            return Found::Test;
        }
        found = Found::NoTest;
    }
    found
}

#[test]
fn every_promise_and_case_has_one_row_and_every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/contract.md")).expect("docs/contract.md is there");
    let contract = parse(&text).unwrap_or_else(|errors| panic!("docs/contract.md:\n{}", errors.join("\n")));
    let mut errors = check_ids(&contract);
    errors.extend(check_tests(&contract, |file| std::fs::read_to_string(root.join(file)).ok()));
    assert!(errors.is_empty(), "docs/contract.md:\n{}", errors.join("\n"));
}

#[test]
fn a_good_row_is_read() {
    let text = "# Title\n\n| Id | Promise | State |\n|---|---|:--|\n| S1 | one | open |\n\
                | C001 | two | `a/b.rs::works`, a/b.rs::works_too |\n\nCase ids: C001\n";
    let contract = parse(text).expect("it is well formed");
    let test = |function: &str| TestName { file: "a/b.rs".to_owned(), function: function.to_owned() };
    let row =
        |line, id: &str, text: &str, proofs| Row { line, id: id.to_owned(), text: text.to_owned(), proofs };
    assert_eq!(
        contract.rows,
        [
            row(5, "S1", "one", Proofs::Open),
            row(6, "C001", "two", Proofs::Tests(vec![test("works"), test("works_too")])),
        ]
    );
    assert_eq!(contract.cases, ["C001"]);
}

#[test]
fn a_broken_row_is_an_error() {
    for (row, complaint) in [
        ("| S1 | text | done |", "neither `open` nor"),
        ("| S1 | text | |", "neither `open` nor"),
        ("| S1 | text | Open |", "neither `open` nor"),
        ("| S1 | text | open, a.rs::b |", "neither `open` nor"),
        ("| S1 | text | a.rs::b, |", "neither `open` nor"),
        ("| S1 | text | a.rs |", "neither `open` nor"),
        ("| S1 | text | a.rs:: |", "neither `open` nor"),
        ("| S1 | text | a.rs::b::c |", "neither `open` nor"),
        ("| S1 | text | a.rs::9b |", "neither `open` nor"),
        ("| S1 | text | a.py::b |", "neither `open` nor"),
        ("| S1 | text | /a.rs::b |", "neither `open` nor"),
        ("| S1 | text | ../a.rs::b |", "neither `open` nor"),
        ("| S1 | text | `a.rs::b |", "neither `open` nor"),
        ("| S1 | text | a.rs::b, a.rs::b |", "twice"),
        ("| S1 | | open |", "says nothing"),
        ("| S1 | text |", "three cells"),
        ("| S1 | text | open | more |", "three cells"),
        ("| S1 | text | open", "ends with |"),
        ("| S01 | text | open |", "neither S and a number"),
        ("| s1 | text | open |", "neither S and a number"),
        ("| C1 | text | open |", "neither S and a number"),
        ("| X1 | text | open |", "neither S and a number"),
        ("| | text | open |", "neither S and a number"),
    ] {
        let errors = parse(row).expect_err(row);
        assert!(errors.len() == 1 && errors[0].contains(complaint), "{row}: {errors:?}");
    }
}

fn complete() -> Contract {
    let mut text = "Case ids: C001 C003\n| C001 | t | open |\n| C003 | t | open |\n".to_owned();
    for n in 1..=PROMISES {
        text.push_str(&format!("| S{n} | t | open |\n"));
    }
    parse(&text).expect("it is well formed")
}

#[test]
fn missing_doubled_and_unknown_ids_are_errors() {
    assert_eq!(check_ids(&complete()), Vec::<String>::new());
    let without = |id: &str| {
        let mut contract = complete();
        contract.rows.retain(|row| row.id != id);
        check_ids(&contract)
    };
    assert_eq!(without("S208"), ["S208 is missing"]);
    assert_eq!(without("C003"), ["C003 is missing"]);
    let with = |rows: &str| {
        let mut contract = complete();
        contract.rows.extend(parse(rows).expect("it is well formed").rows);
        check_ids(&contract)
    };
    assert!(with("| S7 | t | open |")[0].starts_with("S7 stands on lines"));
    assert!(with("| C001 | t | open |")[0].starts_with("C001 stands on lines"));
    assert!(with("| S209 | t | open |")[0].contains("S209 is not to be"));
    assert!(with("| C002 | t | open |")[0].contains("C002 is not to be"));
    let listed = |ids: &[&str]| {
        let cases = ids.iter().map(|id| (*id).to_owned()).collect();
        check_ids(&Contract { cases, ..complete() })
    };
    assert!(listed(&["C001", "C003", "C001"])[0].contains("twice"));
    assert!(listed(&["C001", "C003", "S1"])[0].contains("is none"));
    assert!(listed(&[]).iter().any(|e| e.contains("no list")));
}

#[test]
fn a_named_test_that_is_not_there_is_an_error() {
    let source = "#[test]\nfn plain() {}\n\n#[tokio::test(flavor = \"current_thread\")]\n#[ignore = \"slow\"]\n\
                  async fn awaited() {}\n\nfn helper() {}\n// fn commented() {}\n";
    for (name, found) in [
        ("plain", Found::Test),
        ("awaited", Found::Test),
        ("helper", Found::NoTest),
        ("commented", Found::Nothing),
        ("plai", Found::Nothing),
        ("plain_", Found::Nothing),
    ] {
        assert_eq!(find_test(source, name), found, "{name}");
    }
    let errors = |row: &str| {
        let contract = parse(row).expect("it is well formed");
        check_tests(&contract, |file| (file == "a.rs").then(|| source.to_owned()))
    };
    assert_eq!(errors("| S1 | t | a.rs::plain, a.rs::awaited |"), Vec::<String>::new());
    assert_eq!(errors("| S1 | t | open |"), Vec::<String>::new());
    assert!(errors("| S1 | t | b.rs::plain |")[0].contains("there is no b.rs"));
    assert!(errors("| S1 | t | a.rs::other |")[0].contains("a.rs has no fn other"));
    assert!(errors("| S1 | t | a.rs::helper |")[0].contains("is no test"));
}

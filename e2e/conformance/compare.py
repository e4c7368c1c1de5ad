#!/usr/bin/env python3
"""compare.py EXPECTED LOG STATUS [fail=NAME | skip=NAME]...: what the suite's log says of each test against what is expected.

A line of EXPECTED is `fail NAME reason` or `skip NAME reason`; a NAME of `skip` may hold * and ?. Every test that is not named
passes. A test that passes although it is named is as wrong as one that does not although it is not: the list tells the truth.
"""
import collections, fnmatch, re, sys

expected_file, log_file, status = sys.argv[1], sys.argv[2], int(sys.argv[3])
expected, patterns, used = {}, [], set()
for number, line in enumerate(open(expected_file), 1):
    line = line.strip()
    if not line or line.startswith("#"):
        continue
    parts = line.split(None, 2)
    if len(parts) != 3 or parts[0] not in ("fail", "skip"):
        sys.exit(f"{expected_file}:{number}: fail NAME reason, or skip NAME reason")
    if parts[0] == "skip" and set(parts[1]) & set("*?"):
        patterns.append(parts[1])
    else:
        expected[parts[1]] = parts[0]

expected.update(reversed(more.split("=")) for more in sys.argv[4:])

log = open(log_file, errors="replace").read()
results = dict(
    (name, result.lower())
    for result, name in re.findall(r"^    --- (PASS|FAIL|SKIP): TestConformance/([^/ ]+) \(", log, re.M)
)
if not results:
    print("\n".join(log.splitlines()[-40:]))
    sys.exit(f"conformance: the suite ran no test (exit status {status})")

wrong = []
for name, result in sorted(results.items()):
    wanted = expected.get(name)
    pattern = next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
    if wanted is None and result == "skip" and pattern:
        used.add(pattern)
    elif result != (wanted or "pass"):
        wrong.append(f"{name}: {result}, expected {wanted or 'pass'}")
        if result == "fail":
            reason = re.findall(rf"^ +(?:.*/)?[^ ]*{name}[^\n]*\n(?:[^\n]*Error:[^\n]*)", log, re.M)
            wrong.extend(f"    {r.strip()}" for r in reason[:1])
wrong += [f"{name}: not in the suite, yet expected to {what}" for name, what in sorted(expected.items()) if name not in results]
wrong += [f"{p}: no test that is skipped has such a name" for p in patterns if p not in used]

counts = collections.Counter(results.values())
print(f"conformance: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped; the whole output is in {log_file}")
if wrong:
    print("\n".join(wrong))
    sys.exit(f"conformance: {len(wrong)} results differ from {expected_file}")
if status and not counts["fail"]:
    print("\n".join(log.splitlines()[-40:]))
    sys.exit(f"conformance: the suite ended with {status} although no test failed")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real expositions as series of a promtool test: what a server exposes before a change, and after it.

    story.py RULES BEFORE AFTER [--at MINUTES] EXPECT...      writes the test to standard output

The server exposes BEFORE for two hours, counting on, and then what AFTER adds, each minute (over a day: each five). EXPECT are the alerts that must
then fire (after 140 minutes, or --at), each ALERT or ALERT:label=value,...; all others must be quiet, and before the change every one
must be. ~ALERT may fire or not: one that goes by times. Time begins at 0.
"""
import json
import re
import sys

SAMPLE = re.compile(r'^(\w+)(\{.*\})? (\S+)$')


def samples(path):
    found = {}
    for line in open(path):
        if line.startswith("#"):
            continue
        name, labels, value = SAMPLE.match(line).groups()
        found[(name, labels or "{}")] = float(value)
    return found


def number(value):
    return repr(int(value)) if value == int(value) else repr(value)


COUNTER = re.compile(r'_(total|bucket|sum|count)$')  # the last three: of histograms


def series(before, after, first, more):
    """So many samples of the old traffic, then of the new; a counter that is only in the one stands still in the other."""
    for key in sorted(set(before) | set(after)):
        name, labels = key
        old, new = before.get(key), after.get(key)
        labels = '{job="j",instance="i"' + ("," + labels[1:-1] if labels != "{}" else "") + "}"
        if COUNTER.search(name):
            start = 0 if old is None else old
            values = f"_x{first}" if old is None else f"{number(old)}+{number(old)}x{first}"
            last = 0 if old is None else (first + 1) * start
            step = new or 0
            values += f" {number(last + step)}+{number(step)}x{more}"
        else:
            values = (f"_x{first}" if old is None else f"{number(old)}x{first}") + " " + (f"_x{more}" if new is None else f"{number(new)}x{more}")
        yield name + labels, values


rules, before, after, words = sys.argv[1], samples(sys.argv[2]), samples(sys.argv[3]), sys.argv[4:]
at = 140
if words[:1] == ["--at"]:
    at, words = int(words[1]), words[2:]
step = 1 if at < 1000 else 5  # minutes; a day of single ones takes seconds
alerts = re.findall(r"- alert: (\w+)", open(rules).read())
expected = {}
either = {word[1:] for word in words if word.startswith("~")}
for word in words:
    name, _, labels = word.lstrip("~").partition(":")
    assert name in alerts, f"{name} is no alert of {rules}"
    if name in either:
        continue
    expected.setdefault(name, []).append(dict(pair.split("=") for pair in labels.split(",") if pair))
quiet = [{"eval_time": time, "alertname": name} for name in alerts for time in ("60m", "118m")]
fired = [{"eval_time": f"{at}m", "alertname": name} for name in alerts if name not in expected and name not in either]
# promtool compares annotations too, so the expected ones are asked for as an expression of the alert's own series
asked = [{"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing",' + ",".join(f'{k}="{v}"' for k, v in one.items()) + "})",
          "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": 1}]} for name, ones in expected.items() for one in ones]
# JSON is YAML
json.dump({"rule_files": [rules], "evaluation_interval": f"{step}m",
           "tests": [{"interval": f"{step}m", "input_series": [{"series": s, "values": v} for s, v in series(before, after, 120 // step, (at - 80) // step)],
                      "alert_rule_test": quiet + fired, "promql_expr_test": asked}]}, sys.stdout, indent=1)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real expositions as series of a promtool test: what a server exposes before a change, and after it.

    story.py RULES BEFORE AFTER EXPECT...      writes the test to standard output

The server exposes BEFORE for two hours, counting on, and then what AFTER adds. EXPECT are the alerts that must
then fire, each ALERT or ALERT:label=value,...; all others must be quiet, and before the change every one must be.
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


def series(before, after):
    """120 minutes of the old traffic, then 60 of the new; a counter that is only in the one stands still in the other."""
    for key in sorted(set(before) | set(after)):
        name, labels = key
        old, new = before.get(key), after.get(key)
        labels = '{job="j",instance="i"' + ("," + labels[1:-1] if labels != "{}" else "") + "}"
        if name.endswith("_total"):
            start = 0 if old is None else old
            values = "_x120" if old is None else f"{number(old)}+{number(old)}x120"
            last = 0 if old is None else 121 * start
            step = new or 0
            values += f" {number(last + step)}+{number(step)}x60"
        else:
            values = ("_x120" if old is None else f"{number(old)}x120") + " " + ("_x60" if new is None else f"{number(new)}x60")
        yield name + labels, values


rules, before, after = sys.argv[1], samples(sys.argv[2]), samples(sys.argv[3])
alerts = re.findall(r"- alert: (\w+)", open(rules).read())
expected = {}
for word in sys.argv[4:]:
    name, _, labels = word.partition(":")
    assert name in alerts, f"{name} is no alert of {rules}"
    expected.setdefault(name, []).append(dict(pair.split("=") for pair in labels.split(",") if pair))
quiet = [{"eval_time": time, "alertname": name} for name in alerts for time in ("60m", "118m")]
fired = [{"eval_time": "140m", "alertname": name} for name in alerts if name not in expected]
# promtool compares annotations too, so the expected ones are asked for as an expression of the alert's own series
asked = [{"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing",' + ",".join(f'{k}="{v}"' for k, v in one.items()) + "})",
          "eval_time": "140m", "exp_samples": [{"labels": "{}", "value": 1}]} for name, ones in expected.items() for one in ones]
# JSON is YAML
json.dump({"rule_files": [rules], "evaluation_interval": "1m",
           "tests": [{"interval": "1m", "input_series": [{"series": s, "values": v} for s, v in series(before, after)],
                      "alert_rule_test": quiet + fired, "promql_expr_test": asked}]}, sys.stdout, indent=1)
